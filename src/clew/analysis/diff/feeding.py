"""Where two ops that correspond were fed by ops that do not.

Input: `Compared` and an op of each run, of about the same code, which got something else. Output:
the first op that only one run has on the way to what it got, or a pair of ops where each has its
own. An inserted, omitted or replaced op that only moves elements, or works on whole numbers, shows
in values no sooner than at the op that it feeds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import distances, permuted
from clew.analysis.diff.passed import tensors_of
from clew.events.columns import Ints


class Feeding(NamedTuple):
    """An op of each run, -1 where a run has none."""

    op_a: int
    op_b: int


class Feeders:
    """Looks for what fed two ops differently."""

    def __init__(self, found: Compared, exact: bool) -> None:
        """Take a comparison, and whether the runs agree bit for bit as long as they agree."""
        self._found, self._exact = found, exact
        there = np.flatnonzero(found.pairs >= 0)
        self._to_a = found.pairs
        self._to_b: Ints = np.full(len(found.a.graph), -1, dtype=np.int64)
        self._to_b[found.pairs[there]] = there

    def of(self, op_a: int, op_b: int) -> Feeding | None:
        """Return the ops behind the first tensor that two ops that correspond do not share."""
        a, b = self._found.a, self._found.b
        start = op_b
        while op_a >= 0 and self._to_a[op_b] == op_a:
            mine, theirs = tensors_of(a, op_a), tensors_of(b, op_b)
            above: Feeding | None = None
            for path in dict.fromkeys([*theirs, *mine]):
                of_a, of_b = mine.get(path, -1), theirs.get(path, -1)
                differ = min(of_a, of_b) < 0 or self._differ(of_a, of_b)
                unsure = differ is None and self._is_moved_by_one(of_a, of_b)
                alone = self._alone(of_a, of_b) if differ or unsure else None
                if alone is not None:
                    return alone
                # What has no digest, as it lies scattered in memory, may still be in another order.
                above = above or (self._moved(of_a, of_b) if differ is not False else None)
            if above is None:
                # These got the same tensors; if they moved them otherwise, it was here.
                other = op_b != start and different_arguments(a.graph, op_a, b.graph, op_b)
                return Feeding(op_a, op_b) if other else None
            if self._is_other_result(above, op_a, op_b):
                return above
            op_a, op_b = above
        return None

    def _alone(self, of_a: int, of_b: int) -> Feeding | None:
        a, b = self._found.a, self._found.b
        op_a = first_alone(a, of_a, self._to_b) if of_a >= 0 else -1
        op_b = first_alone(b, of_b, self._to_a) if of_b >= 0 else -1
        return None if max(op_a, op_b) < 0 else Feeding(op_a, op_b)

    def _is_moved_by_one(self, of_a: int, of_b: int) -> bool:
        """Return whether an op that only one run has moved the elements of one of two values."""
        a, b = self._found.a.graph, self._found.b.graph
        op_a, op_b = int(a.maker[of_a]), int(b.maker[of_b])
        alone_a = op_a >= 0 and self._to_b[op_a] < 0 and bool(a.is_move[op_a])
        return alone_a or (op_b >= 0 and self._to_a[op_b] < 0 and bool(b.is_move[op_b]))

    def _moved(self, of_a: int, of_b: int) -> Feeding | None:
        """Return the ops that made two values, if they correspond and only move elements."""
        if min(of_a, of_b) < 0:
            return None
        a, b = self._found.a.graph, self._found.b.graph
        op_a, op_b = int(a.maker[of_a]), int(b.maker[of_b])
        if min(op_a, op_b) < 0 or self._to_a[op_b] != op_a or not b.is_move[op_b]:
            return None
        return Feeding(op_a, op_b)

    def _is_other_result(self, above: Feeding, op_a: int, op_b: int) -> bool:
        """Return whether two ops at equal lines got different ones of the results of two others,
        whose lines differ. If these do not, the results were mixed up after them.
        """
        a, b = self._found.a.graph, self._found.b.graph
        given = a.gives[above.op_a], b.gives[above.op_b]
        is_same = a.texts([op_a]) == b.texts([op_b])
        if (
            min(map(len, given)) < 2
            or not is_same
            or a.texts([above.op_a]) == b.texts([above.op_b])
        ):
            return False
        used = (
            {given[0].index(v) for v in a.takes[op_a] if v in given[0]},
            {given[1].index(v) for v in b.takes[op_b] if v in given[1]},
        )
        return used[0] != used[1]

    def _differ(self, of_a: int, of_b: int) -> bool | None:
        """Return whether two values differ, be it in the order of elements; None if unknown."""
        a, b = self._found.a, self._found.b
        digests = a.facts.digest[of_a], b.facts.digest[of_b]
        if min(digests) >= 0 and (self._exact or digests[0] == digests[1]):
            return bool(digests[0] != digests[1])
        at = np.array([of_a]), np.array([of_b])
        far = distances(a.facts, at[0], b.facts, at[1])[0]
        shuffled = bool(permuted(a.facts, at[0], b.facts, at[1])[0])
        looks = a.graph.run.value(of_a).shape, b.graph.run.value(of_b).shape
        if shuffled or looks[0] != looks[1] or far > b.noise[of_b]:
            return True
        return None if min(digests) < 0 else False


def first_alone(half: Half, value: int, pairs: Ints) -> int:
    """Return the first op without a pair on the way to a value, following such ops only, or -1."""
    graph, first = half.graph, -1
    waiting, seen = [value], {value}
    while waiting:
        op = int(graph.maker[waiting.pop()])
        if op < 0 or pairs[op] >= 0 or graph.is_uninitialised[op]:
            continue
        first = op if first < 0 else min(first, op)
        new = set(graph.takes[op]) - seen
        seen |= new
        waiting += new
    return first
