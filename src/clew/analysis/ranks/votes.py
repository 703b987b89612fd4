"""What most ranks hold at each key, counted in one pass and without a table of all ranks.

Input: the keys and contents of one rank after the other. Output: for each key the content that most
ranks have. The first few different contents of a key are counted, the others only as others: the
memory depends on the number of keys, not on that of ranks. Batches, which differ on all ranks, have
no majority; neither has a key of which the first four ranks are all wrong in ways of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.analysis.ranks.keys import Hashes, Ints
from clew.events.columns import Flags

_CONTENTS = 4
# No trace of a stranger may make the tables grow with every rank.
_MOST_KEYS = 20_000_000


class Votes:
    """The content that most of some ranks have at each key; of two, what the first has."""

    def __init__(self, ranks: int) -> None:
        self._is_pair = ranks == 2
        self.keys: Hashes = np.zeros(0, np.uint64)
        self._contents: Hashes = np.zeros((0, _CONTENTS), np.uint64)
        self._counts: NDArray[np.int32] = np.zeros((0, _CONTENTS), np.int32)
        self._present: NDArray[np.int32] = np.zeros(0, np.int32)

    def add(self, keys: Hashes, content: Hashes) -> None:
        """Count the votes of one rank; content 0 is not known and no vote."""
        keys, at = np.unique(keys[content != 0], return_index=True)
        content = content[content != 0][at]
        self._grow(keys)
        at, known = self.find(keys)
        at, content = at[known], content[known]
        self._present[at] += 1
        for number in range(_CONTENTS):
            empty = self._counts[at, number] == 0
            mine = empty | (self._contents[at, number] == content)
            self._contents[at[mine], number] = content[mine]
            self._counts[at[mine], number] += 1
            at, content = at[~mine], content[~mine]

    def find(self, keys: Hashes) -> tuple[Ints, Flags]:
        """Return the place of each key, and which keys are there."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return at, self.keys[at] == keys

    def compare(self, keys: Hashes, content: Hashes) -> tuple[Flags, Flags]:
        """Return where a rank has what most have, and where it has something else.

        Where no more than half agree, as on batches of their own, both are False.
        """
        at, known = self.find(keys)
        if not len(self.keys):
            return known, known.copy()
        best = np.argmax(self._counts[at], axis=1)
        known &= (content != 0) & self._is_settled(at)
        same = self._contents[at, best] == content
        return known & same, known & ~same

    def has_majority(self, keys: Hashes) -> Flags:
        """Return at which keys more than half of the ranks hold the same."""
        at, known = self.find(keys)
        if len(self.keys):
            known &= 2 * self._counts[at].max(axis=1) > self._present[at]
        return known

    def is_shared(self, keys: Hashes) -> Flags:
        """Return which keys more than one rank has."""
        at, known = self.find(keys)
        if len(self.keys):
            known &= self._present[at] > 1
        return known

    def _is_settled(self, at: Ints) -> Flags:
        if self._is_pair:
            return np.asarray(self._present[at] == 2)
        return np.asarray(2 * self._counts[at].max(axis=1) > self._present[at])

    def _grow(self, keys: Hashes) -> None:
        new = keys[~self.find(keys)[1]]
        if not len(new) or len(self.keys) + len(new) > _MOST_KEYS:
            return
        keys = np.concatenate([self.keys, new])
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self._contents = _with_rows(self._contents, len(new))[order]
        self._counts = _with_rows(self._counts, len(new))[order]
        self._present = _with_rows(self._present, len(new))[order]


def _with_rows(table: NDArray[Any], count: int) -> NDArray[Any]:
    return np.concatenate([table, np.zeros((count, *table.shape[1:]), table.dtype)])
