"""Count the events of each address: the call number that stands after `#` in an address."""

from __future__ import annotations

import numpy as np

from clew.events.columns import Ints
from clew.events.labels import counted_as
from clew.events.vocabulary import LABELLED, RECOMPUTE
from clew.run.event_rows import EventRows
from clew.run.lookup import Rows


class AddressCounts:
    """The events of each address so far, in all batches."""

    def __init__(self) -> None:
        self._counts: Ints = np.zeros(0, dtype=np.int64)
        # Op or label -> its number; then by the numbers of ops and of labels in the columns.
        self._counters: dict[object, int] = {}
        self._of_op: list[int] = []
        self._of_label: list[int] = []

    def of(self, events: EventRows, composites: Rows) -> Ints:
        """Return the index of each event among those of the same address.

        Named values that a checkpoint recomputes are counted separately, as calls are. A composite
        that was counted while it was open has its index in `composites`; others get theirs there.
        """
        for name in events.columns.ops[len(self._of_op) :]:
            self._of_op.append(self._counters.setdefault(name, len(self._counters)))
        for number in range(len(self._of_label), len(events.columns.labels)):
            key = "label", counted_as(number, events.columns.labels[number])
            self._of_label.append(self._counters.setdefault(key, len(self._counters)))
        labels = np.isin(events.kind, LABELLED)
        counter = events.nothing()
        ops = np.array(self._of_op, dtype=np.int64)
        counter[events.is_run] = 2 * ops[events.subject[events.is_run]]
        named = np.array(self._of_label, dtype=np.int64)
        counter[labels] = 2 * named[events.subject[labels]] + (events.phase[labels] == RECOMPUTE)
        index = np.append(composites["index"], -1)[events.composite]
        counter[index >= 0] = -1
        counts = np.zeros(2 * len(self._counters), dtype=np.int64)
        counts[: len(self._counts)] = self._counts
        rows = np.flatnonzero(counter >= 0)
        rows = rows[np.argsort(counter[rows], kind="stable")]
        mine = counter[rows]
        starts = np.flatnonzero(np.r_[True, mine[1:] != mine[:-1]]) if len(mine) else mine
        sizes = np.diff(np.r_[starts, len(mine)])
        result: Ints = events.number.copy()
        result[rows] = np.arange(len(mine)) - np.repeat(starts, sizes) + counts[mine]
        counts += np.bincount(mine, minlength=len(counts))
        self._counts = counts
        result = np.where(index >= 0, index, result)
        of_composite = events.composite >= 0
        composites["index"][events.composite[of_composite]] = result[of_composite]
        return result
