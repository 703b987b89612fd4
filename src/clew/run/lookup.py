"""Small tools over integer arrays: find numbers in a sorted array, number texts as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.events.columns import Flags, Ints


def find(known: Ints, wanted: Ints) -> Ints:
    """Return the rows of `wanted` in a sorted array, -1 for numbers that are not in it."""
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.searchsorted(known, wanted)
    at[at == len(known)] = 0
    return np.where(known[at] == wanted, at, -1)


def used_rows(count: int, *numbers: Ints) -> tuple[list[int], Ints]:
    """Return which of so many rows are used, in order, and the index of each number there.

    A number below 0 uses none; its index is -1.
    """
    used = np.zeros(count, dtype=bool)
    for of_rows in numbers:
        used[of_rows[of_rows >= 0]] = True
    return np.flatnonzero(used).tolist(), np.append(np.cumsum(used) - 1, -1)


def numbered(*columns: NDArray[Any]) -> Ints:
    """Number rows by their content: rows equal in all columns have the same number."""
    found = _dense(columns[0])
    for column in columns[1:]:
        more = _dense(column)
        count = int(more.max(initial=0)) + 1
        if count > 1:
            found = _dense(found * count + more)
    return found


def _dense(numbers: NDArray[Any]) -> Ints:
    """Replace numbers by consecutive ones from 0 on; equal ones stay equal."""
    if not len(numbers):
        return numbers.astype(np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < 8 * len(numbers) + 1024:
        from_0 = numbers.astype(np.int64) - low
        occurs = np.zeros(high - low + 1, dtype=bool)
        occurs[from_0] = True
        small: Ints = from_0 if occurs.all() else (np.cumsum(occurs) - 1)[from_0]
        return small
    return np.unique(numbers, return_inverse=True)[1]


def number_lists(counts: Ints, items: Ints) -> Ints:
    """Number lists of numbers, which lie one after the other: equal ones have the same number."""
    sizes = counts
    while len(sizes) and sizes.max() > 1:
        # Each turn merges two neighbours into one, so a list of a thousand takes ten turns.
        half = (sizes + 1) // 2
        first = np.cumsum(sizes) - sizes
        left = np.repeat(first - 2 * (np.cumsum(half) - half), half) + 2 * np.arange(half.sum())
        alone = left + 1 == np.repeat(first + sizes, half)
        right = items[np.where(alone, left, left + 1)]
        items = numbered(items[left], np.where(alone, items.min() - 1, right))
        sizes = half
    whole = np.zeros(len(counts), dtype=np.int64)
    whole[counts > 0] = items
    return numbered(whole, counts)


class Rows:
    """Rows of columns that grow at the end; beyond `most`, the oldest are dropped."""

    def __init__(self, names: tuple[str, ...], most: int | None = None) -> None:
        self._most = most
        self._start = self._end = 0
        self._columns: dict[str, Ints] = {n: np.zeros(0, dtype=np.int64) for n in names}

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, name: str) -> Ints:
        return self._columns[name][self._start : self._end]

    def append(self, **columns: Ints) -> None:
        """Add rows at the end."""
        count = len(next(iter(columns.values())))
        if self._end + count > len(next(iter(self._columns.values()))):
            self._grow(count)
        for name, new in columns.items():
            self._columns[name][self._end : self._end + count] = new
        self._end += count
        if self._most is not None:
            self._start = max(self._start, self._end - self._most)

    def keep(self, rows: Ints | Flags | slice) -> None:
        """Drop all rows except some, which are then in the order given."""
        self._columns = {name: self[name][rows] for name in self._columns}
        self._start, self._end = 0, len(next(iter(self._columns.values())))

    def _grow(self, count: int) -> None:
        """Make room for half as many rows again, so that a row is copied a few times in all."""
        room = np.zeros(len(self) // 2 + count, dtype=np.int64)
        self._columns = {name: np.concatenate([self[name], room]) for name in self._columns}
        self._start, self._end = 0, self._end - self._start


class Interned:
    """Texts numbered in order of first use."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text, a new one for a new text."""
        number = self._numbers.setdefault(text, len(self.rows))
        if number == len(self.rows):
            self.rows.append(text)
        return number
