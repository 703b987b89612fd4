"""Time and statistics of events, added up over everything that is folded into them.

Input: a `Run`. Output: arrays with a row per event. Folding adds the rows of later runs to those of
the first, from the outermost fold inwards; a row then has the total over all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

import numpy as np

from clew.analysis.tree.tree_model import ResultStats
from clew.events.columns import Ints
from clew.events.vocabulary import COMPOSITE, OP, OPTIMIZER
from clew.run.event_table import gives_uninitialised, output_stats
from clew.run.run import Run

# What a top event belongs to.
ENTRIES, BACKWARD_SECTION, OPTIMIZER_SECTION = range(3)


class Totals:
    """For each event its time and the statistics of its results."""

    def __init__(self, run: Run, top: Ints, section: Ints) -> None:
        self.nanoseconds = _times(run, top, section)
        self._has_stats = bool((run.stats["count"] >= 0).any())
        if self._has_stats:
            self._read_stats(run)

    def _read_stats(self, run: Run) -> None:
        c, stats = run.columns, run.stats
        tensors = run.tensors
        values, event = tensors.value, tensors.event
        known = tensors.is_output & (stats["count"][values] >= 0) & ~gives_uninitialised(c)[event]
        rows, value = event[known], values[known]
        first = np.append(True, np.diff(rows) != 0)[: len(rows)]
        rows, value = rows[first], value[first]
        finite = stats["count"][value] - stats["nan"][value] - stats["inf"][value]
        numbers = np.isfinite(stats["mean"][value]) & (finite > 0)
        rows, value, finite = rows[numbers], value[numbers], finite[numbers]
        size = len(c.id)
        self._count = np.zeros(size, dtype=np.int64)
        self._mean, self._squares = np.zeros(size), np.zeros(size)
        self._min, self._max = np.full(size, np.nan), np.full(size, np.nan)
        self._count[rows] = finite
        self._mean[rows] = stats["mean"][value]
        # Squares of large numbers exceed a float: their standard deviation is then infinite.
        with np.errstate(over="ignore"):
            self._squares[rows] = finite * stats["std"][value] ** 2
        self._min[rows], self._max[rows] = stats["min"][value], stats["max"][value]
        over_all = output_stats(c, stats, tensors, values)
        self._nan: Ints = over_all["nan"].copy()
        self._inf: Ints = over_all["inf"].copy()

    def fold(self, spans: Ints) -> None:
        """Add the events of later runs to those of the first; each row of `spans` is a run."""
        first = spans[0]
        self.nanoseconds[first] = self.nanoseconds[spans].sum(axis=0)
        if not self._has_stats:
            return
        for other in spans[1:]:
            self._merge(first, other)
        for counts in (self._nan, self._inf):
            found = counts[spans]
            counts[first] = np.where((found >= 0).any(axis=0), found.clip(0).sum(axis=0), -1)
        for ends, of in ((self._min, np.fmin), (self._max, np.fmax)):
            ends[first] = of.reduce(ends[spans], axis=0)

    def _merge(self, first: Ints, other: Ints) -> None:
        """Join means and sums of squared deviations, as Chan, Golub and LeVeque do."""
        mine, more = self._count[first], self._count[other]
        count = mine + more
        share = more / np.maximum(count, 1)
        apart = self._mean[other] - self._mean[first]
        with np.errstate(over="ignore", invalid="ignore"):
            self._squares[first] += self._squares[other] + apart * apart * mine * share
        self._mean[first] += apart * share
        self._count[first] = count

    def has_result(self, row: int) -> bool:
        """Return whether statistics of an event's result were recorded."""
        return self._has_stats and bool(self._count[row])

    def is_finite(self, rows: list[int]) -> bool:
        """Return whether no result of some events is known to have a NaN or Inf."""
        return not self._has_stats or not ((self._nan[rows] > 0) | (self._inf[rows] > 0)).any()

    def stats(self, rows: Iterable[int], result: int | None = None) -> ResultStats | None:
        """Return counts of NaN and Inf of the results of some events, and statistics of one of
        them.
        """
        if not self._has_stats:
            return None
        mine = np.fromiter(rows, dtype=np.int64)
        mine = mine[self._nan[mine] >= 0]
        if not len(mine):
            return None
        nan, inf = int(self._nan[mine].sum()), int(self._inf[mine].sum())
        count = 0 if result is None else int(self._count[result])
        if count <= 0:
            return ResultStats(nan, inf)
        return ResultStats(
            nan, inf, count,
            mean=float(self._mean[result]),
            std=sqrt(max(float(self._squares[result]) / count, 0.0)),
            min=float(self._min[result]),
            max=float(self._max[result]),
        )  # fmt: skip


def _times(run: Run, top: Ints, section: Ints) -> Ints:
    """Return the time of each event, 0 if it has not ended.

    An op of the backward pass or the optimizer has the time until the next one began, so that the
    time between them is counted too. Calls that a checkpoint recomputes have no time, their ops do;
    if there are no ops, the outermost call has the time.
    """
    c = run.columns
    spent: Ints = np.where(run.end >= 0, run.end - run.start, 0)
    is_op = c.kind == OP
    apart = (section != ENTRIES) & (c.error[top] < 0)
    has_ops = np.bincount(top[is_op], minlength=len(top)) > 0
    is_top = top == np.arange(len(top))
    spent[apart & ~is_op & (has_ops[top] | ~is_top)] = 0
    rows = np.flatnonzero(is_op & apart)
    row, after = rows[:-1], rows[1:]
    # No event lies between them, but for the composites that the second runs in.
    between = np.cumsum(c.kind != COMPOSITE)
    together = (
        (between[after] == between[row] + 1)
        & (run.process[row] == run.process[after])
        & (run.step[row] == run.step[after])
        & (run.thread[row] == run.thread[after])
        & ((run.phase[row] == OPTIMIZER) == (run.phase[after] == OPTIMIZER))
    )
    row, after = row[together], after[together]
    spent[row] = np.maximum(spent[row], run.start[after] - run.start[row])
    return spent
