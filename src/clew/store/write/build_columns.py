"""Compaction: raw records in, columns and tables out, about a hundred bytes an event.

Also the place where writes are followed: a tensor that shares memory with one that was written
to is a new value from then on, made by the op that wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.events.columns import (
    COLUMN_NAMES,
    IN,
    OUT,
    Ints,
    Leaf,
    Meta,
    Symbol,
    Template,
    Tensor,
)
from clew.events.records import (
    EVENT_FIELDS,
    MODULE,
    NOTE,
    OP,
    SAME,
    STEP,
    VALUE_FIELDS,
    Batch,
    Extra,
    Kept,
    Label,
    Note,
    Step,
    UnknownShape,
    Unseen,
    tokens_in,
)

# Constants that are kept as they are; anything else by its text.
PLAIN_TYPES = (type(None), bool, int, float, complex, str)


# Rows of tables and small counts, which half the width holds: a million events are many bytes.
_WIDTHS = dict.fromkeys(
    ("kind", "subject", "place", "template", "error", "version", "meta", "grad",
     "value_name"), np.int32,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """The rows one batch adds to each column, and what was kept of its values."""

    columns: dict[str, Ints]
    kept: dict[int, Kept]


class Table:
    """Numbers for things that repeat, in order of first use."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def get(self, key: Any) -> int | None:
        """The number of `key` if it has one."""
        return self._numbers.get(key)

    def number(self, key: Any, make: Callable[[], Any]) -> int:
        """The number of `key`, whose row is made when it is new."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.rows)
            self.rows.append(make())
        return number


class Tables:
    """The tables that columns refer to."""

    def __init__(self) -> None:
        self.ops = Table()
        self.notes = Table()
        self.labels = Table()
        self.errors = Table()
        self.metas = Table()
        self.templates = Table()
        self.value_names = Table()


class Compactor(Tables):
    """Turns batches of raw records into rows of columns, and keeps the tables they refer to."""

    def __init__(self) -> None:
        super().__init__()
        # Stack nodes met, as capture handed them over, each after the one above it.
        self.nodes = Table()
        self._rows: dict[str, list[int]] = {}
        self._ref_count = 0
        self.value_count = 0
        # id of a token -> number of its value
        self._numbers: dict[int, int] = {}
        # storage -> writes to it in order: (the value written, its version, the event that wrote,
        # whether autograd follows it)
        self._heads: dict[int, list[tuple[int, int, int, int]]] = {}
        # (value, newest write to its memory) -> the value it has become
        self._renewed: dict[tuple[int, int], int] = {}
        # value -> (storage, meta, grad, name, version, producer), for values that may still be used
        self._alive: dict[int, tuple[int, int, int, int, int, int]] = {}
        # value written by an event not yet compacted -> (storage, version, event)
        self._written: dict[int, tuple[int, int, int]] = {}

    @property
    def alive(self) -> Collection[int]:
        """The values that events to come may mention."""
        return self._alive.keys()

    def compact(self, batch: Batch) -> Part:
        """The rows of a batch."""
        self._rows = {name: [] for name in COLUMN_NAMES}
        for at in range(0, len(batch.values), VALUE_FIELDS):
            self._add_value(batch.values[at : at + VALUE_FIELDS])
        for at in range(0, len(batch.events), EVENT_FIELDS):
            self._add_event(batch.events[at : at + EVENT_FIELDS])
        # One whose value came with an earlier batch and is gone since has nobody to ask for it.
        known = [(self._numbers.get(id(token)), kept) for token, kept in batch.kept]
        kept = {n: made if isinstance(made, Kept) else made() for n, made in known if n is not None}
        self._forget(batch.surviving)
        return Part(self._taken(), kept)

    def compact_open(self, open_calls: list[Any]) -> Part:
        """The rows of calls that are still open, which come again when they end."""
        self._rows = {name: [] for name in COLUMN_NAMES}
        refs = self._ref_count
        for at in range(0, len(open_calls), EVENT_FIELDS):
            self._add_event(open_calls[at : at + EVENT_FIELDS])
        self._ref_count = refs
        return Part(self._taken(), {})

    def _taken(self) -> dict[str, Ints]:
        rows = self._rows.items()
        return {name: np.array(column, _WIDTHS.get(name, np.int64)) for name, column in rows}

    def _forget(self, surviving: list[Any]) -> None:
        self._numbers = {id(token): self._numbers[id(token)] for token in tokens_in(surviving)}
        self._alive = {number: self._alive[number] for number in set(self._numbers.values())}
        self._written.clear()
        self._renewed.clear()

    def _add_value(self, record: list[Any]) -> None:
        token, version, storage, stride, dtype, device, extra, grad, producer, name = record
        number = self.value_count
        self._numbers[id(token)] = number
        key = (token, stride, dtype, device, extra)
        meta = self.metas.number(key, lambda: _meta(*key))
        named = -1 if name is None else self.value_names.number(name, lambda: name)
        if storage is None:
            # Numbers of its own for memory met as somebody's result, apart from the others.
            place, version = 2 * number + 1, 0
        elif type(storage) is int:
            place, version = 2 * storage, -1 if version is None else version
        else:
            base = self._numbers[id(storage)]
            place = self._alive[base][0]
            if producer == SAME:
                version, producer = self._newest(base)
            elif version is None:
                version = -1
            else:
                self._written[number] = (place, version, producer)
        self._append_value(place, version, meta, grad, producer, named)

    def _newest(self, value: int) -> tuple[int, int]:
        """The version a value has come to by writes to its memory, and the event that made it."""
        storage, _, _, _, version, producer = self._alive[value]
        for _, written, writer, _ in self._heads.get(storage, ())[-1:]:
            version, producer = written, writer
        for place, written, writer in self._written.values():
            if place == storage:
                version, producer = written, writer
        return version, producer

    def _append_value(
        self, storage: int, version: int, meta: int, grad: int, producer: int, name: int
    ) -> int:
        number = self.value_count
        self.value_count += 1
        rows = self._rows
        rows["version"].append(version)
        rows["storage"].append(storage)
        rows["meta"].append(meta)
        rows["grad"].append(grad)
        rows["producer"].append(producer)
        rows["value_name"].append(name)
        self._alive[number] = (storage, meta, grad, name, version, producer)
        return number

    def _add_event(self, record: list[Any]) -> None:
        event, subject, node, parent, start, end, number, args, kwargs, out, error = record
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
        rows = self._rows
        rows["id"].append(event)
        rows["kind"].append(kind)
        rows["subject"].append(subject_number)
        rows["place"].append(self._place(node))
        rows["parent"].append(parent)
        rows["start"].append(start)
        rows["end"].append(end)
        rows["number"].append(
            -2 - self._numbers[id(number)] if isinstance(number, tuple) else number
        )
        rows["template"].append(template)
        rows["first_ref"].append(self._ref_count)
        rows["error"].append(-1 if error is None else self.errors.number(error, lambda: error))
        rows["refs"] += inputs
        rows["refs"] += outputs
        self._ref_count += len(inputs) + len(outputs)

    def _place(self, node: Any) -> int:
        """The number of a stack node; those above it come before it."""
        number = self.nodes.get(node.index)
        if number is None:
            if node.parent is not None:
                self._place(node.parent)
            number = self.nodes.number(node.index, lambda: node)
        return number

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
            values.append(self._numbers[id(described)])
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

    def _adopt(self, value: int, head: int, producer: int) -> None:
        """Credit a value of unknown origin, met after a write to its memory, to that write."""
        at = value - (self.value_count - len(self._rows["producer"]))
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
            renewed = self._append_value(storage, version, meta, grad, producer, name)
            self._renewed[value, head] = renewed
        return renewed


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
        yield Leaf(role, path, described if type(described) in PLAIN_TYPES else Symbol(described))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
