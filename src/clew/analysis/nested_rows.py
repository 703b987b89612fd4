"""Rows nested in one another: what lies in each, and sums over all of it.

Input: for each row the earlier row that contains it, -1 for none. Output: lists and arrays.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np

from clew.events.columns import Flags, Ints

Default = TypeVar("Default")


class Nesting:
    """A forest of rows."""

    def __init__(self, parent: Ints) -> None:
        self._parent = parent
        # The rows ordered by their container, those without one first; where each group begins.
        self._order = np.argsort(parent, kind="stable")
        sizes = np.bincount(parent + 1, minlength=len(parent) + 1)
        self._first = np.concatenate([[0], np.cumsum(sizes)])

    def __getitem__(self, row: int) -> list[int]:
        """Return the rows directly in a row, in order; of -1, those in none."""
        inside: list[int] = self._order[self._first[row + 1] : self._first[row + 2]].tolist()
        return inside

    def get(self, row: int, default: Default) -> list[int] | Default:
        """Return the rows directly in a row, or the default if there are none."""
        return self[row] or default

    def inside(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return how many rows lie directly in each of some rows, and all of those in sequence."""
        counts = self._first[rows + 2] - self._first[rows + 1]
        starts = np.cumsum(counts) - counts
        at = np.repeat(self._first[rows + 1] - starts, counts) + np.arange(int(counts.sum()))
        return counts, self._order[at]

    @cached_property
    def levels(self) -> list[Ints]:
        """Return the rows by depth, the outermost first."""
        level = self._order[: self._first[1]]
        found = []
        while len(level):
            found.append(level)
            level = self.inside(level)[1]
        return found

    def sums(self, column: Ints | list[int]) -> Ints:
        """Add up a column over each row and all that lies in it."""
        found: Ints = np.array(column, dtype=np.int64)
        for level in self.levels[:0:-1]:
            np.add.at(found, self._parent[level], found[level])
        return found

    @cached_property
    def sizes(self) -> Ints:
        """Return for each row how many rows it contains, itself included."""
        return self.sums(np.ones(len(self._parent), dtype=np.int64))

    @cached_property
    def is_whole(self) -> Flags:
        """Return whether the rows inside a row, at every depth, follow it without a gap."""
        last = np.arange(len(self._parent))
        for level in self.levels[:0:-1]:
            np.maximum.at(last, self._parent[level], last[level])
        whole: Flags = last - np.arange(len(last)) + 1 == self.sizes
        for level in self.levels[:0:-1]:
            np.logical_and.at(whole, self._parent[level], whole[level])
        return whole
