"""Where two runs part by their ops alone: what one trace has no statistics of cannot be compared.

Input: `Compared`. Output: the first op that only one run has, or that got other constants or gave
another shape, and the part of each run's ops that the other has too. Nothing here reads a value.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared
from clew.analysis.diff.divergence import Matched
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.parting import EXTRA, MISSING, WRONG, PartingPlace
from clew.errors import ClewError
from clew.events.columns import Ints


def check_same_code(found: Compared) -> None:
    """Raise ClewError if neither values nor lines tell which ops correspond."""
    if not (found.pairs >= 0).any():
        raise ClewError(
            f"{lacking(found)}, and the code of a is not that of b: there is nothing to compare "
            "them by; record both with values='fingerprint'"
        )


def lacking(found: Compared) -> str:
    """Say which runs have no statistics of values."""
    sides = [side for side, half in (("a", found.a), ("b", found.b)) if not half.facts.known.any()]
    return f"{' and '.join(sides)} {'has' if len(sides) == 1 else 'have'} no statistics of values"


def matched_ops(found: Compared) -> Matched:
    """Return the parts of the ops that both runs have."""
    count = int((_pairs(found) >= 0).sum())
    a, b = len(found.a.graph), len(found.b.graph)
    return Matched(count / a if a else 0.0, count / b if b else 0.0)


def first_other_op(found: Compared, until: int | None = None) -> PartingPlace | None:
    """Return the first op of `b` before `until`, or of `a` at its place, that the other run lacks
    or has with other constants or results.
    """
    a, b = found.a.graph, found.b.graph
    pairs = _pairs(found)
    to_b: Ints = np.full(len(a), -1, dtype=np.int64)
    to_b[pairs[pairs >= 0]] = np.flatnonzero(pairs >= 0)
    # The first op of `a` without a partner comes after the partners of those before it.
    op_a = int(np.argmin(to_b)) if (to_b < 0).any() else -1
    lost = int(to_b[:op_a].max(initial=-1)) + 1 if op_a >= 0 else len(b)
    for op_b in range(min(lost, len(b) if until is None else until)):
        to_a = int(pairs[op_b])
        if to_a < 0:
            return PartingPlace(EXTRA, -1, op_b, _result(b, op_b), of_a=False)
        if _is_other(found, to_a, op_b):
            return PartingPlace(WRONG, to_a, op_b, _result(b, op_b), of_a=False)
    if op_a < 0 or (until is not None and lost >= until):
        return None
    if lost < len(b) and pairs[lost] < 0:
        return PartingPlace(WRONG, op_a, lost, _result(b, lost), of_a=False)
    return PartingPlace(MISSING, op_a, -1, _result(a, op_a), of_a=True)


def _result(graph: FlowGraph, op: int) -> int:
    return graph.gives[op][0] if graph.gives[op] else -1


def _is_other(found: Compared, op_a: int, op_b: int) -> bool:
    """Return whether two ops got other constants, or gave other shapes or dtypes."""
    a, b = found.a.graph, found.b.graph
    looks = [
        [(run.metas[m].dtype, run.metas[m].shape) for m in run.columns.meta[graph.gives[op]]]
        for graph, run, op in ((a, a.run, op_a), (b, b.run, op_b))
    ]
    return looks[0] != looks[1] or bool(different_arguments(a, op_a, b, op_b))


def _pairs(found: Compared) -> Ints:
    """Return the op of `a` for each of `b`; what is left over goes by name and line, unordered."""
    a, b = found.a.graph, found.b.graph
    pairs: Ints = found.pairs.copy()
    left: dict[tuple[str, str], list[int]] = {}
    over_a = np.setdiff1d(np.arange(len(a)), pairs)
    for op, text in zip(over_a.tolist(), a.texts(over_a), strict=True):
        left.setdefault((a.names[int(a.name_codes[op])], text), []).append(op)
    over_b = np.flatnonzero(pairs < 0)
    for op, text in zip(over_b.tolist(), b.texts(over_b), strict=True):
        same = left.get((b.names[int(b.name_codes[op])], text))
        if same:
            pairs[op] = same.pop(0)
    return pairs
