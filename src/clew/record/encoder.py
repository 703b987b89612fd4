"""The encoder: raw records of this process in, batches of plain integers out.

Objects become rows of tables, tokens become numbers of values. Also the place where writes are
followed: a tensor that shares memory with one that was written to is a new value from then on,
made by the op that wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from clew.events.columns import (
    COLUMN_NAMES,
    IN,
    OUT,
    Ints,
    Leaf,
    Meta,
    ModuleRow,
    ObjectClass,
    Place,
    Symbol,
    Template,
    Tensor,
)
from clew.events.model import Gap
from clew.events.records import MODULE, NOTE, OP, STEP, Kept, Label, Opaque, Unseen
from clew.record import foreign
from clew.record.attributes import settled
from clew.record.numbering import Numbering, RecentNumbering
from clew.record.stacks import StackNode, place_of
from clew.record.storages import Memory, outside_memory, own_memory
from clew.stream.batch import TABLES, Batch
from clew.stream.records import (
    EVENT_FIELDS,
    SAME,
    VALUE_FIELDS,
    Extra,
    Note,
    Records,
    Step,
    Token,
    UnknownShape,
    tokens_in,
)
from clew.stream.redact import redacted

# Hand-overs after which a thread has mentioned what it had got tokens of, and the most values of
# each that are remembered for it.
_RECENT = 4
_RECENT_VALUES = 1024
# Writes to one memory that are remembered at least.
_SLACK = 8
# Constants that are kept as they are; anything else by its text.
PLAIN_TYPES = (type(None), bool, int, float, complex, str)


# Rows of tables and small counts, which half the width holds: a million events are many bytes.
_WIDTHS = dict.fromkeys(
    ("kind", "subject", "place", "template", "error", "version", "meta", "grad", "value_name",
     "generator", "draw"), np.int32,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a recording knows besides its records, as of now.

    `source` gives a file's text, `modes` those of all steps after one.
    """

    modules: list[ModuleRow]
    parameters: list[tuple[str, int, int]]
    threads: list[str]
    generators: list[str]
    modes: Callable[[int], dict[int, str]]
    gaps: list[Gap]
    source: Callable[[str], str | None]
    environment: dict[str, Any]


class Encoder:
    """Turns records into batches; knows what everything was numbered before.

    Of more than `templates` of those, the ones not used for longest are let go of: some have a
    constant that is another at each step.
    """

    def __init__(
        self,
        around: Callable[[], Surroundings],
        redact: bool = False,
        templates: float = inf,
    ) -> None:
        self._around = around
        self._redact = redact
        self.ops = Numbering()
        self.notes = Numbering()
        self.labels = Numbering()
        self.errors = Numbering()
        self.metas = Numbering()
        self.templates = RecentNumbering(templates)
        self.value_names = Numbering()
        # Stack nodes met, and places of other processes, each after the one above it.
        self._places = Numbering()
        # What the numbers of other processes are here.
        self._foreign: dict[str, foreign.Numbers] = {}
        # How many rows of each table, and which files and steps, earlier batches have.
        self._told = dict.fromkeys(TABLES, 0)
        self._sources: set[str] = set()
        self._last_mode = -1
        # Of the batch that is being made.
        self._rows: dict[str, list[int]] = {}
        self._kept: dict[int, Kept] = {}
        self._value_count = 0
        # id of a token -> number of its value
        self._numbers: dict[int, int] = {}
        # Tokens that another thread may have made, and not yet mentioned.
        self._recent: deque[list[Token]] = deque(maxlen=_RECENT)
        # storage -> writes to it in order: (the value written, its version, the event that wrote,
        # whether autograd follows it)
        self._heads: dict[int, list[tuple[int, int, int, int]]] = {}
        # (value, newest write to its memory) -> the value it has become
        self._renewed: dict[tuple[int, int], int] = {}
        # value -> (storage, meta, grad, name, version, producer), for values that may still be used
        self._alive: dict[int, tuple[int, int, int, int, int, int]] = {}
        self._memory = Memory()
        # value written by an event not yet encoded -> (storage, version, event)
        self._written: dict[int, tuple[int, int, int]] = {}

    def batch(self, records: Records) -> Batch:
        """Give what records say, and what has come to be known besides."""
        self._rows = {name: [] for name in COLUMN_NAMES}
        self._memory.learn(records)
        for at in range(0, len(records.values), VALUE_FIELDS):
            self._add_value(records.values[at : at + VALUE_FIELDS])
        for at in range(0, len(records.events), EVENT_FIELDS):
            self._add_event(records.events[at : at + EVENT_FIELDS])
        # One whose value came with an earlier batch and is gone since has nobody to ask for it.
        known = [(self._numbers.get(id(token)), kept) for token, kept in records.kept]
        self._kept = {
            n: made if isinstance(made, Kept) else made() for n, made in known if n is not None
        }
        for one in records.foreign:
            foreign.add(self, one, self._foreign.setdefault(one.source, foreign.Numbers()))
        for at in range(0, len(records.open_calls), EVENT_FIELDS):
            self._add_event(records.open_calls[at : at + EVENT_FIELDS])
        freed = self._freed(records)
        oldest = min(records.open_calls[::EVENT_FIELDS], default=inf)
        if records.is_shared:
            self._recent.append(records.values[::VALUE_FIELDS][-_RECENT_VALUES:])
        else:
            self._recent.clear()
        gone = self._forget([*records.surviving, *self._recent], oldest)
        rows = self._rows.items()
        around = self._around()
        modes = around.modes(self._last_mode)
        self._last_mode = max(modes, default=self._last_mode)
        tables = self._gained(around)
        batch = Batch(
            {name: np.array(column, _WIDTHS.get(name, np.int64)) for name, column in rows},
            len(records.open_calls) // EVENT_FIELDS,
            tables,
            self._kept,
            gone,
            freed,
            self.templates.let_go(),
            settled(records.attributes),
            modes,
            self._new_sources(tables["places"], around.source),
            around.environment,
        )
        return redacted(batch) if self._redact else batch

    def _gained(self, around: Surroundings) -> dict[str, list[Any]]:
        """Give the rows that the tables have gained."""
        held: dict[str, list[Any]] = {
            "ops": self.ops.rows,
            "modules": around.modules,
            "notes": self.notes.rows,
            "labels": self.labels.rows,
            "metas": self.metas.rows,
            "errors": self.errors.rows,
            "value_names": self.value_names.rows,
            "parameters": around.parameters,
            "threads": around.threads,
            "generators": around.generators,
            "gaps": around.gaps,
        }
        told = self._told
        gained = {name: rows[told[name] :] for name, rows in held.items()}
        gained["templates"] = self.templates.gained()
        gained["places"] = [
            row if isinstance(row, Place) else self._place_row(row)
            for row in self._places.rows[told["places"] :]
        ]
        for name, rows in gained.items():
            told[name] += len(rows)
        return gained

    def _new_sources(
        self, places: list[Place], source: Callable[[str], str | None]
    ) -> dict[str, str]:
        files = {p.file for p in places if not p.library and p.line > 0} - self._sources
        self._sources |= files
        texts = {file: source(file) for file in sorted(files)}
        return {file: text for file, text in texts.items() if text is not None}

    def _forget(self, surviving: list[Any], oldest: float) -> Ints:
        """Forget values that records to come will not mention; which.

        `oldest` is the first event that is still open.
        """
        before, numbers = self._alive, self._numbers
        # Of a token that another thread made just now, the value comes with the next records.
        known = [id(token) for token in tokens_in(surviving) if id(token) in numbers]
        self._numbers = {token: numbers[token] for token in known}
        used = set(self._numbers.values())
        for other in self._foreign.values():
            used.update(number for number, _ in other.values.values())
        self._alive = {number: before[number] for number in used}
        storages = {facts[0] for facts in self._alive.values()}
        self._heads = {
            storage: _since(self._heads[storage], oldest)
            for storage in storages
            if storage in self._heads
        }
        self._memory.forget(storages)
        self._written.clear()
        self._renewed.clear()
        return np.array([number for number in before if number not in self._alive], np.int64)

    def _add_value(self, record: list[Any]) -> None:
        token, version, storage, stride, dtype, device, extra, grad, producer, name, told = record
        if isinstance(storage, tuple) and id(storage) not in self._numbers:
            self._numbers[id(storage)] = self._lost(storage)
        number = self._value_count
        self._numbers[id(token)] = number
        key = (token, stride, dtype, device, extra)
        meta = self.metas.number(key, lambda: _meta(*key))
        named = -1 if name is None else self.value_names.number(name, lambda: name)
        if storage is None:
            # Numbers of its own for memory met as somebody's result, apart from the others.
            place, version = self.free_storage(), 0
        elif type(storage) is int:
            place, version = outside_memory(storage), -1 if version is None else version
        else:
            base = self._numbers[id(storage)]
            place = self._alive[base][0]
            if producer == SAME:
                version, producer = self._newest(base)
            elif version is None:
                version = -1
            else:
                self._written[number] = (place, version, producer)
        self.append_value(place, version, meta, grad, producer, named)
        if told is not None:
            self._memory.hold(place, told, grad)

    def _newest(self, value: int) -> tuple[int, int]:
        """The version a value has come to by writes to its memory, and the event that made it."""
        storage, _, _, _, version, producer = self._alive[value]
        for _, written, writer, _ in self._heads.get(storage, ())[-1:]:
            version, producer = written, writer
        for place, written, writer in self._written.values():
            if place == storage:
                version, producer = written, writer
        return version, producer

    def free_storage(self) -> int:
        """The number of memory that the next value is the first to have."""
        return own_memory(self._value_count)

    def keep(self, value: int, kept: Kept) -> None:
        """Keep more of a value than its facts."""
        self._kept[value] = kept

    def append_value(
        self, storage: int, version: int, meta: int, grad: int, producer: int, name: int
    ) -> int:
        """Add a value; its number."""
        number = self._value_count
        self._value_count += 1
        rows = self._rows
        rows["version"].append(version)
        rows["storage"].append(storage)
        rows["meta"].append(meta)
        rows["grad"].append(grad)
        rows["producer"].append(producer)
        rows["value_name"].append(name)
        rows["nbytes"].append(self._memory.size(storage, number, self.metas.rows[meta]))
        rows["freed"].append(-1)
        self._alive[number] = (storage, meta, grad, name, version, producer)
        return number

    def _freed(self, records: Records) -> Ints:
        """Note whose memory is gone; of values in earlier batches also before which op."""
        first = self._value_count - len(self._rows["freed"])
        earlier: list[tuple[int, int]] = []
        for number, event in self._memory.freed(records):
            if number >= first:
                self._rows["freed"][number - first] = event
            else:
                earlier.append((number, event))
        found: Ints = np.array(earlier, np.int64).reshape(-1, 2).T
        return found

    def _add_event(self, record: list[Any]) -> None:
        event, subject, node, parent, start, end, number, args, kwargs, out, error, seen = record
        kind, subject_number = self._subject(subject)
        key: list[Any] = []
        inputs: list[int] = []
        outputs: list[int] = []
        self._flatten(args, key, inputs)
        self._flatten(kwargs, key, inputs)
        self._flatten(out, key, outputs)
        template = self.templates.number(tuple(key), lambda: _template(args, kwargs, out))
        if self._heads:
            inputs = [self._as_of(value, event) for value in inputs]
            if type(subject) is Label:
                # It was looked at, not made.
                outputs = [self._as_of(value, event) for value in outputs]
        if self._written and type(subject) is not Label:
            for value in outputs:
                write = self._written.pop(value, None)
                if write is not None:
                    storage, version, producer = write
                    head = (value, version, producer, self._alive[value][2])
                    self._heads.setdefault(storage, []).append(head)
        self.append_event(
            [*inputs, *outputs], id=event, kind=kind, subject=subject_number,
            place=self._place(node), parent=parent, start=start, end=end,
            number=-2 - self._numbers[id(number)] if isinstance(number, tuple) else number,
            template=template,
            error=-1 if error is None else self.errors.number(error, lambda: error),
            generator=seen[1] if type(seen) is tuple else -1,
            draw=seen[2] if type(seen) is tuple else -1,
        )  # fmt: skip

    def append_event(self, refs: list[int], **fields: int) -> None:
        """Add an event with the values it has."""
        rows = self._rows
        for name, item in fields.items():
            rows[name].append(item)
        rows["first_ref"].append(len(rows["refs"]))
        rows["refs"] += refs

    def _place(self, node: StackNode) -> int:
        """The number of a stack node; those above it come before it."""
        number = self._places.get(node.index)
        if number is None:
            if node.parent is not None:
                self._place(node.parent)
            number = self._places.number(node.index, lambda: node)
        return number

    def _place_row(self, node: StackNode) -> Place:
        return place_of(node, -1 if node.parent is None else self._places[node.parent.index])

    def template_number(self, template: Template) -> int:
        """The number of a template of another process; it may hold lists, which have no hash."""
        return self.templates.number(repr(template), lambda: template)

    def place_number(self, place: Place) -> int:
        """The number of a place in another process."""
        return self._places.number(place, lambda: place)

    def _subject(self, subject: Any) -> tuple[int, int]:
        if type(subject) is Note:
            return NOTE, self.notes.number(subject, lambda: str(subject))
        if type(subject) is Step:
            return STEP, int(subject)
        if type(subject) is Label:
            return subject.kind, self.labels.number(subject, lambda: subject)
        index = getattr(subject, "index", None)
        if isinstance(index, int):
            return MODULE, index
        return OP, self.ops.number(id(subject), lambda: str(subject))

    def _flatten(self, described: Any, key: list[Any], values: list[int]) -> None:
        """Append what is constant about a described value to `key`, its tensors to `values`."""
        cls = type(described)
        if isinstance(described, tuple):
            key.append(Tensor)
            number = self._numbers.get(id(described))
            values.append(self._lost(described) if number is None else number)
        elif cls is list:
            key.append(len(described))
            for item in described:
                self._flatten(item, key, values)
        elif cls is dict:
            key.append(tuple(described))
            for item in described.values():
                self._flatten(item, key, values)
        else:
            # The type too: 1, 1.0 and True are equal.
            key.append((cls, described if cls is int else repr(described)))

    def _lost(self, token: Token) -> int:
        """A value of which only the shape is left: a thread was held up before its event."""
        key = (token, None, "unknown", None, None)
        return self.append_value(
            self.free_storage(), 0, self.metas.number(key, lambda: _meta(*key)), 0, -1, -1
        )

    def _adopt(self, value: int, head: int, producer: int) -> None:
        """Credit a value of unknown origin, met after a write to its memory, to that write."""
        at = value - (self._value_count - len(self._rows["producer"]))
        if head >= 0 and at >= 0 and self._rows["producer"][at] == -1:
            self._rows["producer"][at] = producer

    def _as_of(self, value: int, event: int) -> int:
        """The value a tensor has when an event begins: another if its memory was written since."""
        storage, meta, grad, name, _, _ = self._alive[value]
        writes = (w for w in reversed(self._heads.get(storage, ())) if w[2] < event)
        head, version, producer, followed = next(writes, (-1, 0, 0, 0))
        if head <= value:
            self._adopt(value, head, producer)
            return value
        renewed = self._renewed.get((value, head))
        if renewed is None:
            # Memory that a tensor with a gradient was written to has one as a whole.
            grad = grad or followed
            renewed = self.append_value(storage, version, meta, grad, producer, name)
            self._renewed[value, head] = renewed
        return renewed


def _since(writes: list[tuple[int, int, int, int]], event: float) -> list[Any]:
    """The writes to some memory that an event may see, or one after it: the last before, and on.

    A few more, for events that other threads are at.
    """
    before = sum(write[2] < event for write in writes)
    return writes[max(0, before - _SLACK) :]


def _meta(shape: Any, stride: Any, dtype: Any, device: Any, extra: Extra | None) -> Meta:
    return Meta(
        dtype=str(dtype).replace("torch.", ""),
        shape=None if isinstance(shape, UnknownShape) else tuple(shape),
        stride=None if stride is None else tuple(stride),
        device="" if device is None else str(device),
        layout="strided" if extra is None else extra.layout,
        cls="Tensor" if extra is None else extra.cls,
        placements=None if extra is None else extra.placements,
        local_shape=None if extra is None else extra.local_shape,
    )


def _template(args: Any, kwargs: Any, out: Any) -> Template:
    leaves = [leaf for i, arg in enumerate(args) for leaf in _leaves(IN, str(i), arg)]
    return Template((*leaves, *_leaves(IN, "", kwargs or {}), *_leaves(OUT, "", out)))


def _leaves(role: str, path: str, described: Any) -> Iterator[Leaf]:
    if isinstance(described, tuple):
        yield Leaf(role, path, Tensor)
    elif type(described) is list:
        if all(type(item) is int for item in described):
            yield Leaf(role, path, described)
            return
        for index, item in enumerate(described):
            yield from _leaves(role, _joined(path, str(index)), item)
    elif type(described) is dict:
        for name, item in described.items():
            yield from _leaves(role, _joined(path, name), item)
    elif described is Unseen:
        yield Leaf(role, path, Unseen)
    elif not (role == OUT and described is None):
        yield Leaf(role, path, _constant(described))


def _constant(described: Any) -> Any:
    if type(described) in PLAIN_TYPES:
        return described
    return ObjectClass(described) if type(described) is Opaque else Symbol(described)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
