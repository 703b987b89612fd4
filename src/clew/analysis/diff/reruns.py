"""Compare runs of one program that should agree bit for bit.

Input: two runs that began alike. Output: a `Diff`, whose first place is the first op that took the
same bits and returned others, or whose inputs came from outside and differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clew.analysis.diff.compared import Compared, Half, compare
from clew.analysis.diff.differ import comparable, described, module_errors
from clew.analysis.diff.divergence import Diff, Divergence, Matched
from clew.analysis.diff.parting import EXTRA, INPUTS, MISSING, WRONG, PartingPlace
from clew.analysis.diff.passed import where
from clew.analysis.diff.rerun_order import moved_ops, order_evidence
from clew.analysis.diff.unwritten import is_given, unwritten_origin, unwritten_values
from clew.events.columns import Flags, Floats
from clew.run.event import Event
from clew.run.run import Run

EXACT = "compared bit for bit"
# Ops that bring in data from outside, whatever they took: a tensor that another process sent.
_BRINGING = frozenset({"set_"})


def diff_reruns(a: Run, b: Run) -> Diff:
    """Compare two runs of one program; raise ClewError if one has nothing to compare."""
    a, b, notes = comparable(a, b)
    found = _exact(compare(a, b, None, 0.0))
    parting, read = _first(found), None
    if parting is None:
        parting, read = _unwritten(found)
    matched = Matched(_equal_part(found.a), _equal_part(found.b))
    if not (found.a.facts.known.any() and found.b.facts.known.any()):
        notes.append("a run has no statistics of values, so only ops were compared")
    first = None if parting is None else _explained(found, parting, read)
    table = () if first is None else module_errors(found)
    return Diff(first is None, first, table, matched, {}, (*notes, EXACT), found)


def _exact(found: Compared) -> Compared:
    """Count values as different whose bits differ, though no statistic shows it.

    Small numbers beside one that is huge add nothing to any sum.
    """
    a, b = (
        replace(half, far=_far_by_bits(half, other))
        for half, other in ((found.a, found.b), (found.b, found.a))
    )
    return replace(found, a=a, b=b)


def _far_by_bits(half: Half, other: Half) -> Floats:
    mine, theirs = half.facts.digest, other.facts.digest[half.partner]
    differ = (half.partner >= 0) & (mine >= 0) & (theirs >= 0) & (mine != theirs)
    return np.where(differ, np.maximum(half.far, np.finfo(np.float64).tiny), half.far)


def _equal_part(half: Half) -> float:
    """Return the part of the values computed from inputs that is the same."""
    computed = ~np.isnan(half.far) & (half.graph.maker >= 0) & ~unwritten_values(half)
    return float((half.far[computed] == 0).mean()) if computed.any() else 0.0


def _first(found: Compared) -> PartingPlace | None:
    """Return the first op, in the order they ran in, at which the runs differ."""
    b, unset = found.b, unwritten_values(found.b)
    moved_a, moved_b = moved_ops(found)
    paired_a = moved_a.copy()
    paired_a[found.pairs[found.pairs >= 0]] = True
    next_a = 0
    writes, brings = b.graph.is_writer, b.graph.are(_BRINGING)
    for op in np.flatnonzero(~moved_b).tolist():
        op_a = int(found.pairs[op])
        if op_a >= 0:
            left_out = _left_out(found.a, paired_a, next_a, op_a)
            next_a = max(next_a, op_a + 1)
            if left_out is not None:
                return left_out
        for value in b.graph.takes[op][int(writes[op]) :]:
            if not is_given(b.graph, value) and not unset[value] and _differs(b, value):
                return PartingPlace(INPUTS, op_a, op, value, of_a=False)
        is_alone = op_a < 0
        wrong = [v for v in b.graph.gives[op] if not unset[v] and _differs(b, v, is_alone)]
        if is_alone and not wrong and _draws(b, op):
            wrong = b.graph.gives[op]
        if wrong:
            kind = EXTRA if is_alone else INPUTS if brings[op] else WRONG
            return PartingPlace(kind, op_a, op, wrong[0], of_a=False)
    return _left_out(found.a, paired_a, next_a, len(found.a.graph))


def _draws(half: Half, op: int) -> bool:
    """Return whether an op draws random numbers, so that those drawn later depend on it."""
    return bool(half.graph.run.columns.generator[half.graph.rows[op]] >= 0)


def _left_out(a: Half, paired: Flags, first: int, end: int) -> PartingPlace | None:
    """Return the first op of a stretch of `a` that `b` lacks, and whose result it lacks too."""
    for op in range(first, end):
        gives = a.graph.gives[op]
        if not paired[op] and gives and not a.graph.is_uninitialised[op]:
            lacking = [v for v in gives if _differs(a, v, is_alone=True) or _draws(a, op)]
            if lacking:
                return PartingPlace(MISSING, op, -1, lacking[0], of_a=True)
    return None


def _differs(half: Half, value: int, is_alone: bool = False) -> bool:
    """Return whether a value is not that of the other run; `is_alone`: none stands in its place."""
    far = half.far[value]
    if np.isnan(far):
        return bool(is_alone and half.facts.known[value] and half.facts.says_much[value])
    return bool(far > 0)


def _unwritten(found: Compared) -> tuple[PartingPlace | None, int | None]:
    """Return the op that asked for memory which nothing wrote and a result depends on, and who
    read it.
    """
    origin = unwritten_origin(found.b, unwritten_values(found.b))
    if origin is None:
        return None, None
    op, read = origin
    value = found.b.graph.gives[op][0]
    return PartingPlace(WRONG, int(found.pairs[op]), op, value, of_a=False), read


def _explained(found: Compared, parting: PartingPlace, read: int | None) -> Divergence:
    """Describe where runs part, and why, as far as that is known."""
    first = described(found, parting)
    if read is not None:
        said = (f"its result is memory that nothing has written; {where(found.b, read)} reads it, "
                "and a result of the run depends on it")  # fmt: skip
        return replace(first, evidence=(said,), suspects=())
    order = ""
    if parting.kind in (INPUTS, WRONG):
        order = order_evidence(found, parting.op_a, parting.op_b)
    if order:
        differs = first.evidence[0].rpartition(", ")[2]  # how far what is named there is from a's
        first = replace(first, evidence=(order, differs, *first.evidence[1:]), suspects=())
    return _with_draws(first)


def _with_draws(first: Divergence) -> Divergence:
    """Say so where an op drew random numbers, and whether both runs had drawn as many before."""
    drew = [_draw(event) for event in (first.a, first.b)]
    if drew[0] is None and drew[1] is None:
        if first.kind == INPUTS and "order" not in first.evidence[0]:
            said = ("inputs differ from here: what made them is not among the recorded ops, such "
                    "as data in another order, or numbers drawn by NumPy or Python")  # fmt: skip
            return replace(first, evidence=(*first.evidence, said))
        return first
    counts = [None if draw is None else draw[1] for draw in drew]
    name = next(draw[0] for draw in drew if draw is not None)
    if None in counts:
        said = f"it draws random numbers from the generator {name}, which the other run does not"
    elif counts[0] != counts[1]:
        said = (f"it drew other random numbers: the generator {name} was used {counts[0]} times "
                f"before in a, {counts[1]} times in b")  # fmt: skip
    else:
        said = (f"it drew other random numbers: the generator {name} was used {counts[0]} times "
                "before in both runs, so it began with another seed or state")  # fmt: skip
    return replace(first, evidence=(*first.evidence, said), suspects=())


def _draw(event: Event | None) -> tuple[str, int] | None:
    return None if event is None else event.draw
