"""Encode the raw records of this process as batches of plain integers.

Objects become rows of tables, tokens become value numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from clew.events.columns import EVENT_COLUMNS, ModuleRow, Tensor
from clew.events.model import Gap
from clew.events.vocabulary import Kept, Label
from clew.record import foreign
from clew.record.attributes import settled
from clew.record.record_tables import RecordTables
from clew.record.value_columns import ValueColumns
from clew.stream.batch import Batch
from clew.stream.records import EVENT_FIELDS, EVENT_ROW, NativeRows, Records
from clew.stream.redact import redacted

# Rows of tables and small counts fit in half the width: a million events are many bytes.
_WIDTHS = dict.fromkeys(
    ("kind", "subject", "place", "template", "error", "version", "meta", "grad", "value_name",
     "generator", "draw"), np.int32,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a recording knows besides its records, at this moment.

    `source` returns a file's text, `modes` the modes of all steps after a given one.
    """

    modules: list[ModuleRow]
    parameters: list[tuple[str, int, int]]
    threads: list[str]
    generators: list[str]
    modes: Callable[[int], dict[int, str]]
    gaps: list[Gap]
    source: Callable[[str], str | None]
    environment: dict[str, Any]


def _open_calls(records: Records) -> int:
    count = len(records.open_calls) // EVENT_FIELDS
    if records.native is None:
        return count
    return count + len(records.native.open_calls) // EVENT_ROW.itemsize


class Encoder:
    """Turns records into batches; remembers the number of everything numbered before.

    It keeps at most about `templates` templates, and drops those not used for longest.
    """

    def __init__(
        self,
        around: Callable[[], Surroundings],
        redact: bool = False,
        templates: float = inf,
    ) -> None:
        self._around = around
        self._redact = redact
        self.tables = RecordTables(templates)
        self.values = ValueColumns(self.tables)
        # For each other process, the numbers that its rows and values have here.
        self._foreign: dict[str, foreign.Numbers] = {}
        self._last_mode = -1
        # Columns of the batch that is being made.
        self._columns: dict[str, list[int]] = {}
        self._refs: list[int] = []

    def batch(self, records: Records) -> Batch:
        """Return a batch of records, and of what changed in their surroundings since the last."""
        values = self.values
        self._columns = {name: [] for name in EVENT_COLUMNS}
        self._refs = []
        values.begin(records)
        self._add_events(records.events)
        # A value of an earlier batch that is gone has no number, and nobody can ask for its data.
        known = [(values.number(token), kept) for token, kept in records.kept]
        kept = {} if records.native is None else values.native_numbers.kept(records.native)
        kept |= {
            n: made if isinstance(made, Kept) else made() for n, made in known if n is not None
        }
        for one in records.foreign:
            numbers = self._foreign.setdefault(one.source, foreign.Numbers())
            kept |= foreign.add(self, one, numbers)
        self._add_events(records.open_calls)
        events = self._joined_events(records.native)
        freed = values.freed(records)
        elsewhere = (n for other in self._foreign.values() for n, _ in other.values.values())
        oldest = min(records.open_calls[::EVENT_FIELDS], default=inf)
        gone = values.forget(records, elsewhere, oldest)
        around = self._around()
        modes = around.modes(self._last_mode)
        self._last_mode = max(modes, default=self._last_mode)
        tables = self._gained(around)
        columns = events | values.arrays()
        batch = Batch(
            {name: np.asarray(c, _WIDTHS.get(name, np.int64)) for name, c in columns.items()},
            _open_calls(records),
            tables,
            kept,
            gone,
            freed,
            self.tables.templates.let_go(),
            settled(records.attributes),
            modes,
            self.tables.new_sources(tables["places"], around.source),
            around.environment,
        )
        return redacted(batch) if self._redact else batch

    def _joined_events(self, native: NativeRows | None) -> dict[str, Any]:
        """Return the columns of all events: those of the native engine, then those of Python.

        Open calls come last, those of Python before those of the native engine.
        """
        columns: dict[str, Any] = {**self._columns, "refs": self._refs}
        if native is None:
            return columns
        numbers = self.values.native_numbers
        events = numbers.events(native)
        over = len(native.events) // EVENT_ROW.itemsize
        # An empty list would be one of floats, which cannot hold the numbers of two nodes.
        of_python = {name: np.array(column, np.int64) for name, column in columns.items()}
        firsts, refs = events["first_ref"], of_python.pop("refs")
        # The tensors of events are in the order of the events.
        split = int(firsts[over]) if len(firsts) > over else len(numbers.refs)
        of_python["first_ref"] += split
        events["first_ref"] = np.append(firsts[:over], firsts[over:] + len(refs))
        joined = {
            name: np.concatenate((events[name][:over], column, events[name][over:]))
            for name, column in of_python.items()
        }
        all_refs = np.concatenate((numbers.refs[:split], refs, numbers.refs[split:]))
        return {**joined, "refs": all_refs}

    def _gained(self, around: Surroundings) -> dict[str, list[Any]]:
        return self.tables.gained(
            {
                "modules": around.modules,
                "parameters": around.parameters,
                "threads": around.threads,
                "generators": around.generators,
                "gaps": around.gaps,
            }
        )

    def _add_events(self, events: list[Any]) -> None:
        """Add events from their flat records, a whole column at once wherever possible."""
        ids, subjects, nodes, parents, starts, ends, numbers, *calls, errors, seen = (
            events[field::EVENT_FIELDS] for field in range(EVENT_FIELDS)
        )
        columns, tables = self._columns, self.tables
        of_subject = [tables.subject(subject) for subject in subjects]
        columns["id"] += ids
        columns["kind"] += [kind for _, kind, _ in of_subject]
        columns["subject"] += [number for _, _, number in of_subject]
        columns["place"] += [tables.place(node) for node in nodes]
        columns["parent"] += parents
        columns["start"] += starts
        columns["end"] += ends
        token_number: Any = self.values.number
        columns["number"] += [
            -2 - token_number(number) if isinstance(number, tuple) else number for number in numbers
        ]
        columns["error"] += [-1 if text is None else tables.error(text) for text in errors]
        columns["generator"] += [one[1] if type(one) is tuple else -1 for one in seen]
        columns["draw"] += [one[2] if type(one) is tuple else -1 for one in seen]
        self._add_calls(ids, subjects, calls)

    def _add_calls(self, ids: list[int], subjects: list[Any], calls: list[list[Any]]) -> None:
        """Add the arguments and results of events, and follow what the events wrote to."""
        values, tables, refs = self.values, self.tables, self._refs
        alive, writes, unencoded = values.alive, values.writes, values.unencoded
        add_template = self._columns["template"].append
        add_first = self._columns["first_ref"].append
        for event, subject, args, kwargs, out in zip(ids, subjects, *calls, strict=True):
            key: list[Any] = []
            inputs: list[int] = []
            outputs: list[int] = []
            self._flatten(args, key, inputs)
            if kwargs:
                self._flatten(kwargs, key, inputs)
            key.append(None)
            self._flatten(out, key, outputs)
            add_template(tables.template(tuple(key), args, kwargs, out))
            was_made = type(subject) is not Label  # a label's event reads its value
            if writes:
                inputs = [
                    values.as_of(value, event) if alive[value][0] in writes else value
                    for value in inputs
                ]
                if not was_made:
                    outputs = [
                        values.as_of(value, event) if alive[value][0] in writes else value
                        for value in outputs
                    ]
            if unencoded and was_made:
                values.wrote(outputs)
            add_first(len(refs))
            refs += inputs
            refs += outputs

    def append_event(self, refs: list[int], **fields: int) -> None:
        """Add one event with the numbers of its values."""
        columns = self._columns
        for name, item in fields.items():
            columns[name].append(item)
        columns["first_ref"].append(len(self._refs))
        self._refs += refs

    def _flatten(self, described: Any, key: list[Any], values: list[int]) -> None:
        """Append a value's nesting and constants to `key`, its tensors' numbers to `values`."""
        cls = type(described)
        if cls is list:
            key.append(len(described))
            items = described
        elif cls is dict:
            key.append(tuple(described))
            items = described.values()
        else:
            items = (described,)
        for item in items:
            cls = type(item)
            if isinstance(item, tuple):
                key.append(Tensor)
                number = self.values.number(item)
                values.append(self.values.lost(item) if number is None else number)
            elif cls is list or cls is dict:
                self._flatten(item, key, values)
            else:
                # The type too: 1, 1.0 and True are equal.
                key.append((cls, item if cls is int else repr(item)))
