"""Where a run in a narrow dtype parts from one in a wider dtype, as far as traces alone can say.

Input: `Compared` runs of about the same code in two precisions. Output: the `PartingPlace` of the
first op that adds far more to the error of what it took than rounding does. Errors that accumulate
from op to op are normal, however large they become, and so is what an op makes of them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.feeding import first_alone
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.noise import ROUNDING
from clew.analysis.diff.parting import EXTRA, INPUTS, MISSING, WRONG, PartingPlace
from clew.analysis.diff.rounding_errors import Errors, Gains, errors_between
from clew.events.columns import Ints
from clew.events.op_names import bare_op

# A result whose error is so many times that which was to be expected is a jump: by sums along axes,
# which in clean runs of deep models single ops come half as near to, and by statistics alone.
_JUMP = 6.0
_JUMP_OF_STATISTICS = 32.0
# So many times as much along one axis only, and so much where an op was given something else.
_AXIS = 4.0
_JUMP_OF_SUSPECT = 2.5
_CASTS = frozenset({"_to_copy", "to", "clone", "detach", "alias"})
# What rounding to a dtype does to a tensor, and the largest number the dtype has, if it is small.
_LAST_PLACE = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
_LARGEST = {"float16": 65504.0}
# The error of statistics of a tensor that was rounded, in roundings.
_ROUNDED = 0.5
# Between two precisions this much in a whole run is noise.
CROSS_NOISE = 0.3


def precisions(a: FlowGraph, b: FlowGraph) -> tuple[str, str] | None:
    """Return the dtype of most results of each run, if these differ and one of them is narrow."""
    found = [_precision(graph) for graph in (a, b)]
    if found[0] is None or found[1] is None or found[0] == found[1]:
        return None
    return (found[0], found[1]) if max(ROUNDING[one] for one in found if one) > 1e-4 else None


def _precision(graph: FlowGraph) -> str | None:
    run = graph.run
    numbers, counts = np.unique(run.columns.meta[graph.gives.values], return_counts=True)
    found: Counter[str] = Counter()
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        if run.metas[number].dtype in ROUNDING:
            found[run.metas[number].dtype] += count
    return found.most_common(1)[0][0] if found else None


def first_jump(found: Compared, narrow: str) -> PartingPlace | None:
    """Return the first op whose result is far worse than what it took, or was given other data."""
    errors = errors_between(found)
    if errors is None:
        far = np.where(np.isfinite(found.b.far), found.b.far, np.nan)
        rounding, jump = _ROUNDED * ROUNDING[narrow], _JUMP_OF_STATISTICS
        return _Levels(found, Errors(far, far), rounding, jump, narrow).first()
    return _Levels(found, errors, _LAST_PLACE[narrow], _JUMP, narrow).first()


class _Levels:
    """The errors of the values of `b`, measured or else expected, in the order of the ops."""

    def __init__(
        self, found: Compared, errors: Errors, rounding: float, jump: float, narrow: str
    ) -> None:
        """Take what rounding does to a tensor, and how many times the expected error is a jump."""
        self._found, self._errors = found, errors
        self._rounding, self._jump = rounding, jump
        b = found.b
        self._gains = Gains(b)
        self._to_b: Ints = np.full(len(found.a.graph), -1, dtype=np.int64)
        there = np.flatnonzero(found.pairs >= 0)
        self._to_b[found.pairs[there]] = there
        self._whole = b.facts.exact & (b.graph.maker < 0)
        self._chosen = np.zeros(len(b.graph.maker), dtype=bool)
        self._judged = b.facts.says_much & ~b.facts.exact & np.isfinite(errors.least)
        partner = np.maximum(b.partner, 0)
        ends = [found.a.facts.low[partner], found.a.facts.high[partner]]
        # Numbers that the narrow dtype does not have are masks, and other numbers in it.
        self._judged &= np.maximum(*map(np.abs, ends)) <= _LARGEST.get(narrow, np.inf)
        self._level = np.where((b.graph.maker < 0) & self._judged, errors.most, 0.0)

    def first(self) -> PartingPlace | None:
        """Return the place of the first jump."""
        found, graph, judged = self._found, self._found.b.graph, self._judged
        least, level = self._errors.least, self._level
        limit = self._jump * self._rounding
        for op in range(len(graph)):
            paired = found.pairs[op] >= 0
            if graph.is_uninitialised[op]:
                continue
            for value in graph.takes[op] if paired else ():
                if graph.maker[value] < 0 and judged[value] and least[value] > limit:
                    return PartingPlace(INPUTS, int(found.pairs[op]), op, value, of_a=False)
            chosen = any(self._is_other_choice(v) for v in graph.takes[op])
            self._chosen[graph.gives[op]] = chosen
            for value in graph.gives[op]:
                before = max(self._gains.expected(op, value, level), self._rounding)
                known = paired and bool(judged[value])
                if known and not chosen and self._is_jump(op, value, before):
                    return self._named(op, value)
                if self._is_other_whole(op, value) and paired:
                    return self._named(op, value)
                level[value] = self._errors.most[value] if known else before
        return None

    def _is_jump(self, op: int, value: int, before: float) -> bool:
        """Return whether the error of a result is far more than expected.

        Less will do if the op was given something else in `b`: a number, or what another op made.
        """
        least, most = float(self._errors.least[value]), float(self._errors.most[value])
        error = max(least, most / _AXIS)
        if error > self._jump * before:
            return True
        return error > _JUMP_OF_SUSPECT * before and self._is_suspect(op)

    def _is_other_choice(self, value: int) -> bool:
        """Return whether rounding may have led to other whole numbers, such as indices of the
        largest, or a value was computed from such: there is no telling how far off it may be.
        """
        b = self._found.b
        other = b.facts.exact[value] and not self._whole[value] and b.far[value] != 0
        return bool(other or self._chosen[value])

    def _is_suspect(self, op: int) -> bool:
        """Return whether two ops that correspond were given other arguments or fed by other ops."""
        found, op_a = self._found, int(self._found.pairs[op])
        a, b = found.a.graph, found.b.graph
        if different_arguments(a, op_a, b, op):
            return True
        if self._alone(op) != (None, None):
            return True
        makers = zip(a.maker[a.takes[op_a]], b.maker[b.takes[op]], strict=False)
        return any(
            y >= 0 <= x and found.pairs[y] not in (-1, x) and self._to_b[x] >= 0 for x, y in makers
        )

    def _is_other_whole(self, op: int, value: int) -> bool:
        """Return whether whole numbers or flags, computed from such alone, differ."""
        graph, exact = self._found.b.graph, self._found.b.facts.exact
        whole = bool(exact[value]) and all(self._whole[v] for v in graph.takes[op])
        self._whole[value] = whole
        return whole and self._found.b.far[value] == np.inf

    def _alone(self, op: int) -> tuple[int | None, int | None]:
        """Return the first op that only `a`, and that only `b`, has on the way to an op; casts
        aside.
        """
        sides = (
            (self._found.a, int(self._found.pairs[op]), self._to_b),
            (self._found.b, op, self._found.pairs),
        )
        first_a, first_b = (
            min(_alone_before(half, at, pairs), default=None) for half, at, pairs in sides
        )
        return first_a, first_b

    def _named(self, op: int, value: int) -> PartingPlace:
        """Return the place of a jump: the op, or one before it that only one run has."""
        found, op_a = self._found, int(self._found.pairs[op])
        first_a, first_b = self._alone(op)
        if first_b is not None:
            kind, beside = (EXTRA, op_a) if first_a is None else (WRONG, first_a)
            return PartingPlace(kind, beside, first_b, found.b.graph.gives[first_b][0], of_a=False)
        if first_a is not None:
            return PartingPlace(MISSING, first_a, op, found.a.graph.gives[first_a][0], of_a=True)
        return PartingPlace(WRONG, op_a, op, value, of_a=False)


def _alone_before(half: Half, op: int, pairs: Ints) -> list[int]:
    """Return the first ops without a pair on the way to each tensor that an op took."""
    graph = half.graph
    ops = [first_alone(half, value, pairs) for value in graph.takes[op]]
    codes = graph.name_codes
    return [o for o in ops if o >= 0 and bare_op(graph.names[int(codes[o])]) not in _CASTS]
