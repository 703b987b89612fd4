"""Which op of other code makes a mask that the original does not have, or lacks one of its masks.

Input: `Compared` and the regions in which two runs part. Output: an op of each run. One run masks
with booleans, the other adds zeros and large negative numbers, and a kernel may know of it by a
flag only, so that masks seldom equal each other. But they let through the same part of all places,
however they are written, turned round or spread over heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from clew.analysis.diff.arguments import constants_of
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import ValueFacts
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.lookups import LOOKUPS, first_other, from_floats, leading_to
from clew.analysis.diff.unmatched_regions import Region
from clew.events.columns import Flags

# What these make of masks that both runs have is no other mask, but several at once.
_COMBINING = frozenset({
    "bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not", "mul",
    "add", "sub", "rsub", "where", "masked_fill", "maximum", "minimum", "_to_copy", "eq", "ne",
})  # fmt: skip
_CLOSE = 1e-6


def other_masks(
    found: Compared, of_a: Region, of_b: Region, op_a: int, op_b: int
) -> tuple[int, int] | None:
    """Return the op of `a` whose mask `b` lacks, and the op of `b` that makes another one, -1 for
    none; None for neither.

    Masks that lead to the first wrong op of one run are looked for in all that leads to the region
    of the other. What only `b` masks tells nothing if `a` masks nothing there, or has such a mask
    elsewhere: it may go another way. What only `a` masks is missing if `b` masks nothing there.
    """
    alike_a, alike_b = _look_like_masks(found.a), _look_like_masks(found.b)
    parts_a = _Masks(found.a, alike_a, of_a.ops).parts
    parts_b = _Masks(found.b, alike_b, of_b.ops).parts
    if not parts_b:
        a = _Masks(found.a, alike_a, [op_a])
        lacking = a.first_other(parts_b)
        return None if lacking < 0 else (a.user_of(lacking), -1)
    b = _Masks(found.b, alike_b, [op_b])
    more = b.first_other(parts_a) if parts_a else -1
    if more < 0:
        return None
    anywhere = _Masks(found.a, alike_a, range(len(found.a.graph)))
    if b.part_made_by(more) in anywhere.parts:
        return None
    facts = found.b.facts
    varied = facts.exact & (facts.low < facts.high)
    return -1, first_other(found, more, [v for v in found.b.graph.takes[more] if varied[v]])


class _Masks:
    """The masks of one run that lead to some ops, of values that look like masks."""

    def __init__(self, half: Half, alike: Flags, ops: Sequence[int]) -> None:
        self._half, self._graph, self._alike = half, half.graph, alike
        self._part = _parts_of(half.facts)
        combines = {name for name in half.graph.names if name.rstrip("_") in _COMBINING}
        self._combines = half.graph.are(frozenset(combines)) | half.graph.is_move
        self._ops = np.flatnonzero(leading_to(half.graph, ops)).tolist()
        self._is_mask = self._masks()

    @cached_property
    def parts(self) -> set[float]:
        """Return what the masks let through, those of kernels that need none included."""
        found = {_causal(self._graph, op) for op in self._ops} - {0.0}
        return found | set(self._part[self._is_mask].tolist())

    def _masks(self) -> Flags:
        """Return what looks like a mask and is used as one: numbers are computed with it, or with a
        mask that was made of it. Not so the rows of a table.
        """
        graph, exact = self._graph, self._half.facts.exact
        looks_up = graph.are(LOOKUPS)
        found = np.zeros(len(graph.maker), dtype=bool)
        for op in reversed(self._ops):
            gives = graph.gives[op]
            if not looks_up[op] and (found[gives].any() or not exact[gives].all()):
                takes = graph.takes[op]
                found[takes] |= self._alike[takes]
        return found

    def first_other(self, parts: set[float]) -> int:
        """Return the first op that makes a mask which lets through none of these parts, nor leads
        to one that does, nor joins such; -1 for none.
        """
        other = self._is_mask & ~self._known(parts) & (self._graph.maker >= 0)
        return int(self._graph.maker[other].min()) if other.any() else -1

    def _known(self, parts: set[float]) -> Flags:
        """Return which masks let through one of these parts, lead to such, or join such."""
        graph, is_mask = self._graph, self._is_mask
        known = is_mask & (np.isin(self._part, list(parts)) | self._led_to_right)
        values = np.flatnonzero(is_mask & (graph.maker >= 0))
        values = values[np.argsort(graph.maker[values], kind="stable")]
        for value in values[::-1].tolist():
            known[graph.takes[int(graph.maker[value])]] |= known[value]
        for value in values.tolist():
            op = int(graph.maker[value])
            took = [v for v in graph.takes[op] if is_mask[v]]
            known[value] |= bool(took) and bool(self._combines[op]) and bool(known[took].all())
        return np.asarray(known)

    @cached_property
    def _led_to_right(self) -> Flags:
        """Return what values were computed from that agree with some of the other run."""
        half, graph = self._half, self._graph
        shown = half.right & (half.partner >= 0) & graph.depends & half.facts.says_much
        found = np.asarray(shown & ~half.facts.exact)
        for op in range(len(graph) - 1, -1, -1):
            if found[graph.gives[op]].any():
                found[graph.takes[op]] = True
        return found

    def part_made_by(self, op: int) -> float:
        """Return what the first mask that an op makes lets through."""
        return float(self._part[self._is_mask & (self._graph.maker == op)][0])

    def user_of(self, op: int) -> int:
        """Return the first op, from one that makes a mask on, that takes a mask and makes none."""
        takes, makes = self._graph.takes, set(self._graph.maker[self._is_mask].tolist())
        users = (one for one in self._ops if self._is_mask[takes[one]].any())
        return next((one for one in users if one >= op and one not in makes), op)


def _look_like_masks(half: Half) -> Flags:
    """Return which values are booleans, or have zeros and one and the same negative number at all
    other places, and were not computed from floats; of what comes from outside also zeros and ones.
    """
    facts, graph = half.facts, half.graph
    others = facts.count - facts.zeros
    with np.errstate(all="ignore"):
        squares = others * facts.low**2
        is_one = (facts.high == 0) & (np.abs(facts.norm**2 - squares) <= _CLOSE * squares)
    is_one = np.where(facts.nonfinite == 0, is_one, (facts.nonfinite == others) & (facts.high <= 0))
    dtypes = [meta.dtype for meta in graph.run.metas]
    is_bool = np.array([dtype == "bool" for dtype in dtypes] + [False])[graph.run.columns.meta]
    is_given = (graph.maker < 0) & facts.exact & (facts.low == 0) & (facts.high == 1)
    varied = (facts.zeros > 0) & (others > 0) & ~np.array(from_floats(half), dtype=bool)
    return np.asarray(varied & (is_one | is_bool | is_given))


def _parts_of(facts: ValueFacts) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the smaller part of all places that are zero, or are not."""
    count = np.maximum(facts.count, 1)
    return np.round(np.minimum(facts.zeros, count - facts.zeros) / count, 9)


def _causal(graph: FlowGraph, op: int) -> float:
    """Return what an attention kernel masks that is told to look back only; 0 for others."""
    if not graph.names[int(graph.name_codes[op])].startswith("_scaled_dot_product"):
        return 0.0
    if not any(one is True for one in constants_of(graph.run, int(graph.rows[op])).values()):
        return 0.0
    (queries, keys) = ((graph.run.value(v).shape or (1, 1))[-2] for v in graph.takes[op][:2])
    seen = sum(min(n + 1, keys) for n in range(queries))
    return round(min(seen, queries * keys - seen) / (queries * keys), 9)
