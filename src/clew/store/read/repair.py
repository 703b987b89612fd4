"""Repair columns: whatever was read, every number refers to an existing row.

Input: the arrays and tables of a trace as its files have them, perhaps with holes or nonsense.
Output: arrays that views and analyses can follow without checks. Replaced rows are reported as
gaps: an event keeps its position even if its name, its line or its tensors are lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clew.events.columns import Ints, Place
from clew.events.model import Gap
from clew.events.vocabulary import COMPOSITE, LABELLED, MODULE, NOTE, OF_OPS
from clew.store.format.table_list import TABLES

# Deeper nesting than a running program is likely to have.
_DEEPEST = 1 << 14
_SUBJECTS = {
    MODULE: "module",
    NOTE: "note",
    **dict.fromkeys(OF_OPS, "op"),
    **dict.fromkeys(LABELLED, "label"),
}


class Repair:
    """Replaces what is lost, and counts it.

    Rows keep their order, not their numbers: a file may number them in any way. A reference to a
    number becomes the row that has it, or an empty row.
    """

    def __init__(self, tables: dict[str, dict[int, object]], where: str) -> None:
        self._where = where
        self._lost: dict[str, int] = {}
        self.rows: dict[str, list[Any]] = {}
        self._numbers: dict[str, Ints] = {}
        self._values: Ints = np.zeros(0, dtype=np.int64)
        for name, kind in TABLES.items():
            if kind.lost is not None:
                self._list(name, tables[name])
        self._order_places()
        self._number_threads()
        self._list_parameters(tables["parameter"])

    @property
    def gaps(self) -> list[Gap]:
        """Return gaps for what was lost."""
        return [
            Gap(f"{count} {what}", self._where, "the files have no row for them, or a damaged one",
                "the rest is shown")
            for what, count in self._lost.items()
            if count
        ]  # fmt: skip

    def values(self, found: dict[str, Ints], refs: Ints) -> dict[str, Ints]:
        """Return columns of values in order of their numbers, with a row for each that is lost.

        `refs` are the value numbers that events refer to.
        """
        numbers = found.pop("value")
        # Of a value that was written twice the last row counts.
        known, last = np.unique(numbers[::-1], return_index=True)
        rows = (len(numbers) - 1 - last)[known >= 0]
        known = known[known >= 0]
        self._values = known if _is_dense(known, refs) else np.union1d(known, refs[refs >= 0])
        count = len(self._values)
        self._lose("values", count - len(known))
        # The last one replaces any lost one, and is added only if needed.
        astray = int((refs < 0).sum())
        self._lose("tensors of events", astray)
        size = count + (astray > 0)
        whole = {
            "version": np.zeros(size, dtype=np.int64),
            "storage": -1 - np.arange(size, dtype=np.int64),
            "grad": np.zeros(size, dtype=np.int64),
            "producer": np.full(size, -1, dtype=np.int64),
            "value_name": np.full(size, -1, dtype=np.int64),
            "meta": np.full(size, -1, dtype=np.int64),
            "nbytes": np.full(size, -1, dtype=np.int64),
        }
        at = slice(count) if count == len(known) else np.searchsorted(self._values, known)
        for name, column in whole.items():
            column[at] = found[name][rows]
        whole["value_name"] = self._rows_of("value_name", whole["value_name"])
        self._point(whole, "meta", "meta", "looks of values")
        return whole

    def late(self, numbers: Ints, facts: Ints, size: int) -> Ints:
        """Return a column of facts that were recorded later than their values; -1 for none."""
        column = np.full(size, -1, dtype=np.int64)
        there = np.flatnonzero(facts >= 0)
        rows = self.value_rows(numbers[there])
        column[rows[rows >= 0]] = facts[there][rows >= 0]
        return column

    def value_rows(self, numbers: Ints) -> Ints:
        """Return the rows of values by their numbers, -1 for a value that does not exist."""
        return rows_of(self._values, numbers)

    def refs(self, refs: Ints) -> Ints:
        """Return the rows of the values that events refer to."""
        rows = self.value_rows(refs)
        return np.where(rows >= 0, rows, len(self._values)) if (rows < 0).any() else rows

    def events(self, columns: dict[str, Ints]) -> None:
        """Repair the columns of events in place; they are in order of their ids."""
        self._point(columns, "place", "place", "places in the code")
        self._point(columns, "template", "template", "argument lists")
        generator = self._rows_of("generator", columns["generator"])
        columns["draw"] = np.where(generator >= 0, columns["draw"], -1)
        columns["generator"] = generator
        for kind, table in _SUBJECTS.items():
            self._point_subjects(columns, kind, table)
        self._point_owners(columns)
        self._fit_tensors(columns)
        self._nest(columns)

    def place_rows(self, numbers: Ints) -> Ints:
        """Return the rows of places by their numbers, -1 for a place that does not exist."""
        return self._rows_of("place", numbers)

    def _list(self, table: str, found: dict[int, object]) -> None:
        """List the rows of a table in order of their numbers."""
        most = 16 * len(found) + (1 << 16)
        numbers = sorted(number for number in found if 0 <= number < most)
        count = numbers[-1] + 1 if numbers else 0
        self._lose(f"rows of the {table} table", count - len(numbers))
        self._numbers[table] = np.array(numbers, dtype=np.int64)
        self.rows[table] = [found[number] for number in numbers]

    def _rows_of(self, table: str, numbers: Ints) -> Ints:
        return rows_of(self._numbers[table], numbers)

    def _order_places(self) -> None:
        """Sort places so that each comes after its caller."""
        places: list[Place] = self.rows["place"]
        numbers = self._numbers["place"].tolist()
        rows = {number: row for row, number in enumerate(numbers)}
        for row, (number, place) in enumerate(zip(numbers, places, strict=True)):
            if not -1 <= place.parent < number:
                self._lose("places in the code", 1)
                places[row] = TABLES["place"].lost
            elif place.parent != rows.get(place.parent, -1):
                places[row] = replace(place, parent=rows.get(place.parent, -1))

    def _number_threads(self) -> None:
        """Return every thread that a place names a name, and number threads consecutively."""
        names = dict(zip(self._numbers["thread"].tolist(), self.rows["thread"], strict=True))
        places: list[Place] = self.rows["place"]
        threads = sorted({*names, *(place.thread for place in places)})
        rows = {number: row for row, number in enumerate(threads)}
        self.rows["thread"] = [names.get(number, f"thread {number}") for number in threads]
        if threads[-1:] != [len(threads) - 1]:
            for row, place in enumerate(places):
                places[row] = replace(place, thread=rows[place.thread])

    def _list_parameters(self, found: dict[int, Any]) -> None:
        ordered = [row for _, row in sorted(found.items())]
        owners = self._rows_of("module", np.array([row[1] for row in ordered], dtype=np.int64))
        self.rows["parameter"] = [
            (path, owner, count)
            for (path, _, count), owner in zip(ordered, owners.tolist(), strict=True)
            if owner >= 0 and count >= 0
        ]

    def _point(self, columns: dict[str, Ints], column: str, table: str, what: str) -> None:
        """Turn numbers into rows; a reference outside a table gets an empty row."""
        rows = self._rows_of(table, columns[column])
        columns[column] = rows
        astray = rows < 0
        if astray.any():
            rows[astray] = len(self.rows[table])
            self.rows[table].append(TABLES[table].lost)
            if column != "meta":
                self._lose(f"{what} of events", int(astray.sum()))

    def _point_owners(self, columns: dict[str, Ints]) -> None:
        """Set the parameter's value row for an op that accumulates a gradient."""
        number = columns["number"]
        number[~np.isin(columns["kind"], OF_OPS) & (number < -1)] = -1
        mine = np.flatnonzero(number < -1)
        rows = self.value_rows(-2 - number[mine])
        number[mine] = np.where(rows >= 0, -2 - rows, -1)

    def _point_subjects(self, columns: dict[str, Ints], kind: int, table: str) -> None:
        mine = np.flatnonzero(columns["kind"] == kind)
        rows = self._rows_of(table, columns["subject"][mine])
        astray = rows < 0
        if astray.any():
            rows[astray] = len(self.rows[table])
            self.rows[table].append(TABLES[table].lost)
            self._lose(f"{table} names of events", int(astray.sum()))
        columns["subject"][mine] = rows

    def _fit_tensors(self, columns: dict[str, Ints]) -> None:
        """Drop the arguments of events that do not have as many tensors as their template."""
        templates = self.rows["template"]
        if not len(columns["id"]):
            return
        needed = np.array([len(t.tensors) for t in templates], dtype=np.int64)
        wrong = needed[columns["template"]] != columns["ref_count"]
        if wrong.any():
            columns["template"][wrong] = len(templates)
            templates.append(TABLES["template"].lost)
            self._lose("argument lists of events", int(wrong.sum()))

    def _nest(self, columns: dict[str, Ints]) -> None:
        """Make every parent a call that began before, so that nesting ends."""
        ids, parent = columns["id"], columns["parent"]
        rows = np.searchsorted(ids, parent)
        rows[rows >= len(ids)] = 0
        there = (parent >= 0) & (parent < ids)
        if len(ids):
            there &= (ids[rows] != parent) | np.isin(columns["kind"][rows], (MODULE, COMPOSITE))
        self._lose("parents of events", int((~there & (parent >= 0)).sum()))
        parent[~there] = -1
        above = np.where(there & (ids[rows] == parent), rows, -1) if len(ids) else rows
        for _ in range(_DEEPEST.bit_length() - 1):
            if not (above >= 0).any():
                return
            above = np.where(above >= 0, above[above], -1)
        deep = above >= 0
        if deep.any():
            self._lose("parents of events", int(deep.sum()))
            parent[deep] = -1

    def _lose(self, what: str, count: int) -> None:
        if count:
            self._lost[what] = self._lost.get(what, 0) + count


def _is_dense(numbers: Ints, refs: Ints) -> bool:
    """Return whether numbers count up from 0 and include all that is referred to."""
    if len(numbers) and numbers[-1] != len(numbers) - 1:
        return False
    return not len(refs) or int(refs.max()) < len(numbers)


def rows_of(known: Ints, wanted: Ints) -> Ints:
    """Return the rows of numbers in a sorted array, -1 for those that are not in it."""
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    if known[-1] == len(known) - 1:
        return np.where((wanted >= 0) & (wanted < len(known)), wanted, -1)
    at = np.searchsorted(known, wanted)
    at[at == len(known)] = 0
    return np.where(known[at] == wanted, at, -1)
