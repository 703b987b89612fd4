"""The memory store of a ring: the newest events, and what they need of dropped ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clew.events.columns import EVENT_COLUMNS, VALUE_COLUMNS, Attributes, Columns, Ints
from clew.events.vocabulary import STEP, Kept
from clew.store.write.memory_sink import MemoryStore
from clew.stream.batch import Batch
from clew.stream.ring import fallen_out, first_kept, most_steps


class _Numbers:
    """Maps the row numbers in batches to rows that are still in memory."""

    def __init__(self) -> None:
        self.there: Ints = np.zeros(0, dtype=np.int64)
        self._next = 0
        # Numbers that no later batch refers to.
        self._gone: Ints = self.there

    def add(self, count: int) -> None:
        """Add rows that are new."""
        self.there = np.append(self.there, np.arange(self._next, self._next + count))
        self._next += count

    def rows(self, numbers: Ints) -> Ints:
        """Return the rows of numbers that are in memory."""
        return np.searchsorted(self.there, numbers)

    def let_go(self, numbers: Ints | list[int]) -> None:
        """Note which numbers later batches will not refer to."""
        self._gone = np.append(self._gone, numbers).astype(np.int64)

    def keep(self, used: Ints) -> Ints:
        """Drop rows that are neither `used` nor referred to any more; return the rows that stay."""
        staying = ~np.isin(self.there, self._gone)
        staying[used] = True
        self.there = self.there[staying]
        self._gone = np.intersect1d(self._gone, self.there)
        return np.flatnonzero(staying)


class MemoryRing:
    """A writer that keeps about the last events in arrays.

    With `steps`, it keeps no more than about the last so many steps. `derive` gets everything
    before something is dropped, `on_fallen` the bytes of data that were dropped.
    """

    def __init__(
        self,
        last: int,
        derive: Callable[[Columns], object],
        on_fallen: Callable[[int], object],
        steps: int | None = None,
    ) -> None:
        self._last = last
        self._steps = steps
        # How many steps have begun among the events that are there.
        self._begun = 0
        self._derive = derive
        self._on_fallen = on_fallen
        self._store = MemoryStore()
        self._fallen = 0
        self._values = _Numbers()
        self._templates = _Numbers()

    def extend(self, batch: Batch) -> None:
        """Take over a batch, and drop what is too old."""
        if self._store.count > self._last or self._begun >= most_steps(self._steps):
            self._let_fall()
        self._begun += int(np.count_nonzero(batch.columns["kind"] == STEP))
        columns = dict(batch.columns)
        self._values.add(len(columns["meta"]))
        self._templates.add(len(batch.tables.get("templates", ())))
        columns["refs"] = self._values.rows(columns["refs"])
        columns["template"] = self._templates.rows(columns["template"])
        columns["number"] = _with_values(columns["number"], self._values.rows)
        numbers = np.fromiter(batch.kept, np.int64, len(batch.kept))
        rows = self._values.rows(numbers).tolist()
        kept = dict(zip(rows, batch.kept.values(), strict=True))
        there = np.isin(batch.freed[0], self._values.there)
        freed = batch.freed[:, there]
        freed = np.stack([self._values.rows(freed[0]), freed[1]])
        self._store.extend(replace(batch, columns=columns, kept=kept, freed=freed))
        self._values.let_go(batch.gone)
        self._templates.let_go(batch.gone_templates)

    def read(self, rank: int) -> Columns:
        """Return everything in memory, events in order of their ids, including open calls."""
        columns = self._store.read(rank)
        if self._fallen:
            columns.gaps.append(fallen_out(self._fallen, self._last, "", self._steps))
        return columns

    def _let_fall(self) -> None:
        columns = self._store.read(0)
        count = first_kept(columns.id, columns.kind, self._last, self._steps)
        if not count:
            return
        self._begun = int(np.count_nonzero(columns.kind[count:] == STEP))
        self._derive(columns)
        staying = _with_calls_around(columns, count)
        self._fallen += len(columns.id) - int(staying.sum())
        # Open calls come again; of others too the end may not be known.
        staying &= ~np.isin(columns.id, self._store.open_calls)
        first, kept = int(columns.id[count]), columns.kept
        events = {name: getattr(columns, name)[staying] for name in EVENT_COLUMNS}
        events["first_ref"], refs = _refs(columns, staying)
        accumulated = events["number"][_names_value(events["number"])]
        values = self._values.keep(np.append(refs, -2 - accumulated))
        templates = self._templates.keep(events["template"])
        arrays = {name: getattr(columns, name)[values] for name in VALUE_COLUMNS}
        arrays |= {**events, "refs": np.searchsorted(values, refs)}
        arrays["template"] = np.searchsorted(templates, events["template"])
        arrays["number"] = _with_values(
            events["number"], lambda numbers: np.searchsorted(values, numbers)
        )
        self._store.hold(
            arrays,
            {row: kept[value] for row, value in enumerate(values.tolist()) if value in kept},
            [columns.templates[row] for row in templates.tolist()],
            _since(columns.attributes, first),
        )
        there = set(values.tolist())
        self._on_fallen(sum(_size(one) for value, one in kept.items() if value not in there))


def _with_calls_around(columns: Columns, count: int) -> NDArray[np.bool_]:
    """Return which events stay if the first `count` go: also calls that contain others."""
    staying = np.arange(len(columns.id)) >= count
    above = columns.parent[staying]
    while len(above):
        rows = np.unique(np.searchsorted(columns.id, above[above >= 0]))
        rows = rows[~staying[rows]]
        staying[rows] = True
        above = columns.parent[rows]
    return staying


def _refs(columns: Columns, staying: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the values of some events, and where those of each begin."""
    tensors = np.array([len(one.tensors) for one in columns.templates], dtype=np.int64)
    counts = tensors[columns.template[staying]]
    first = np.cumsum(counts) - counts
    at = np.repeat(columns.first_ref[staying] - first, counts) + np.arange(counts.sum())
    return first, columns.refs[at]


def _names_value(numbers: Ints) -> NDArray[np.bool_]:
    """Return whether the number of an op is that of the value a gradient is accumulated for."""
    named: NDArray[np.bool_] = numbers <= -2
    return named


def _with_values(numbers: Ints, rows: Callable[[Ints], Ints]) -> Ints:
    """Return the numbers of events, with values in them replaced by their rows."""
    named = _names_value(numbers)
    if not named.any():
        return numbers
    numbers = numbers.copy()
    numbers[named] = -2 - rows(-2 - numbers[named])
    return numbers


def _since(noted: list[Attributes], first: int) -> list[Attributes]:
    """Return settings at an event joined into one, and the changes after it."""
    before: dict[tuple[str, int, int], Attributes] = {}
    for one in sorted((one for one in noted if one.event < first), key=lambda one: one.event):
        known = before.get(key := (one.kind, one.number, one.group))
        values = one.values if known is None else known.values | one.values
        before[key] = replace(one, values=values)
    return [*before.values(), *(one for one in noted if one.event >= first)]


def _size(kept: Kept) -> int:
    return 0 if kept.payload is None else memoryview(kept.payload.data).nbytes
