"""Resolve addresses in a trace: which events and values an address names.

Input: a `Run` and an address. Output: a `Selection` or a `NoMatch` with the nearest names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from clew.address import (
    ROLES,
    Address,
    Segment,
    compile_path,
    compile_pattern,
    has_wildcard,
    join,
    matches_file,
    matches_op,
    nearest,
    parse,
    written,
)
from clew.analysis.listing import ROWS, event_cells, full_address, lines
from clew.errors import ClewError, NoMatch, NotRecorded
from clew.events.columns import Ints
from clew.events.labels import is_named
from clew.events.notebook_port import Shown
from clew.events.vocabulary import (
    GRADIENT,
    MODULE,
    OF_OPS,
    OP,
    PREFIX,
    RECOMPUTE,
    TAP,
    VARIABLE,
)
from clew.plain_text import plain
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value, Values

_LISTED = 10


class Selection(Shown, Sequence[Event]):
    """The events an address names, in order; `print` lists them."""

    def __init__(
        self, run: Run, address: str, rows: Ints, role: str, field: tuple[Segment, ...] = ()
    ) -> None:
        self._run = run
        self.address = address
        self._rows = rows
        self.role = role
        self._field = field

    @cached_property
    def _events(self) -> list[Event]:
        return [self._run.event(row) for row in self._rows.tolist()]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> Event | Selection:
        if isinstance(index, slice):
            return Selection(self._run, self.address, self._rows[index], self.role, self._field)
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @property
    def values(self) -> list[Value]:
        """Return the values the address names: the outputs, or those of `:in` or `:out.path`."""
        return [value for event in self._events for _, value in self.items_of(event)]

    @property
    def one(self) -> Event:
        """Return the only event of the selection."""
        if len(self._events) != 1:
            raise ClewError(f"{self.address!r} stands for {_counted(self._events)}; {_pick(self)}")
        return self._events[0]

    @property
    def stats(self) -> list[Any]:
        """Return statistics of each value, None where none were recorded."""
        return [value.stats for value in self.values]

    @property
    def inputs(self) -> Values:
        """Return the inputs of the only event."""
        return self.one.inputs

    @property
    def outputs(self) -> Values:
        """Return the outputs of the only event."""
        return self.one.outputs

    @property
    def output(self) -> Value:
        """Return the only output of the only event."""
        outputs = self.one.outputs
        if len(outputs) != 1:
            paths = plain(", ".join(outputs)) or "none"
            raise ClewError(
                f"{self.address!r} has {len(outputs)} outputs ({paths}); "
                "take one from .outputs, or write :out.<path>"
            )
        return next(iter(outputs.values()))

    @property
    def value(self) -> Any:
        """Return the data of the only value, as NumPy."""
        values = self.values
        if len(values) != 1:
            raise ClewError(f"{self.address!r} stands for {len(values)} values; {_pick(self)}")
        return values[0].array()

    def items_of(self, event: Event) -> list[tuple[str, Value]]:
        """Return the values of one event that the address names, with their paths."""
        found = event.inputs if self.role == "in" else event.outputs
        return _items_at(found, self._field) if self._field else list(found.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the events as plain data, with the address."""
        return {"address": self.address, "events": [event.to_dict() for event in self]}

    def cells(self) -> list[tuple[str, ...]]:
        """Return the first events as rows of short texts, for lists."""
        return [
            event_cells(self._run, event, [value for _, value in self.items_of(event)])
            for event in self._events[:ROWS]
        ]

    def __str__(self) -> str:
        listed = [repr(self), *lines(self.cells())]
        left_out = len(self) - ROWS
        if left_out > 0:
            listed.append(f"  ... {left_out:,} more; take a part with [{ROWS}:]")
        return "\n".join(listed)

    def __repr__(self) -> str:
        return f"<Selection {self.address!r}: {_counted(self._events)}>"


def _items_at(values: Values, field: tuple[Segment, ...]) -> list[tuple[str, Value]]:
    """Return the values at a path and inside it, or at every path that a pattern matches."""
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
    run = selection._run
    listed = [plain(full_address(run, row)) for row in selection._rows[:_LISTED].tolist()]
    more = f" and {len(selection) - _LISTED} more" if len(selection) > _LISTED else ""
    return f"pick one of: {', '.join(listed)}{more}"


def select(run: Run, text: str) -> Selection:
    """Find the events that an address names, on all ranks or on the one it gives."""
    address = parse(text)
    if address.rank is not None and address.rank not in run.ranks:
        listed = ", ".join(map(str, run.ranks))
        raise ClewError(f"{text!r} asks for rank {address.rank}; the trace has {listed}")
    rows, known = _rows(run, address)
    if not len(rows):
        raise _miss(run, address, known)
    role = "in" if address.role == "in" else "out"
    selection = Selection(run, text, rows, role, address.field)
    if address.field and not selection.values:
        path = ".".join(map(str, address.field))
        side = "inputs" if address.role == "in" else "outputs"
        there = sorted({p for event in selection for p in getattr(event, side)})
        raise NoMatch(text, nearest(path, there), f"the paths {', '.join(map(repr, there))}")
    return selection


def _rows(run: Run, address: Address) -> tuple[Ints, list[str]]:
    """Find what an address names, and the names among which it was searched."""
    finder = {"op": _ops, "line": _lines}.get(address.kind, _named)
    rows, known = finder(run, address)
    if address.rank is not None:
        rows = rows[run.rank[rows] == address.rank]
    return rows, sorted(set(known))


def _miss(run: Run, address: Address, known: list[str]) -> ClewError:
    """Make the error for an address that nothing has, with what is there instead."""
    text = address.text
    beyond_calls = address.role not in (None, "in", "out")
    if beyond_calls or address.kind == "function":
        gaps = [gap for gap in run.coverage if gap.where == text]
        if gaps:
            why = plain(f"{gaps[0].why}; {gaps[0].remedy}")
            return NotRecorded(f"{text!r} was asked for, but {why}")
        what = f"':{address.role}'" if beyond_calls else "a local variable of a function"
        kin = [n for n in known if ":" in n and _role_in(n) == (address.role or "")]
        there = nearest(text, kin)
        held = f"; nearest that it holds: {', '.join(map(repr, there))}" if there else ""
        return NotRecorded(
            f"{text!r} asks for {what}, which this trace does not hold; record it with "
            f"clew.trace(capture=[{text!r}]){held}"
        )
    if address.call is not None or address.rank is not None:
        others, _ = _rows(run, replace(address, call=None, rank=None))
        if len(others):
            listed = [full_address(run, int(row)) for row in others[-_LISTED:]]
            events = run.events(others, "events")
            return NoMatch(text, listed, f"the {_counted(list(events))} there are")
    idle = _idle_modules(run, address)
    among = f"the modules that ran ({idle[0]!r} did not)" if idle else "the recorded names"
    return NoMatch(text, nearest(_sought(address), known), among)


def names(run: Run) -> list[str]:
    """Return the addresses of modules that ran and of named values, without call numbers."""
    _, called = _modules(run, parse("**"))
    return [*dict.fromkeys([*called, *_label_names(run)])]


def _role_in(name: str) -> str:
    """Return the role that a name ends with, empty if the colon belongs to a file."""
    role = name.rpartition(":")[2].partition(".")[0]
    return role if role in ROLES else ""


def _named(run: Run, address: Address) -> tuple[Ints, list[str]]:
    """Find calls of modules, and named values such as variables and taps."""
    rows, names = _labelled(run, address)
    if address.kind == "path" and address.role in (None, "in", "out"):
        calls, called = _modules(run, address)
        rows, names = np.union1d(rows, calls), [*called, *names]
    return rows, names


def _labelled(run: Run, address: Address) -> tuple[Ints, list[str]]:
    c = run.columns
    if address.role == "out" and address.field:
        # The address may lead into a container that has a name.
        address = replace(address, role=None)
    if address.role in ("in", "out"):
        return np.zeros(0, dtype=np.int64), []
    wanted = [n for n, label in enumerate(c.labels) if is_named(address, label)]
    rows = np.flatnonzero(np.isin(c.kind, (VARIABLE, TAP, GRADIENT)) & np.isin(c.subject, wanted))
    rows = rows[run.phase[rows] != RECOMPUTE]
    if address.call is not None:
        rows = rows[run.call[rows] == address.call]
    return rows, _label_names(run)


def _label_names(run: Run) -> list[str]:
    """Return the names of variables, taps and gradients, without call numbers."""
    found = {
        label.stem + (f":{label.role}" if label.role else "")
        for label in run.columns.labels
        if label.kind != PREFIX
    }
    return sorted(found)


def _idle_modules(run: Run, address: Address) -> list[str]:
    """Return modules that an address names and that exist, though none of them ran."""
    if address.kind != "path" or address.call is not None:
        return []
    matcher = compile_path(address.path)
    return sorted(m.path for m in run.columns.modules if matcher(m.path))


def address_of(event: Event, role: str, path: str, with_call: bool = False) -> str:
    """Return the address of one input or output of an event; `with_call` adds the call number."""
    subject, counted, tail = event.address.rpartition("#")
    call, _, own_role = tail.partition(":")
    if not counted:
        subject, own_role = event.address, ""
    elif with_call:
        subject += f"#{call}"
    if own_role:  # a gradient, a parameter, the result of a callback on an input
        return f"{subject}:{own_role}.{path}" if path else f"{subject}:{own_role}"
    if role == "in":
        return f"{subject}:in.{path}" if path else f"{subject}:in"
    return f"{subject}:out.{path}" if path else subject


def find(run: Run, pattern: str) -> Selection:
    """Find events whose module path, class, op, variable or role contains or matches a pattern."""
    c = run.columns
    wanted = pattern.lower()
    globbed = compile_pattern(pattern)
    rows = np.zeros(len(run), dtype=bool)
    for kind in (MODULE, *OF_OPS, VARIABLE, TAP, GRADIENT):
        mine = run.rows(kind)
        found = [
            subject
            for subject in np.unique(c.subject[mine]).tolist()
            if any(wanted in text.lower() or globbed(text) for text in _texts(run, kind, subject))
            or (kind in OF_OPS and matches_op(pattern, c.ops[subject]))
        ]
        rows[mine[np.isin(c.subject[mine], found)]] = True
    if not rows.any():
        raise NoMatch(pattern, nearest(pattern, sorted(_all_names(run))))
    return Selection(run, pattern, np.flatnonzero(rows), "out")


def _texts(run: Run, kind: int, subject: int) -> list[str]:
    """Return everything that events of a subject may be found by."""
    c = run.columns
    if kind == MODULE:
        return [c.modules[subject].cls, *_aliases(run, subject)]
    if kind in OF_OPS:
        return [c.ops[subject]]
    label = c.labels[subject]
    return [label.name, label.stem, f"{label.stem}:{label.role}"] if label.role else [
        label.name, label.stem
    ]  # fmt: skip


def _sought(address: Address) -> str:
    return address.text if address.kind == "line" else address.path


def _all_names(run: Run) -> list[str]:
    named = _label_names(run)
    return [*(m.path for m in run.columns.modules), *run.columns.ops, *named]


def _aliases(run: Run, subject: int) -> list[str]:
    modules = run.columns.modules
    return [m.path for m in modules if m.number == modules[subject].number]


def _modules(run: Run, address: Address) -> tuple[Ints, list[str]]:
    c = run.columns
    rows = run.rows(MODULE)
    rows = rows[run.phase[rows] != RECOMPUTE]
    matcher = compile_path(address.path)
    found = _calls_of(run, rows, {m.number for m in c.modules if matcher(m.path)})
    if address.call is not None:
        found = found[run.call[found] == address.call]
        if not len(found):
            # `Net#2` is the third call of Net; where there is none, the second root of that class.
            root = f"{address.path}#{address.call}"
            found = _calls_of(run, rows, {m.number for m in c.modules if m.path == root})
    return found, sorted({written(c.modules[int(s)].path) for s in c.subject[rows]})


def _calls_of(run: Run, rows: Ints, numbers: set[int]) -> Ints:
    """Return those of some rows that are calls of some modules."""
    c = run.columns
    called = np.isin([c.modules[s].number for s in c.subject[rows]], list(numbers))
    return _without_wrappers(run, rows[called])


def _without_wrappers(run: Run, rows: Ints) -> Ints:
    """Drop calls of wrappers if the wrapped module, of the same path, was recorded as well."""
    c = run.columns
    modules = [c.modules[int(s)] for s in c.subject[rows]]
    seen = {m.path for m in modules if not m.wrapper}
    keep = [not (m.wrapper and m.path in seen) for m in modules]
    return np.asarray(rows[np.array(keep, dtype=bool)])


def _ops(run: Run, address: Address) -> tuple[Ints, list[str]]:
    """Find ops, and the composites that an address names; `op:aten.*` names none of them."""
    c = run.columns
    wanted = [i for i, name in enumerate(c.ops) if matches_op(address.path, name)]
    # A name without its namespace, or what follows that.
    spelt = address.segments[1:] or address.segments
    kinds = OF_OPS if any(str(text).strip("*") for text in spelt) else (OP,)
    rows = np.flatnonzero(np.isin(c.kind, kinds) & np.isin(c.subject, wanted))
    if address.call is not None and len(wanted) == 1:
        rows = rows[run.call[rows] == address.call]
    elif address.call is not None:
        rows = np.concatenate([_nth(rows, run.process, rank, address.call) for rank in run.ranks])
    return rows, [f"op:{name}" for name in c.ops]


def _nth(rows: Ints, process: Ints, rank: int, call: int) -> Ints:
    """Return the n-th of some rows on a rank; ops of several names are counted together."""
    found: Ints = rows[process[rows] == rank][call : call + 1]
    return found


def _lines(run: Run, address: Address) -> tuple[Ints, list[str]]:
    source = run.derived.source
    calls_and_ops = np.isin(run.columns.kind, (MODULE, OP)) & (source >= 0)
    found, seen = [], set()
    for number in np.unique(source[calls_and_ops]).tolist():
        place = run.columns.places[number]
        seen.add(f"line:{place.file}:{place.line}")
        on_line = place.line <= (address.line or 0) <= place.end_line
        if on_line and matches_file(address.path, place.file):
            found.append(number)
    return np.flatnonzero(calls_and_ops & np.isin(source, found)), sorted(seen)
