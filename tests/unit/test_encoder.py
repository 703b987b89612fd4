"""From raw records by batches to columns: in order, compact, following every write."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from clew.events.columns import COLUMN_NAMES, EVENT_COLUMNS, Columns, Symbol, Tensor
from clew.events.vocabulary import MODULE, NOTE, OP, STEP, Kept, Opaque, Payload, Unseen
from clew.record.encoder import Encoder, Surroundings
from clew.store.write.memory_sink import MemoryStore
from clew.stream import records as raw
from clew.stream.records import EVENT_FIELDS, OPEN, VALUE_FIELDS, Note, StepMark

NOWHERE = {"site": None, "code": None, "phase": 0, "thread": 0}
ROOT = SimpleNamespace(index=0, parent=None, **NOWHERE)
LINE = SimpleNamespace(index=7, parent=ROOT, **NOWHERE)


class Op:
    """Stands for an operator: a subject without an index."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


ADD, WRITE, VIEW = Op("add"), Op("add_"), Op("view")


class Records:
    """Writes records as capture does."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.values: list[Any] = []
        self.kept: list[Any] = []
        self.clock = 0

    def value(
        self, *shape: int, storage: Any = None, version: int | None = 0, producer: int = -1,
        name: str | None = None,
    ) -> tuple[int, ...]:  # fmt: skip
        token = tuple(shape)  # a tuple of its own
        token = token if token else ()
        self.values += [token, version, storage, (1,), "torch.float32", "cpu", None, False,
                        producer, name, None]  # fmt: skip
        return token

    def event(
        self, event: int, subject: Any, args: Any = (), out: Any = None, kwargs: Any = None,
        node: Any = LINE, parent: int = -1, end: int | None = None, number: Any = 0,
        error: str | None = None,
    ) -> None:  # fmt: skip
        self.clock += 10
        self.events += [event, subject, node, parent, self.clock,
                        self.clock + 5 if end is None else end, number, list(args), kwargs, out,
                        error, None]  # fmt: skip

    def batch(self, surviving: Any = ()) -> raw.Records:
        taken = raw.Records(self.events, self.values, self.kept, list(surviving))
        self.events, self.values, self.kept = [], [], []
        return taken


@pytest.fixture
def records() -> Records:
    return Records()


class Kit:
    """An encoder and the store that its batches go to."""

    def __init__(self) -> None:
        nothing = Surroundings([], [], [], [], lambda step: {}, [], lambda file: None, {})
        self.encoder = Encoder(lambda: nothing)
        self.store = MemoryStore()

    def take(self, records: raw.Records) -> None:
        self.store.extend(self.encoder.batch(records))

    def read(self) -> Columns:
        return self.store.read(0)


def stored(*batches: raw.Records) -> Columns:
    kit = Kit()
    for batch in batches:
        kit.take(batch)
    return kit.read()


def refs(columns: Any, row: int) -> list[int]:
    first = columns.first_ref[row]
    template = columns.templates[columns.template[row]]
    return columns.refs[first : first + len(template.tensors)].tolist()


def test_records_have_the_fields_they_say(records: Records) -> None:
    records.value(1)
    records.event(0, ADD)
    assert (len(records.values), len(records.events)) == (VALUE_FIELDS, EVENT_FIELDS)


def test_nothing_makes_empty_columns() -> None:
    columns = stored()
    assert {len(getattr(columns, name)) for name in COLUMN_NAMES} == {0}


def test_events_come_in_the_order_they_began(records: Records) -> None:
    """Records arrive as calls end: the inner before the outer."""
    inner, outer = SimpleNamespace(index=1), SimpleNamespace(index=0)
    records.event(1, inner, parent=0)
    records.event(2, ADD, parent=0)
    records.event(0, outer)
    columns = stored(records.batch())
    assert columns.id.tolist() == [0, 1, 2]
    assert columns.kind.tolist() == [MODULE, MODULE, OP]
    assert columns.subject.tolist() == [0, 1, 0]
    assert columns.parent.tolist() == [-1, 0, 0]
    assert (columns.end - columns.start).tolist() == [5, 5, 5]
    assert {len(getattr(columns, name)) for name in EVENT_COLUMNS} == {3}


def test_over_several_batches_too(records: Records) -> None:
    records.event(1, ADD, parent=0)
    first = records.batch()
    records.event(2, ADD, parent=0)
    records.event(0, SimpleNamespace(index=0))
    columns = stored(first, records.batch())
    assert columns.id.tolist() == [0, 1, 2]


def test_things_that_repeat_are_kept_once(records: Records) -> None:
    for event in range(100):
        x = records.value(2, 3)
        records.event(event, ADD, [x, 1], out=x)
    columns = stored(records.batch())
    assert columns.ops == ["add"]
    assert len(columns.templates) == 1
    assert len(columns.metas) == 1
    # The line and the root above it.
    assert [place.parent for place in columns.places] == [-1, 0]
    assert set(columns.place.tolist()) == {1}


@pytest.mark.parametrize(
    "constants", [(1, 1.0, True), (0.0, -0.0), (float("nan"), 0.0), ("1", 1), (None, False)]
)
def test_constants_that_look_alike_stay_apart(records: Records, constants: tuple[Any, ...]) -> None:
    for event, constant in enumerate(constants):
        records.event(event, ADD, [constant])
    columns = stored(records.batch())
    leaves = [columns.templates[n].leaves[0].constant for n in columns.template]
    assert list(map(repr, leaves)) == list(map(repr, constants))


def test_nan_is_kept_once(records: Records) -> None:
    for event in range(3):
        records.event(event, ADD, [float("nan")])
    assert len(stored(records.batch()).templates) == 1


def test_paths_of_nested_arguments(records: Records) -> None:
    x, y = records.value(1), records.value(2)
    args = [x, [y, None], {"k": [1, 2], "t": {"u": y}}]
    records.event(0, ADD, args, kwargs={"mask": x, "p": 0.5}, out=[x, [y]])
    columns = stored(records.batch())
    leaves = columns.templates[0].leaves
    assert [(leaf.role, leaf.path) for leaf in leaves] == [
        ("in", "0"), ("in", "1.0"), ("in", "1.1"), ("in", "2.k"), ("in", "2.t.u"),
        ("in", "mask"), ("in", "p"), ("out", "0"), ("out", "1.0"),
    ]  # fmt: skip
    assert [leaf.constant for leaf in leaves if leaf.constant is not Tensor] == [None, [1, 2], 0.5]
    assert refs(columns, 0) == [0, 1, 1, 0, 0, 1]


def test_arguments_that_are_all_whole_numbers(records: Records) -> None:
    records.event(0, ADD, [3])
    records.event(1, ADD, [3, 4])
    records.event(2, ADD, [[3, 4]])
    columns = stored(records.batch())
    leaves = [
        [(leaf.path, leaf.constant) for leaf in columns.templates[n].leaves]
        for n in columns.template
    ]
    assert leaves == [[("0", 3)], [("0", 3), ("1", 4)], [("0", [3, 4])]]


def test_odd_constants_become_their_text(records: Records) -> None:
    records.event(0, ADD, [Opaque("Generator"), 1j, b"raw"])
    leaves = stored(records.batch()).templates[0].leaves
    assert [leaf.constant for leaf in leaves] == ["Generator", 1j, "b'raw'"]
    assert isinstance(leaves[0].constant, Symbol)


def test_a_call_whose_result_is_unseen_says_so(records: Records) -> None:
    records.event(0, SimpleNamespace(index=0), out=Unseen)
    assert stored(records.batch()).templates[0].leaves[-1].constant is Unseen


def test_facts_of_values(records: Records) -> None:
    x = records.value(2, 3, storage=5, version=4, name="fc.weight")
    y = records.value(2, storage=None, producer=0)
    records.event(0, ADD, [x], out=y)
    columns = stored(records.batch())
    assert columns.version.tolist() == [4, 0]
    assert columns.producer.tolist() == [-1, 0]
    assert columns.storage[0] != columns.storage[1]
    assert columns.value_names == ["fc.weight"]
    assert columns.value_name.tolist() == [0, -1]
    meta = columns.metas[columns.meta[0]]
    assert (meta.dtype, meta.shape, meta.stride, meta.device) == ("float32", (2, 3), (1,), "cpu")


def test_values_on_the_same_memory_share_its_number(records: Records) -> None:
    base = records.value(4)
    view = records.value(2, storage=base, version=None, producer=0)
    outside, other = records.value(4, storage=9), records.value(3, storage=9)
    records.event(0, VIEW, [base, outside, other], out=view)
    storage = stored(records.batch()).storage.tolist()
    assert storage[0] == storage[1]
    assert storage[2] == storage[3] != storage[0]


def test_a_write_makes_other_views_new(records: Records) -> None:
    base = records.value(4)
    view = records.value(2, storage=base, version=None, producer=0)
    written = records.value(4, storage=base, version=1, producer=1)
    records.event(0, VIEW, [base], out=view)
    records.event(1, WRITE, [base], out=written)
    records.event(2, ADD, [view])
    records.event(3, ADD, [view])
    columns = stored(records.batch())
    (before,) = refs(columns, 1)[:1]
    assert before == 0  # what the write itself was given
    (renewed,) = refs(columns, 2)
    assert renewed not in (0, 1, 2)
    assert columns.producer[renewed] == 1
    assert columns.version[renewed] == 1
    assert columns.meta[renewed] == columns.meta[1]
    assert refs(columns, 3) == [renewed]


def test_a_view_made_after_the_write_is_as_it_is(records: Records) -> None:
    base = records.value(4)
    written = records.value(4, storage=base, version=1, producer=0)
    view = records.value(2, storage=written, version=None, producer=1)
    records.event(0, WRITE, [base], out=written)
    records.event(1, VIEW, [written], out=view)
    records.event(2, ADD, [view])
    columns = stored(records.batch())
    assert refs(columns, 2) == [2]
    assert columns.producer[2] == 1


def test_a_module_s_inputs_are_those_it_began_with(records: Records) -> None:
    """Its record comes after those of the ops inside it, a write among them."""
    given = records.value(4)
    written = records.value(4, storage=given, version=1, producer=1)
    records.event(1, WRITE, [given], out=written, parent=0)
    records.event(0, SimpleNamespace(index=0), [given], out=written)
    columns = stored(records.batch())
    assert refs(columns, 0) == [0, 1]


def test_writes_are_followed_across_batches(records: Records) -> None:
    base = records.value(4)
    view = records.value(2, storage=base, version=None, producer=0)
    records.event(0, VIEW, [base], out=view)
    first = records.batch([base, view])
    written = records.value(4, storage=base, version=1, producer=1)
    records.event(1, WRITE, [base], out=written)
    second = records.batch([written, view])
    records.event(2, ADD, [view])
    columns = stored(first, second, records.batch())
    (renewed,) = refs(columns, 2)
    assert columns.producer[renewed] == 1


def test_tokens_that_live_on_keep_their_numbers(records: Records) -> None:
    x = records.value(4)
    records.event(0, ADD, [x])
    first = records.batch([x])
    y = records.value(5)
    records.event(1, ADD, [x, y])
    columns = stored(first, records.batch())
    assert refs(columns, 0) == [0]
    assert refs(columns, 1) == [0, 1]


def test_open_calls_are_shown_and_come_again_when_they_end(records: Records) -> None:
    x = records.value(1)
    records.event(1, ADD, [x], parent=0)
    batch = records.batch([x])
    records.event(0, SimpleNamespace(index=0), [x], end=OPEN)
    batch.open_calls, records.events = records.events, []
    kit = Kit()
    kit.take(batch)
    during = kit.read()
    assert during.id.tolist() == [0, 1]
    assert during.end.tolist()[0] == OPEN
    again = kit.read()
    for name in COLUMN_NAMES:
        assert getattr(again, name).tolist() == getattr(during, name).tolist()
    records.event(0, SimpleNamespace(index=0), [x])
    kit.take(records.batch())
    after = kit.read()
    assert after.id.tolist() == [0, 1]
    assert after.end.tolist()[0] > 0
    assert len(after.refs) == 2


def test_events_come_in_the_order_in_which_they_began(records: Records) -> None:
    records.event(0, ADD)
    records.event(2, StepMark(1))
    records.event(3, ADD, parent=1)
    records.event(1, SimpleNamespace(index=0))  # began before the step, ended after it
    records.event(4, StepMark(2))
    records.event(5, ADD)
    columns = stored(records.batch())
    assert columns.id.tolist() == [0, 1, 2, 3, 4, 5]
    assert columns.kind.tolist() == [OP, MODULE, STEP, OP, STEP, OP]


def test_notes_and_errors(records: Records) -> None:
    records.event(0, ADD, error="ValueError: x")
    records.event(1, Note("error"), error="ValueError: x")
    records.event(2, Note("fault"))
    columns = stored(records.batch())
    assert columns.kind.tolist() == [OP, NOTE, NOTE]
    assert columns.notes == ["error", "fault"]
    assert columns.errors == ["ValueError: x"]
    assert columns.error.tolist() == [0, 0, -1]


def test_the_number_of_an_accumulation_is_its_parameter(records: Records) -> None:
    parameter = records.value(3, storage=0, name="fc.bias")
    records.event(0, ADD, [parameter])
    records.event(1, ADD, number=parameter)
    columns = stored(records.batch())
    assert -2 - columns.number[1] == 0


def test_what_was_kept_is_found_by_value(records: Records) -> None:
    x, y = records.value(1), records.value(2)
    payload = Payload("float32", (2,), b"\0" * 8)
    records.kept = [(y, Kept({"max": 1.0}, payload))]
    records.event(0, ADD, [x, y])
    columns = stored(records.batch())
    assert list(columns.kept) == [1]
    assert columns.kept[1].payload is payload


def test_reading_again_and_again_gives_the_same(records: Records) -> None:
    kit = Kit()
    for event in range(10):
        records.event(event, ADD, [records.value(event)])
        kit.take(records.batch())
        assert kit.read().id.tolist() == list(range(event + 1))
    assert kit.read().refs.tolist() == list(range(10))


def fill(kit: Kit, count: int, size: int = 5_000) -> None:
    """Ops in a chain, a write in ten, handed over in batches, as capture does."""
    records = Records()
    last = records.value(8)
    for event in range(count):
        x = records.value(8, producer=event)
        records.event(event, ADD, [last, 1.5], out=x)
        last = records.value(8, storage=last, version=1, producer=event) if event % 10 == 0 else x
        if event % size == size - 1:
            kit.take(records.batch([last]))
    kit.take(records.batch())


def cost(count: int) -> int:
    """Bytes of all columns and of what else the store holds by itself."""
    kit = Kit()
    fill(kit, count)
    columns = kit.read()
    arrays = sum(getattr(columns, name).nbytes for name in COLUMN_NAMES)
    return arrays + deep_size(vars(kit.encoder)) + deep_size(kit.store)


def deep_size(value: Any) -> int:
    """The size of an object and of what it contains."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(deep_size(k) + deep_size(v) for k, v in value.items())
    if isinstance(value, (list, tuple, set)):
        return size + sum(map(deep_size, value))
    if hasattr(value, "__dict__"):
        return size + deep_size(vars(value))
    return size


def test_an_event_costs_less_than_300_bytes_however_many_there_are() -> None:
    few, many = cost(10_000), cost(50_000)
    assert many / 50_000 < 300
    assert many < 5.5 * few


def test_columns_are_integers(records: Records) -> None:
    records.event(0, ADD, [records.value(1)])
    columns = stored(records.batch())
    assert {getattr(columns, name).dtype.kind for name in COLUMN_NAMES} == {"i"}
