"""Columns made sound: whatever was read, every number points at a row that is there.

In come the arrays and tables of a trace as its files have them, perhaps with holes or nonsense;
out come arrays that views and analyses can follow without looking out. What had to be replaced is
told as gaps: an event keeps its place even if its name, its line or its tensors are lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import VALUE_COLUMNS, Ints, Place
from clew.events.model import Gap
from clew.events.records import LABELLED, MODULE, NOTE, OP
from clew.store.format.tables import TABLES

# Calls nested deeper than a program that runs is likely to call.
_DEEPEST = 1 << 14
_SUBJECTS = {MODULE: "module", OP: "op", NOTE: "note", **dict.fromkeys(LABELLED, "label")}


class Repair:
    """Replaces what is lost, and counts it."""

    def __init__(self, tables: dict[str, dict[int, Any]], where: str) -> None:
        self._where = where
        self._lost: dict[str, int] = {}
        self.rows = {
            name: self._listed(tables[name], name, kind.lost)
            for name, kind in TABLES.items()
            if kind.lost is not None
        }
        self._order_places()
        self.rows["parameter"] = [
            row
            for _, row in sorted(tables["parameter"].items())
            if 0 <= row[1] < len(self.rows["module"]) and row[2] >= 0
        ]

    @property
    def gaps(self) -> list[Gap]:
        """What was lost."""
        return [
            Gap(f"{count} {what}", self._where, "the files have no row for them, or a damaged one",
                "the rest is shown")
            for what, count in self._lost.items()
            if count
        ]  # fmt: skip

    def values(self, numbers: Ints, columns: dict[str, Ints]) -> dict[str, Ints]:
        """Columns of values in order of their numbers, with rows for those that are lost.

        The last one, which stands for any other, is there only if it is needed.
        """
        most = 16 * len(numbers) + (1 << 20)
        fits = (numbers >= 0) & (numbers < most)
        numbers = numbers[fits]
        count = int(numbers.max()) + 1 if len(numbers) else 0
        found = np.zeros(count, dtype=bool)
        found[numbers] = True
        self._lose("values", count - int(found.sum()))
        whole = {
            "version": np.zeros(count, dtype=np.int64),
            "storage": -1 - np.arange(count, dtype=np.int64),
            "grad": np.zeros(count, dtype=np.int64),
            "producer": np.full(count, -1, dtype=np.int64),
            "value_name": np.full(count, -1, dtype=np.int64),
            "meta": np.full(count, -1, dtype=np.int64),
        }
        for name, column in whole.items():
            column[numbers] = columns[name][fits]
        self._point(whole, "meta", "meta", "looks of values")
        named = whole["value_name"]
        named[(named < -1) | (named >= len(self.rows["value_name"]))] = -1
        return whole

    def refs(self, refs: Ints, values: dict[str, Ints]) -> Ints:
        """References to values, those to nowhere turned to a value that says nothing."""
        count = len(values["meta"])
        astray = (refs < 0) | (refs >= count)
        if astray.any():
            self._lose("tensors of events", int(astray.sum()))
            refs = np.where(astray, count, refs)
            extra = {"version": 0, "storage": -1 - count, "grad": 0, "producer": -1,
                     "value_name": -1, "meta": len(self.rows["meta"])}  # fmt: skip
            self.rows["meta"].append(TABLES["meta"].lost)
            for name in VALUE_COLUMNS:
                values[name] = np.append(values[name], extra[name])
        return refs

    def events(self, columns: dict[str, Ints], values: int) -> None:
        """Repair the columns of events in place; they are in order of their ids."""
        self._point(columns, "place", "place", "places in the code")
        self._point(columns, "template", "template", "argument lists")
        for kind, table in _SUBJECTS.items():
            self._point_subjects(columns, kind, table)
        number = columns["number"]
        owner = -2 - np.where(columns["kind"] == OP, number, 0)
        number[owner >= values] = -1
        number[(columns["kind"] != OP) & (number < -1)] = -1
        self._fit_tensors(columns)
        self._nest(columns)

    def name_threads(self) -> None:
        """Give every thread that a place names some name."""
        names: list[str] = self.rows["thread"]
        most = max((place.thread + 1 for place in self.rows["place"]), default=0)
        names += [f"thread {number}" for number in range(len(names), most)]

    def _listed(self, found: dict[int, Any], table: str, lost: Any) -> list[Any]:
        """The rows of a table in order, with something in the place of those that are lost."""
        most = 16 * len(found) + (1 << 16)
        count = max((number for number in found if 0 <= number < most), default=-1) + 1
        self._lose(f"rows of the {table} table", count - sum(0 <= n < count for n in found))
        return [found.get(number, lost) for number in range(count)]

    def _order_places(self) -> None:
        places: list[Place] = self.rows["place"]
        for number, place in enumerate(places):
            if not -1 <= place.parent < number:
                self._lose("places in the code", 1)
                places[number] = TABLES["place"].lost

    def _point(self, columns: dict[str, Ints], column: str, table: str, what: str) -> None:
        """Point what points outside a table at a row that says nothing."""
        rows = self.rows[table]
        pointers = columns[column]
        astray = (pointers < 0) | (pointers >= len(rows))
        if astray.any():
            pointers[astray] = len(rows)
            rows.append(TABLES[table].lost)
            if column != "meta":
                self._lose(f"{what} of events", int(astray.sum()))

    def _point_subjects(self, columns: dict[str, Ints], kind: int, table: str) -> None:
        rows = self.rows[table]
        subject = columns["subject"]
        astray = (columns["kind"] == kind) & ((subject < 0) | (subject >= len(rows)))
        if astray.any():
            subject[astray] = len(rows)
            rows.append(TABLES[table].lost)
            self._lose(f"{table} names of events", int(astray.sum()))

    def _fit_tensors(self, columns: dict[str, Ints]) -> None:
        """An event has as many tensors as its arguments say, or its arguments are lost."""
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
        """Every parent is a module call that began before, and nesting has an end."""
        ids, parent = columns["id"], columns["parent"]
        rows = np.searchsorted(ids, parent)
        rows[rows >= len(ids)] = 0
        there = (parent >= 0) & (parent < ids)
        if len(ids):
            there &= (ids[rows] != parent) | (columns["kind"][rows] == MODULE)
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
