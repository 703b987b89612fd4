"""Addresses resolved against a trace: which events and values a name stands for.

In come a `Reader` and an address, out comes a `Selection` or a `NoMatch` with the nearest names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from clew.address import (
    ROLES,
    Address,
    Segment,
    compile_pattern,
    has_wildcard,
    join,
    matches_file,
    matches_op,
    nearest,
    parse,
    written,
)
from clew.errors import ClewError, NoMatch, NotRecorded
from clew.events.display import Shown
from clew.events.labels import is_named
from clew.events.model import Event, Source, Value, Values
from clew.events.records import GRADIENT, MODULE, OP, PREFIX, RECOMPUTE, TAP, VARIABLE
from clew.store.reader import Reader

_LISTED = 10


class Selection(Shown, Sequence[Event]):
    """The events an address stands for, in order."""

    def __init__(
        self, address: str, events: list[Event], role: str, field: tuple[Segment, ...] = ()
    ) -> None:
        self.address = address
        self._events = events
        self.role = role
        self._field = field

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> Event | Selection:
        if isinstance(index, slice):
            return Selection(self.address, self._events[index], self.role, self._field)
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @property
    def values(self) -> list[Value]:
        """The values named: the outputs, or what `:in` or `:out.path` says."""
        return [value for event in self._events for _, value in self.items_of(event)]

    @property
    def one(self) -> Event:
        """The one event of the selection."""
        if len(self._events) != 1:
            raise ClewError(f"{self.address!r} stands for {_counted(self._events)}; {_pick(self)}")
        return self._events[0]

    @property
    def stats(self) -> list[Any]:
        """Statistics of each value, None where none were taken."""
        return [value.stats for value in self.values]

    @property
    def inputs(self) -> Values:
        """The inputs of the one event."""
        return self.one.inputs

    @property
    def outputs(self) -> Values:
        """The outputs of the one event."""
        return self.one.outputs

    @property
    def output(self) -> Value:
        """The one output of the one event."""
        outputs = self.one.outputs
        if len(outputs) != 1:
            paths = ", ".join(outputs) or "none"
            raise ClewError(
                f"{self.address!r} has {len(outputs)} outputs ({paths}); "
                "take one from .outputs, or write :out.<path>"
            )
        return next(iter(outputs.values()))

    @property
    def value(self) -> Any:
        """The data of the one value, as NumPy."""
        values = self.values
        if len(values) != 1:
            raise ClewError(f"{self.address!r} stands for {len(values)} values; {_pick(self)}")
        return values[0].array()

    def items_of(self, event: Event) -> list[tuple[str, Value]]:
        """The values named of one of the events, with their paths in its inputs or outputs."""
        found = event.inputs if self.role == "in" else event.outputs
        return _items_at(found, self._field) if self._field else list(found.items())

    def to_dict(self) -> dict[str, Any]:
        """The events as plain data, with the address they were asked for by."""
        return {"address": self.address, "events": [event.to_dict() for event in self]}

    def __repr__(self) -> str:
        return f"<Selection {self.address!r}: {_counted(self._events)}>"


def _items_at(values: Values, field: tuple[Segment, ...]) -> list[tuple[str, Value]]:
    """The values at a path and inside it, or at every path that a pattern names."""
    path, items = ".".join(map(str, field)), list(values.items())
    if path == "0" and list(values) == [""]:
        return items
    found = [(p, v) for p, v in items if p == path or p.startswith(path + ".")]
    if found or not has_wildcard(join(field)):
        return found
    matcher = compile_pattern(join((*field, "**")))
    return [(p, v) for p, v in items if matcher(p)]


def _counted(events: list[Event]) -> str:
    kinds = {event.kind for event in events}
    noun = "call" if kinds == {"module"} else "event"
    return f"{len(events)} {noun}{'' if len(events) == 1 else 's'}"


def _pick(selection: Selection) -> str:
    names = [event.address for event in selection._events]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"pick one of: {', '.join(names[:_LISTED])}{more}"


def select(readers: list[Reader], text: str) -> Selection:
    """The events that an address stands for, on all ranks."""
    address = parse(text)
    events, names = _events(readers, address)
    if not events:
        raise _miss(readers, address, names)
    role = "in" if address.role == "in" else "out"
    selection = Selection(text, events, role, address.field)
    if address.field and not selection.values:
        path = ".".join(map(str, address.field))
        side = "inputs" if address.role == "in" else "outputs"
        there = sorted({p for event in events for p in getattr(event, side)})
        raise NoMatch(text, nearest(path, there), f"the paths {', '.join(map(repr, there))}")
    return selection


def _events(readers: list[Reader], address: Address) -> tuple[list[Event], list[str]]:
    """What an address names, and the names among which it was looked for."""
    finder = {"op": _ops, "line": _lines}.get(address.kind, _named)
    found = [(reader, *finder(reader, address)) for reader in readers]
    events = [reader.event(int(row)) for reader, rows, _ in found for row in rows]
    return events, sorted({name for _, _, names in found for name in names})


def _miss(readers: list[Reader], address: Address, names: list[str]) -> ClewError:
    """Why nothing has an address, and what is there instead."""
    text = address.text
    beyond_calls = address.role not in (None, "in", "out")
    if beyond_calls or address.kind == "function":
        gaps = [gap for r in readers for gap in r.columns.gaps if gap.where == text]
        if gaps:
            return NotRecorded(f"{text!r} was asked for, but {gaps[0].why}; {gaps[0].remedy}")
        what = f"':{address.role}'" if beyond_calls else "a local variable of a function"
        kin = [n for n in names if ":" in n and _role_in(n) == (address.role or "")]
        there = nearest(text, kin)
        held = f"; nearest that it holds: {', '.join(map(repr, there))}" if there else ""
        return NotRecorded(
            f"{text!r} asks for {what}, which this trace does not hold; record it with "
            f"clew.trace(capture=[{text!r}]){held}"
        )
    if address.call is not None:
        others = _events(readers, replace(address, call=None))[0]
        if others:
            last = [event.address for event in others[-_LISTED:]]
            return NoMatch(text, last, f"the {_counted(others)} there are")
    idle = _idle_modules(readers[0], address)
    among = f"the modules that ran ({idle[0]!r} did not)" if idle else "the recorded names"
    return NoMatch(text, nearest(_sought(address), names), among)


def _role_in(name: str) -> str:
    """The role that a name ends with, empty where a file ends with the colon."""
    role = name.rpartition(":")[2].partition(".")[0]
    return role if role in ROLES else ""


def _named(reader: Reader, address: Address) -> tuple[Any, list[str]]:
    """Calls of modules, and values that have names of their own, such as variables and taps."""
    rows, names = _labelled(reader, address)
    if address.kind == "path" and address.role in (None, "in", "out"):
        calls, called = _modules(reader, address)
        rows, names = np.union1d(rows, calls), [*called, *names]
    return rows, names


def _labelled(reader: Reader, address: Address) -> tuple[Any, list[str]]:
    c = reader.columns
    if address.role == "out" and address.field:
        # What is inside a container that has a name of its own.
        address = replace(address, role=None)
    if address.role in ("in", "out"):
        return np.zeros(0, dtype=np.int64), []
    wanted = [n for n, label in enumerate(c.labels) if is_named(address, label)]
    rows = np.flatnonzero(np.isin(c.kind, (VARIABLE, TAP, GRADIENT)) & np.isin(c.subject, wanted))
    rows = rows[reader.phase[rows] != RECOMPUTE]
    if address.call is not None:
        rows = rows[reader.call_index[rows] == address.call]
    return rows, _label_names(reader)


def _label_names(reader: Reader) -> list[str]:
    """What variables, taps and gradients go by, whatever the call."""
    found = {
        label.stem + (f":{label.role}" if label.role else "")
        for label in reader.columns.labels
        if label.kind != PREFIX
    }
    return sorted(found)


def _idle_modules(reader: Reader, address: Address) -> list[str]:
    """Modules that an address names and that exist, though none of them ran."""
    if address.kind != "path" or address.call is not None:
        return []
    matcher = compile_pattern(address.path)
    return sorted(m.path for m in reader.columns.modules if matcher(written(m.path)))


def address_of(event: Event, role: str, path: str, with_call: bool = False) -> str:
    """The address of one input or output of an event, of whatever call unless told otherwise."""
    subject, counted, tail = event.address.rpartition("#")
    call, _, own_role = tail.partition(":")
    if not counted:
        subject, own_role = event.address, ""
    elif with_call:
        subject += f"#{call}"
    if own_role:  # a gradient, a parameter, what a callback kept of an input
        return f"{subject}:{own_role}.{path}" if path else f"{subject}:{own_role}"
    if role == "in":
        return f"{subject}:in.{path}" if path else f"{subject}:in"
    return f"{subject}:out.{path}" if path else subject


def find(readers: list[Reader], pattern: str) -> Selection:
    """Events whose module path, class, op or variable name contains or matches a pattern."""
    events = [event for reader in readers for event in _find(reader, pattern)]
    if not events:
        names = {name for reader in readers for name in _all_names(reader)}
        raise NoMatch(pattern, nearest(pattern, sorted(names)))
    return Selection(pattern, events, "out")


def _find(reader: Reader, pattern: str) -> list[Event]:
    c = reader.columns
    wanted = pattern.lower()
    globbed = compile_pattern(pattern)
    known: dict[tuple[int, int], bool] = {}

    def matches(row: int) -> bool:
        key = int(c.kind[row]), int(c.subject[row])
        if key not in known:
            texts = [reader.name(row)]
            if key[0] == MODULE:
                texts += _aliases(reader, key[1])
            elif key[0] != OP:
                texts.append(c.labels[key[1]].stem)
            known[key] = any(wanted in t.lower() or globbed(t) for t in texts) or (
                key[0] == OP and matches_op(pattern, texts[0])
            )
        return known[key]

    kinds = (MODULE, OP, VARIABLE, TAP, GRADIENT)
    rows = (r for r in range(len(reader)) if c.kind[r] in kinds)
    return [reader.event(row) for row in rows if matches(row)]


def _sought(address: Address) -> str:
    return address.text if address.kind == "line" else address.path


def _all_names(reader: Reader) -> list[str]:
    named = _label_names(reader)
    return [*(m.path for m in reader.columns.modules), *reader.columns.ops, *named]


def _aliases(reader: Reader, subject: int) -> list[str]:
    modules = reader.columns.modules
    return [m.path for m in modules if m.number == modules[subject].number]


def _modules(reader: Reader, address: Address) -> tuple[Any, list[str]]:
    c = reader.columns
    rows = reader.rows(MODULE)
    rows = rows[reader.phase[rows] != RECOMPUTE]
    matcher = compile_pattern(address.path)
    found = _calls_of(reader, rows, {m.number for m in c.modules if matcher(written(m.path))})
    if address.call is not None:
        found = found[c.number[found] == address.call]
        if not len(found):
            # `Net#2` is the third call of Net; where there is none, the second root of that class.
            root = f"{address.path}#{address.call}"
            found = _calls_of(reader, rows, {m.number for m in c.modules if m.path == root})
    return found, sorted({written(c.modules[int(s)].path) for s in c.subject[rows]})


def _calls_of(reader: Reader, rows: Any, numbers: set[int]) -> Any:
    """Those of some rows that are calls of some modules."""
    c = reader.columns
    called = np.isin([c.modules[s].number for s in c.subject[rows]], list(numbers))
    return _without_wrappers(reader, rows[called])


def _without_wrappers(reader: Reader, rows: Any) -> Any:
    """Drop calls of wrappers whose wrapped module, of the same path, was seen as well."""
    c = reader.columns
    modules = [c.modules[int(s)] for s in c.subject[rows]]
    seen = {m.path for m in modules if not m.wrapper}
    keep = [not (m.wrapper and m.path in seen) for m in modules]
    return rows[np.array(keep, dtype=bool)]


def _ops(reader: Reader, address: Address) -> tuple[Any, list[str]]:
    c = reader.columns
    wanted = [i for i, name in enumerate(c.ops) if matches_op(address.path, name)]
    rows = reader.rows(OP)
    rows = rows[np.isin(c.subject[rows], wanted)]
    if address.call is not None:
        rows = rows[address.call : address.call + 1]
    return rows, [f"op:{name}" for name in c.ops]


def _lines(reader: Reader, address: Address) -> tuple[Any, list[str]]:
    rows, seen = [], set()
    sources: dict[tuple[int, int], Source | None] = {}
    for row in range(len(reader)):
        if reader.columns.kind[row] not in (MODULE, OP):
            continue
        # A backward op takes its line from its forward op, others called alike do not.
        forward = int(reader.forward_row[row])
        places = reader.columns.place
        key = int(places[row]), int(places[forward]) if forward >= 0 else -1
        if key not in sources:
            sources[key] = reader.source(row)
        source = sources[key]
        if source is None:
            continue
        seen.add(f"line:{source.file}:{source.line}")
        if source.line <= (address.line or 0) <= source.end_line and matches_file(
            address.path, source.file
        ):
            rows.append(row)
    return rows, sorted(seen)
