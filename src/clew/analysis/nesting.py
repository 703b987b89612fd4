"""Rows nested in one another: what lies in each, and sums over all that does.

In comes for each row the earlier one it lies in, -1 for none; out come lists and arrays.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from clew.events.columns import Ints

Default = TypeVar("Default")


class Nesting:
    """A forest of rows."""

    def __init__(self, parent: Ints) -> None:
        self._parent = parent
        # The rows by what they lie in, those in none first; where each such stretch begins.
        self._order = np.argsort(parent, kind="stable")
        sizes = np.bincount(parent + 1, minlength=len(parent) + 1)
        self._first = np.concatenate([[0], np.cumsum(sizes)])

    def __getitem__(self, row: int) -> list[int]:
        """Give the rows directly in a row, in order; of -1, those in none."""
        inside: list[int] = self._order[self._first[row + 1] : self._first[row + 2]].tolist()
        return inside

    def get(self, row: int, default: Default) -> list[int] | Default:
        """Give the rows directly in a row, or the default if there are none."""
        return self[row] or default

    def inside(self, rows: Ints) -> tuple[Ints, Ints]:
        """Give how many rows lie directly in each of some, and all of those one after the other."""
        counts = self._first[rows + 2] - self._first[rows + 1]
        starts = np.cumsum(counts) - counts
        at = np.repeat(self._first[rows + 1] - starts, counts) + np.arange(int(counts.sum()))
        return counts, self._order[at]

    @cached_property
    def levels(self) -> list[Ints]:
        """The rows by how deep they lie, the outermost first."""
        level = self._order[: self._first[1]]
        found = []
        while len(level):
            found.append(level)
            level = self.inside(level)[1]
        return found

    def sums(self, column: Any) -> Ints:
        """Add up a column over each row and all that lies in it."""
        found: Ints = np.array(column, dtype=np.int64)
        for level in self.levels[:0:-1]:
            np.add.at(found, self._parent[level], found[level])
        return found

    @cached_property
    def sizes(self) -> Ints:
        """For each row how many lie in it, itself included."""
        return self.sums(np.ones(len(self._parent)))

    @cached_property
    def is_whole(self) -> Any:
        """Whether what lies in a row, and in each of those, follows it without a gap."""
        last = np.arange(len(self._parent))
        for level in self.levels[:0:-1]:
            np.maximum.at(last, self._parent[level], last[level])
        whole = last - np.arange(len(last)) + 1 == self.sizes
        for level in self.levels[:0:-1]:
            np.logical_and.at(whole, self._parent[level], whole[level])
        return whole
