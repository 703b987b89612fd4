"""Small tools over integer arrays: find numbers in a sorted array, number texts as they come."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import Ints


def find(known: Ints, wanted: Ints) -> Ints:
    """Give the rows of `wanted` in a sorted array, -1 for what is not in it."""
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.searchsorted(known, wanted)
    at[at == len(known)] = 0
    return np.where(known[at] == wanted, at, -1)


def used_rows(count: int, *numbers: Ints) -> tuple[list[int], Ints]:
    """Give which of so many rows some numbers are of, in order, and the place of each there.

    A number below 0 is of none; its place is -1.
    """
    used = np.zeros(count, dtype=bool)
    for of_rows in numbers:
        used[of_rows[of_rows >= 0]] = True
    return np.flatnonzero(used).tolist(), np.append(np.cumsum(used) - 1, -1)


class Rows:
    """Rows of columns that grow at the end; of more than `most` the oldest are forgotten."""

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

    def keep(self, rows: Any) -> None:
        """Forget all rows but some, which come in the order given."""
        self._columns = {name: self[name][rows] for name in self._columns}
        self._start, self._end = 0, len(next(iter(self._columns.values())))

    def _grow(self, count: int) -> None:
        """Make room for as many rows again, so that a row is copied only a few times in all."""
        room = np.zeros(len(self) + count, dtype=np.int64)
        self._columns = {name: np.concatenate([self[name], room]) for name in self._columns}
        self._start, self._end = 0, self._end - self._start


class Interned:
    """Texts numbered in order of first use."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Give the number of a text, a new one for a new text."""
        number = self._numbers.setdefault(text, len(self.rows))
        if number == len(self.rows):
            self.rows.append(text)
        return number
