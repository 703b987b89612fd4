"""Several ranks as one: their columns in sequence, their tables joined.

Input: the columns of each rank with their derived facts. Output: columns in which a row is a row of
the whole run. Ids of events become rows; numbers of values, threads and places are shifted so that
those of two ranks differ; what ranks have in common (ops, modules, shapes) is in the tables once,
so that ranks can be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clew.events.columns import (
    DERIVED_COLUMNS,
    EVENT_COLUMNS,
    VALUE_COLUMNS,
    Columns,
    Derived,
    Ints,
    ModuleRow,
)
from clew.events.vocabulary import COMPOSITE, LABELLED, MODULE, NOTE, OF_OPS, Kept
from clew.run.event_table import ranks
from clew.run.lookup import find
from clew.run.value_stats import numbers_with_data


@dataclass(frozen=True, slots=True)
class Joined:
    """All ranks: columns whose times count from the beginning of the run, and rows for ids."""

    columns: Columns
    derived: Derived
    rank: Ints
    parent_row: Ints
    composite_row: Ints
    owner_row: Ints
    forward_row: Ints
    producer_row: Ints


# The arrays of `Joined`.
_ROWS = ("rank", "parent_row", "composite_row", "owner_row", "forward_row", "producer_row")


def joined(parts: list[tuple[Columns, Derived]]) -> Joined:
    """Join ranks, which are in order."""
    began = min((_time(c) for c, _ in parts if _time(c)), default=0.0)
    if len(parts) == 1:
        columns, derived = parts[0]
        return _rows(replace(columns, **_times(columns, began)), derived)
    tables = _Tables()
    pieces = [
        _rows(tables.moved(replace(c, **_times(c, began))), tables.moved_derived(d, n), first)
        for n, ((c, d), first) in enumerate(zip(parts, _first_rows(parts), strict=True))
    ]
    first = pieces[0].columns
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(p.columns, name) for p in pieces])
        for name in (*EVENT_COLUMNS, "refs", *VALUE_COLUMNS)
    }
    facts: dict[str, Any] = {
        name: np.concatenate([getattr(p.derived, name) for p in pieces]) for name in DERIVED_COLUMNS
    }
    columns = replace(
        first,
        **arrays,
        **tables.lists(),
        kept=_KeptOfRanks([p.columns.kept for p in pieces], [len(p.columns.meta) for p in pieces]),
        sources={f: text for p in reversed(pieces) for f, text in p.columns.sources.items()},
        gaps=list(dict.fromkeys(gap for p in pieces for gap in p.columns.gaps)),
        damage=[gap for p in pieces for gap in p.columns.damage],
    )
    rows = {name: np.concatenate([getattr(p, name) for p in pieces]) for name in _ROWS}
    return Joined(columns, Derived(**facts, **tables.texts()), **rows)


def _time(c: Columns) -> float:
    return float(c.environment.get("time") or 0.0)


def _times(c: Columns, began: float) -> dict[str, Any]:
    """Return times in nanoseconds since the first rank began, by the time of day."""
    # A rank without a starting time is taken to have begun with the first.
    after = round((_time(c) - began) * 1e9) if _time(c) else 0
    offset = after - int(c.environment.get("clock") or 0)
    return {"start": c.start + offset, "end": np.where(c.end >= 0, c.end + offset, -1)}


def _rows(c: Columns, derived: Derived, first: int = 0) -> Joined:
    def moved(ids: Ints) -> Ints:
        rows = find(c.id, ids)
        return np.where((ids >= 0) & (rows >= 0), rows + first, -1)

    parent, composite = _nesting(c)
    return Joined(
        c,
        derived,
        ranks(c, c.rank),
        np.where(parent >= 0, parent + first, -1),
        np.where(composite >= 0, composite + first, -1),
        moved(derived.owner),
        moved(derived.forward),
        moved(c.producer),
    )


def _nesting(c: Columns) -> tuple[Ints, Ints]:
    """Return for each row the module call it ran in, and the innermost composite; -1 for none."""
    around = np.where(c.parent >= 0, find(c.id, c.parent), -1)
    is_inside = (around >= 0) & (c.kind[around] == COMPOSITE)
    composite = np.where(is_inside, around, -1)
    parent = around
    while is_inside.any():
        parent = np.where(is_inside, around[parent], parent)
        is_inside = (parent >= 0) & (c.kind[parent] == COMPOSITE)
    return parent, composite


def _first_rows(parts: list[tuple[Columns, Derived]]) -> list[int]:
    sizes = [len(c.id) for c, _ in parts]
    return [sum(sizes[:n]) for n in range(len(sizes))]


# The tables that all ranks share.
_TABLES = (
    "ops", "notes", "labels", "templates", "metas", "errors", "value_names", "modules",
    "generators",
)  # fmt: skip


class _Numbered:
    """Things of several ranks, numbered in order of first use."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self._numbers: dict[Hashable, int] = {}

    def numbers(self, things: list[Any], key: Callable[[Any], Hashable]) -> Ints:
        """Return the numbers of a rank's things, with -1 last, for the number -1."""
        found = []
        for thing in things:
            number = self._numbers.setdefault(key(thing), len(self.rows))
            if number == len(self.rows):
                self.rows.append(thing)
            found.append(number)
        return np.array([*found, -1], dtype=np.int64)


class _Tables:
    """Tables of all ranks, and the new number of each rank's rows."""

    def __init__(self) -> None:
        # By the names of the columns' tables.
        self._numbered: defaultdict[str, _Numbered] = defaultdict(_Numbered)
        self._objects: dict[tuple[str, str], int] = {}
        self._places: list[object] = []
        self._threads: list[str] = []
        self._parameters: dict[str, tuple[str, int, int]] = {}
        self._values = self._refs = 0
        self._storages = 0
        self._first_place: list[int] = []

    def moved(self, c: Columns) -> Columns:
        """Return a rank's columns with the numbers of the joined tables."""
        metas = self._numbered["metas"].numbers(c.metas, lambda meta: meta)
        names = self._numbered["value_names"].numbers(c.value_names, str)
        templates = self._numbered["templates"].numbers(c.templates, repr)
        errors = self._numbered["errors"].numbers(c.errors, str)
        modules = self._moved_modules(c)
        first_place = len(self._places)
        self._first_place.append(first_place)
        self._places += [
            replace(
                place,
                parent=place.parent + first_place if place.parent >= 0 else -1,
                thread=place.thread + len(self._threads),
            )
            for place in c.places
        ]
        most = max((place.thread for place in c.places), default=-1)
        self._threads += [*c.threads, *map(str, range(len(c.threads), most + 1))]
        subject = c.subject.copy()
        for kinds, numbers in (
            ((MODULE,), modules),
            (OF_OPS, self._numbered["ops"].numbers(c.ops, str)),
            ((NOTE,), self._numbered["notes"].numbers(c.notes, str)),
            (LABELLED, self._numbered["labels"].numbers(c.labels, lambda label: label)),
        ):
            mine = np.isin(c.kind, kinds)
            subject[mine] = numbers[subject[mine]]
        values, refs = self._values, self._refs
        self._values += len(c.meta)
        self._refs += len(c.refs)
        at_value = np.isin(c.kind, OF_OPS) & (c.number <= -2)
        storages, storage = np.unique(c.storage, return_inverse=True)
        self._storages += len(storages)
        return replace(
            c,
            subject=subject,
            place=c.place + first_place,
            number=np.where(at_value, c.number - values, c.number),
            template=templates[c.template],
            first_ref=c.first_ref + refs,
            error=errors[c.error],
            refs=c.refs + values,
            meta=metas[c.meta],
            value_name=names[c.value_name],
            storage=storage + self._storages - len(storages),
            generator=self._numbered["generators"].numbers(c.generators, str)[c.generator],
        )

    def _moved_modules(self, c: Columns) -> Ints:
        """Number modules by their names: the same name on two ranks is the same module."""
        first: dict[int, tuple[str, str]] = {}
        for module in c.modules:
            first.setdefault(module.number, (module.path, module.cls))
        rows = [
            ModuleRow(
                module.path,
                module.cls,
                self._objects.setdefault(first[module.number], len(self._objects)),
                module.wrapper,
            )
            for module in c.modules
        ]
        numbers = self._numbered["modules"].numbers(rows, lambda row: row)
        for path, owner, size in c.parameters:
            self._parameters.setdefault(path, (path, int(numbers[owner]), size))
        return numbers

    def moved_derived(self, derived: Derived, number: int) -> Derived:
        """Return a rank's derived facts with the numbers of the joined tables."""
        paths = self._numbered["paths"].numbers(derived.paths, str)
        prefixes = self._numbered["prefixes"].numbers(derived.prefixes, str)
        first = self._first_place[number]
        return replace(
            derived,
            module=paths[derived.module],
            prefix=prefixes[derived.prefix],
            source=np.where(derived.source >= 0, derived.source + first, -1),
        )

    def lists(self) -> dict[str, Any]:
        """Return the joined tables."""
        return {
            **{name: self._numbered[name].rows for name in _TABLES},
            "places": self._places,
            "threads": self._threads,
            "parameters": list(self._parameters.values()),
        }

    def texts(self) -> dict[str, Any]:
        """Return the texts that derived columns point at."""
        return {name: self._numbered[name].rows for name in ("paths", "prefixes")}


class _KeptOfRanks(Mapping[int, Kept]):
    """Statistics and data of values of several ranks, by their numbers in the whole run."""

    def __init__(self, parts: list[Mapping[int, Kept]], counts: list[int]) -> None:
        self._parts = parts
        self._first = np.concatenate([[0], np.cumsum(counts)]).tolist()

    def _place(self, number: int) -> tuple[Mapping[int, Kept], int]:
        rank = int(np.searchsorted(self._first, number, "right")) - 1
        if not 0 <= rank < len(self._parts):
            raise KeyError(number)
        return self._parts[rank], number - self._first[rank]

    def __getitem__(self, number: int) -> Kept:
        part, own = self._place(number)
        return part[own]

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, (int, np.integer)) or not 0 <= number < self._first[-1]:
            return False
        part, own = self._place(int(number))
        return own in part

    def __iter__(self) -> Iterator[int]:
        ends = zip(self._parts, self._first, self._first[1:], strict=False)
        for part, first, end in ends:
            for number in part:
                # A damaged file may have data for a value that the rank does not have.
                if 0 <= number < end - first:
                    yield number + first

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def with_data(self) -> Ints:
        """Return the values whose data was kept, in order."""
        found = []
        for part, first, end in zip(self._parts, self._first, self._first[1:], strict=False):
            numbers = np.sort(numbers_with_data(part))
            found.append(numbers[(numbers >= 0) & (numbers < end - first)] + first)
        return np.concatenate(found)
