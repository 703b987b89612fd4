"""Where a run in a narrow dtype parts from one in a wider dtype, as far as traces alone can say.

Input: `Compared` runs of about the same code in two precisions. Output: the `PartingPlace` of the
first op that adds far more to the error of what it took than rounding does. Errors that accumulate
from op to op are normal, however large they become.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.noise import ROUNDING
from clew.analysis.diff.parting import INPUTS, WRONG, PartingPlace

# A result whose error is so many times that of what it was computed from is a jump: in clean runs
# of deep models single ops come near it.
_JUMP = 32.0
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
    b, least = found.b, _ROUNDED * ROUNDING[narrow]
    graph = b.graph
    judged = b.facts.says_much & ~b.facts.exact & np.isfinite(b.far)
    for op in range(len(graph)):
        if found.pairs[op] < 0 or graph.is_uninitialised[op]:
            continue
        takes = graph.takes[op]
        other = [v for v in takes if graph.maker[v] < 0 and judged[v] and b.far[v] > CROSS_NOISE]
        if other:
            return PartingPlace(INPUTS, int(found.pairs[op]), op, other[0], of_a=False)
        before = _error_of(b, takes)
        for value in graph.gives[op]:
            if judged[value] and graph.depends[value] and b.far[value] > _JUMP * max(before, least):
                return PartingPlace(WRONG, int(found.pairs[op]), op, value, of_a=False)
    return None


def _error_of(half: Half, values: list[int]) -> float:
    """Return the largest error of some values, infinite if one is unknown."""
    far = [float(half.far[v]) for v in values if not half.facts.exact[v]]
    return max((np.inf if np.isnan(error) else error for error in far), default=0.0)
