"""Which values of two runs are right: those that agree, and those that lead to what agrees.

Input: two runs. Output: `Compared`. A value of one run agrees with the value at the same place of
the other, or, where nothing stands at the same place, with any value that is equal to it up to the
order of its elements. It is right if its error is no more than rounding adds to the errors of what
it was computed from. What a right value was computed from is right too, and constants are as long
as nothing shows that they are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.counterparts import with_counterparts
from clew.analysis.diff.distance import ValueFacts, distances, facts_of, permuted
from clew.analysis.diff.drift import Drift, drift_of, measured
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.iterations import Iterations
from clew.analysis.diff.joined_values import sliced_distances
from clew.analysis.diff.noise import NOISE, ROUNDING, Noise, levels_of, per_dtype
from clew.analysis.diff.pairing import Rename, pair_ops
from clew.analysis.diff.proofs import with_sources
from clew.analysis.diff.value_matching import disordered, match, turned_results
from clew.events.columns import Flags, Floats, Ints
from clew.run.run import Run

# Values of other places are the same only up to this, however noisy they are.
_MOST_NOISE = 0.2
# By how much an op may increase the error of what it took.
_GROWTH = 12.0
# By how much beyond noise, and how far beyond.
_GIVEN_ON = 3.0
_MOST_DRIFT = 10.0
# By how much it may be expected to, where its result cannot be compared.
_UNSEEN_GROWTH = 2.0


@dataclass(frozen=True, slots=True)
class Half:
    """One of two runs: how far each value is from its partner, and which are right.

    `partner` is a value of the other run, -1 for none; `far` is NaN where nothing is known.
    `noise` is the error that counts as rounding over a whole run.
    """

    graph: FlowGraph
    facts: ValueFacts
    partner: Ints
    far: Floats
    noise: Floats
    right: Flags


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs; `pairs` has for each op of `b` the op of `a` at the same place, or -1.

    `iterations` are those of both runs; `drift` says how far their parameters drift apart, None if
    one of them does not train.
    """

    a: Half
    b: Half
    pairs: Ints
    iterations: tuple[Iterations, Iterations]
    drift: Drift | None

    @property
    def has_values(self) -> bool:
        """Return whether values of both runs can be compared."""
        return bool(self.a.facts.known.any() and self.b.facts.known.any())


def compare(
    run_a: Run, run_b: Run, rename: Rename | None = None, tolerance: Noise | float | None = None
) -> Compared:
    """Compare two runs op by op and value by value; `tolerance` is the noise of floats."""
    a, b = FlowGraph(run_a), FlowGraph(run_b)
    facts_a, facts_b = facts_of(a, b)
    of_a, of_b = Iterations(a), Iterations(b)
    pairs = pair_ops(of_a, of_b, rename)
    partner_b = _partners(a, b, pairs)
    partner_a: Ints = np.full(len(a.maker), -1, dtype=np.int64)
    known = np.flatnonzero(partner_b >= 0)
    partner_a[partner_b[known]] = known
    rewired = _rewired(a, facts_a, b, facts_b, pairs, partner_b)
    levels = [levels_of(graph, tolerance) for graph in (a, b)]
    drift = None
    if of_a.is_training and of_b.is_training and tolerance != 0:
        drift = drift_of(of_a, facts_a, of_b, facts_b, _float32_level(tolerance))
        levels = [
            (np.maximum(noise, np.where(noise > 0, drift.per_value(iterations), 0.0)), measured)
            for (noise, measured), iterations in zip(levels, (of_a, of_b), strict=True)
        ]

    def halves() -> tuple[Half, Half]:
        half_a = _half(a, facts_a, partner_a, b, facts_b, partner_b[rewired], levels[0], levels[1],
                       of_a.left_behind)  # fmt: skip
        half_b = _half(b, facts_b, partner_b, a, facts_a, rewired, levels[1], levels[0],
                       of_b.left_behind)  # fmt: skip
        return half_a, half_b

    half_a, half_b = halves()
    if drift is not None:
        more = measured(drift, of_a, facts_a, of_b, facts_b, half_b.far)
        more = np.where(levels[1][0] > 0, more, 0.0)
        if more.any():
            levels[1] = np.maximum(levels[1][0], more), levels[1][1]
            half_a, half_b = halves()
    return Compared(half_a, half_b, pairs, (of_a, of_b), drift)


def _float32_level(tolerance: Noise | float | None) -> float:
    if isinstance(tolerance, Noise):
        return tolerance.dtypes.get("float32", NOISE["float32"])
    return NOISE["float32"] if tolerance is None else tolerance


def _half(
    mine: FlowGraph, facts: ValueFacts, partner: Ints, other: FlowGraph, other_facts: ValueFacts,
    rewired: Ints, levels: tuple[Floats, Flags], other_levels: tuple[Floats, Flags],
    neutral: Flags,
) -> Half:  # fmt: skip
    (noise, measured), (other_noise, other_measured) = levels, other_levels
    far: Floats = np.full(len(partner), np.nan)
    there = np.flatnonzero(partner >= 0)
    far[there] = distances(other_facts, partner[there], facts, there)
    shuffled = permuted(other_facts, partner[there], facts, there)
    far[there[shuffled & _same_shapes(other, partner[there], mine, there)]] = np.inf
    far[rewired] = np.inf
    # What is noisier than this could be the value of anything.
    least, other_least = np.minimum(noise, _MOST_NOISE), np.minimum(other_noise, _MOST_NOISE)
    equal = match(other_facts, facts, other_least, least, wanted=partner < 0)
    before, partner = partner, np.where(partner < 0, equal, partner)
    partner = with_counterparts(mine, facts, other, other_facts, partner)
    numbers = np.flatnonzero((before < 0) & (partner >= 0))
    far[numbers] = distances(other_facts, partner[numbers], facts, numbers)
    # Where ops have counterparts, their results have them, too, as a whole.
    alone = (equal < 0) & facts.known & ~(before >= 0).any()
    sliced, in_order = sliced_distances(mine, facts, least, other, other_facts, other_least, alone)
    far[disordered(mine, facts, other_facts, partner, numbers, in_order)] = np.inf
    far = np.fmin(far, sliced)
    far[turned_results(mine, facts, other, other_facts, least)] = np.inf
    # Memory that nothing has written is as good as any other.
    unset = mine.unwritten
    far[unset & ~np.isnan(far)] = 0.0
    floor, other_floor = per_dtype(mine, ROUNDING), per_dtype(other, ROUNDING)
    # Code that was not measured has the noise of its partner, if that was and is as precise.
    takes_theirs = other_measured[partner] & ~measured & (floor == other_floor[partner])
    # Else the noise of a pair is that of the noisier: float32 against bfloat16.
    both = np.where(takes_theirs, other_noise[partner], np.maximum(noise, other_noise[partner]))
    noise = np.where(partner >= 0, both, noise)
    floor = np.where(partner >= 0, np.maximum(floor, other_floor[partner]), floor)
    # What was measured holds for the whole way to a value, growth included.
    known = (measured | takes_theirs) & (partner >= 0)
    floor = np.where(known, np.maximum(floor, noise / _GROWTH), floor)
    # What the value at the same place is, if that was not recorded, nobody can tell.
    unjudged = (before >= 0) & ~other_facts.known[before]
    tells = facts.says_much & ~facts.exact & ~unjudged
    agrees = _agreeing(mine, far, noise, floor, tells)
    unseen = np.flatnonzero((mine.same_as >= 0) & np.isnan(far))
    agrees[unseen] = agrees[mine.same_as[unseen]]
    right = with_sources(mine, agrees, facts, far > noise, neutral) | unset
    right[unseen] |= right[mine.same_as[unseen]]
    return Half(mine, facts, partner, far, noise, right)


def _same_shapes(a: FlowGraph, of_a: Ints, b: FlowGraph, of_b: Ints) -> Flags:
    codes: dict[object, int] = {}

    def coded(graph: FlowGraph) -> Ints:
        shapes = [codes.setdefault(meta.shape, len(codes)) for meta in graph.run.metas]
        return np.array([*shapes, -1], dtype=np.int64)[graph.run.columns.meta]

    return np.asarray(coded(a)[of_a] == coded(b)[of_b])


def _partners(a: FlowGraph, b: FlowGraph, pairs: Ints) -> Ints:
    """Return for each value of `b` the value at the same position of the paired op."""
    partner: Ints = np.full(len(b.maker), -1, dtype=np.int64)
    maker = b.maker.tolist()
    # A result that was kept for the backward pass has a number that its op did not return.
    kept = b.maker >= 0
    kept[b.gives.values] = False
    for op_b, op_a in enumerate(pairs.tolist()):
        if op_a < 0:
            continue
        for mine, theirs in ((b.takes[op_b], a.takes[op_a]), (b.gives[op_b], a.gives[op_a])):
            if len(mine) == len(theirs):
                for value, other in zip(mine, theirs, strict=True):
                    if maker[value] == op_b or (maker[value] < 0 and partner[value] < 0):
                        partner[value] = other
                    elif kept[value] and partner[value] < 0:
                        made = int(a.maker[other])
                        partner[value] = other if pairs[maker[value]] == made >= 0 else -1
    return partner


def _rewired(
    a: FlowGraph, facts_a: ValueFacts, b: FlowGraph, facts_b: ValueFacts, pairs: Ints, partner: Ints
) -> Ints:
    """Return values of `b` made from other tensors than their partners, that are not the same.

    An op got, in the place of one tensor, what corresponds to another, and what is computed from
    its result alone follows it. Scores of swapped queries and keys have the same statistics, but
    are not the same scores.
    """
    digest_a, digest_b = facts_a.digest.tolist(), facts_b.digest.tolist()
    partners = partner.tolist()
    found: dict[int, None] = {}
    for op_b, op_a in enumerate(pairs.tolist()):
        took_a, took_b = (a.takes[op_a], b.takes[op_b]) if op_a >= 0 else ([], [])
        other = len(took_a) == len(took_b) and any(
            partners[theirs] not in (-1, mine)
            and digest_a[mine] >= 0
            and digest_a[mine] != digest_b[theirs] == digest_a[partners[theirs]]
            for mine, theirs in zip(took_a, took_b, strict=True)
        )
        if other or (took_b and all(theirs in found for theirs in took_b)):
            for value in b.gives[op_b]:
                same = digest_b[value] >= 0 and digest_a[partners[value]] == digest_b[value]
                if partners[value] >= 0 and not same:
                    found[value] = None
    return np.array(list(found), dtype=np.int64)


def _agreeing(
    graph: FlowGraph, far: Floats, noise: Floats, rounding: Floats, tells: Flags
) -> Flags:
    """Return which values agree with their partners as well as what they were computed from does.

    What was not computed from inputs, or is one, is judged by what it leads to if it has no
    partner: a mask, a fused weight. A value that no other could be told from is as right as what it
    was computed from, and so is one whose elements were only moved.
    """
    given = ~graph.depends | (graph.maker < 0)
    agrees = np.asarray((far <= noise) | (np.isnan(far) & given)).tolist()
    errors, floor, most = far.tolist(), rounding.tolist(), noise.tolist()
    level = floor.copy()
    moves, telling = graph.is_move.tolist(), tells.tolist()
    for op in range(len(graph)):
        before = max((level[v] for v in graph.takes[op]), default=0.0)
        for value in graph.gives[op]:
            level[value] = max(level[value], before)
            if errors[value] != errors[value] and not moves[op]:
                level[value] = max(level[value], min(most[value], _UNSEEN_GROWTH * level[value]))
            if errors[value] != errors[value] and (moves[op] or not telling[value]):
                agrees[value] = all(agrees[v] for v in graph.takes[op])
            # A little more than rounding, which comes from what was taken.
            if most[value] < errors[value] <= min(_GIVEN_ON * before, _MOST_DRIFT * most[value]):
                agrees[value] = all(agrees[v] for v in graph.takes[op])
            if agrees[value] and errors[value] == errors[value]:
                agrees[value] = errors[value] <= _GROWTH * level[value]
                level[value] = max(level[value], errors[value]) if agrees[value] else level[value]
    return np.array(agrees, dtype=bool)
