"""Where two runs part: ops that took right values and returned a wrong one.

Input: `Compared`. Output: a `PartingPlace`, or None if nothing differs beyond noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.absent_parameters import taker_of_absent
from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.constants import different_constants
from clew.analysis.diff.distance import distances, order_between
from clew.analysis.diff.feeding import Feeders
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.lines_elsewhere import LinesElsewhere
from clew.analysis.diff.lookups import other_lookup
from clew.analysis.diff.masks import other_masks
from clew.analysis.diff.orders import Order
from clew.analysis.diff.reordering import reordered
from clew.analysis.diff.replaced_ops import after_factors, maker_of_parts, replaced_ops
from clew.analysis.diff.small_changes import small_change
from clew.analysis.diff.unmatched_regions import Region, regions
from clew.events.vocabulary import BACKWARD

WRONG, MISSING, EXTRA, INPUTS = KINDS = ("wrong", "missing", "extra", "inputs")

# A result this many times as far off as the inputs is a jump, not the growth of an earlier error.
_JUMP = 8.0
_ROUNDED = 1e-7


@dataclass(frozen=True, slots=True)
class PartingPlace:
    """The first place where two runs part: ops of both, -1 for none, and the value that differs.

    `value` is one of `b`, or of `a` where `b` has none, as `of_a` says. `reordered` says that it
    has the elements that `a` goes on with, in another order, `is_small` that the effect is below
    the noise.
    """

    kind: str
    op_a: int
    op_b: int
    value: int
    of_a: bool
    reordered: bool = False
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Where to look for a place: among ops before `until_a` and `until_b` that lead to the wrong
    results `ends_a` and `ends_b`.
    """

    ends_a: list[int]
    ends_b: list[int]
    until_a: int
    until_b: int


def first_parting(found: Compared) -> PartingPlace | None:
    """Return the first place where the runs part, None if they agree up to noise."""
    a, b = found.a, found.b
    if _same_end(a, b):
        return None
    ends_a, ends_b = ([v for v in half.graph.ends if not half.right[v]] for half in (a, b))
    return parting_in(found, Window(ends_a, ends_b, len(a.graph), len(b.graph)))


def small_parting(found: Compared) -> PartingPlace | None:
    """Return where runs that agree up to noise part by a number or text, None if they do not."""
    small = small_change(found)
    if small is None:
        return None
    op_a, op_b, value = small
    return PartingPlace(WRONG, op_a, op_b, value, of_a=False, is_small=True)


def parting_in(found: Compared, window: Window) -> PartingPlace | None:
    """Return the first place in a window where the runs part, None if there is none."""
    a, b = found.a, found.b
    ops_a = _frontier(a, window.ends_a, window.until_a)
    ops_b = _frontier(b, window.ends_b, window.until_b)
    given = _outside(b, window.until_b)
    if given is not None and (not ops_b or given[0] <= ops_b[0]):
        op, value = given
        fed = _fed(found, int(found.pairs[op]), op)
        return fed or PartingPlace(INPUTS, int(found.pairs[op]), op, value, of_a=False)
    if not ops_a and not ops_b:
        return None
    op_a, op_b = (ops[0] if ops else -1 for ops in (ops_a, ops_b))
    if op_b >= 0:
        op_b = _changed(found, _origin(found, op_b) if (found.pairs >= 0).any() else op_b)
    if op_b < 0:
        return PartingPlace(MISSING, op_a, op_b, _wrong(a, op_a)[0], of_a=True)
    kind, op_a = _kind(found, op_a, op_b)
    fed = _fed(found, op_a, op_b) if kind == WRONG else None
    if fed is not None:
        return fed
    if ops_a and ops_b and not (found.pairs >= 0).any():
        return _in_other_code(found, ops_a, ops_b, PartingPlace(kind, op_a, op_b, -1, of_a=False))
    if kind == MISSING:
        return PartingPlace(kind, op_a, op_b, _wrong(a, op_a)[0], of_a=True)
    if kind == WRONG:
        op_a, op_b = different_constants(found, op_a, op_b) or (op_a, op_b)
    return PartingPlace(kind, op_a, op_b, _wrong(b, op_b)[0], of_a=False)


def _in_other_code(
    found: Compared, ops_a: list[int], ops_b: list[int], place: PartingPlace
) -> PartingPlace:
    """Return where runs of other code part, given the first wrong ops of each and a first guess."""
    b, op_a, op_b = found.b, place.op_a, place.op_b
    parts = regions(found.a, ops_a, b, ops_b)
    lacking = taker_of_absent(found, parts[0])
    if lacking >= 0:
        return PartingPlace(place.kind, lacking, op_b, _wrong(b, op_b)[0], of_a=False)
    looked_up = other_lookup(found, op_b)
    if looked_up is not None:
        value = b.graph.gives[looked_up[1]][0]
        return PartingPlace(WRONG, *looked_up, value, of_a=False)
    moved = reordered(found, *parts)
    if moved is not None:
        value = b.graph.gives[moved[1]][0]
        return PartingPlace(WRONG, *moved, value, of_a=False, reordered=bool(b.right[value]))
    if place.kind == WRONG:
        replaced = replaced_ops(found, *parts)
        if replaced is not None:
            value = b.graph.gives[replaced[1]][0]
            return PartingPlace(WRONG, *replaced, value, of_a=False)
    elsewhere = LinesElsewhere(found, op_b, parts[1])
    if elsewhere.is_proved:
        other = elsewhere.first_unproved()
        if other < 0:
            op_a = elsewhere.first_missing(parts[0].ops, op_a)
            other = elsewhere.first_rewired()
        if other >= 0:
            return PartingPlace(place.kind, op_a, other, b.graph.gives[other][0], of_a=False)
    masked = other_masks(found, *parts, op_a, op_b)
    if masked is not None and masked[1] >= 0:
        value = b.graph.gives[masked[1]][0]
        return PartingPlace(place.kind, op_a, masked[1], value, of_a=False)
    op_a = op_a if masked is None else masked[0]
    op_b = after_factors(found, *parts, op_b)
    if place.kind == WRONG:
        op_a, op_b = different_constants(found, op_a, op_b) or (op_a, op_b)
    op_b = maker_of_parts(b, op_b)
    return PartingPlace(place.kind, op_a, op_b, _wrong(b, op_b)[0], of_a=False)


def unmatched_parts(found: Compared) -> tuple[Region, Region] | None:
    """Return the ops of other code, among which the one at fault is; None for about the same code.

    They lie between what agrees and the next parameters that both runs take.
    """
    a, b = found.a, found.b
    if (found.pairs >= 0).any():
        return None
    ends_a, ends_b = ([v for v in half.graph.ends if not half.right[v]] for half in (a, b))
    ops_a, ops_b = _frontier(a, ends_a, len(a.graph)), _frontier(b, ends_b, len(b.graph))
    return regions(a, ops_a, b, ops_b) if ops_a and ops_b else None


def _fed(found: Compared, op_a: int, op_b: int) -> PartingPlace | None:
    """Return where two ops that correspond were fed by ops that do not, None if they were not."""
    a, b = found.a, found.b
    fed = Feeders(found, _is_exact_before(found, op_b)).of(op_a, op_b)
    if fed is None:
        return None
    if fed.op_b < 0:
        return PartingPlace(MISSING, fed.op_a, op_b, _wrong(a, fed.op_a)[0], of_a=True)
    kind, beside = (EXTRA, op_a) if fed.op_a < 0 else (WRONG, fed.op_a)
    return PartingPlace(kind, beside, fed.op_b, _wrong(b, fed.op_b)[0], of_a=False)


def _kind(found: Compared, op_a: int, op_b: int) -> tuple[str, int]:
    """Return how two runs part, given the first wrong op of each, and the op of `a` to show.

    In runs of about the same code, an op of one that has nothing in its place in the other is the
    one that is missing there, if what corresponds to the other's first wrong op comes later.
    """
    to_a = int(found.pairs[op_b])
    to_a = to_a if to_a >= 0 else _twin(found.b, op_b, found.a)
    if op_a < 0 or op_a == to_a:
        return (WRONG, to_a) if to_a >= 0 else (EXTRA, op_a)
    if not (found.pairs >= 0).any():
        return WRONG, op_a
    paired = np.flatnonzero(found.pairs == op_a)
    to_b = int(paired[0]) if len(paired) else _twin(found.a, op_a, found.b)
    if to_a < 0:
        return (EXTRA if to_b > op_b else WRONG), op_a
    if op_a < to_a and to_b < 0:
        return MISSING, op_a
    return WRONG, to_a


def _twin(half: Half, op: int, other: Half) -> int:
    """Return the first op of the other run of the same name that took partners of most inputs."""
    name = half.graph.names[int(half.graph.name_codes[op])]
    takes = half.graph.takes[op]
    partners = {int(half.partner[v]) for v in takes} - {-1}
    same = [code for code, known in enumerate(other.graph.names) if known == name]
    for found in np.flatnonzero(np.isin(other.graph.name_codes, same)).tolist():
        if 2 * len(partners.intersection(other.graph.takes[found])) > len(set(takes)):
            return int(found)
    return -1


def _same_end(a: Half, b: Half) -> bool:
    """Return whether what comes out of both runs agrees up to noise.

    One run may give more than the other, such as hidden states, but something of it must agree:
    what the other gives may be a value that this one goes on with.
    """
    wrong_a, wrong_b = _unlike(a, b), _unlike(b, a)
    counts = len(a.graph.ends), len(b.graph.ends)
    if not min(counts):
        return not any(_frontier(half, half.graph.ends, len(half.graph)) for half in (a, b))
    if counts[0] == counts[1]:
        return not wrong_a and not wrong_b
    fewer, more = (wrong_a, wrong_b) if counts[0] < counts[1] else (wrong_b, wrong_a)
    return not fewer and len(more) < max(counts)


def _unlike(half: Half, other: Half) -> list[int]:
    """Return the values that come out of a run and agree with none that the other gives.

    Statistics forgive the order of elements, which is to be the same, too. The value at the same
    place has been compared with that in mind.
    """
    found = []
    ends = np.array(other.graph.ends, dtype=np.int64)
    for value in half.graph.ends:
        if not half.facts.known[value] or half.far[value] <= half.noise[value]:
            continue
        others = ends[ends != half.partner[value]]
        far = distances(other.facts, others, half.facts, np.full_like(others, value))
        near = others[far <= np.maximum(half.noise[value], other.noise[others])].tolist()
        shape = half.graph.run.value(value).shape
        orders = (
            order_between(
                other.facts, one, half.facts, value, other.graph.run.value(one).shape == shape
            )
            for one in near
        )
        if not any(order >= Order.UNKNOWN for order in orders):
            found.append(value)
    return found


def _frontier(half: Half, ends: list[int], until: int) -> list[int]:
    """Return the ops that took only right values and gave a wrong one that is used, in order.

    Of these, only such that lead to a wrong result of the program, if any does: what else differs
    does no harm. `ends` are the wrong results, `until` is the op to end before.
    """
    graph, right = half.graph, half.right.tolist()
    known = half.facts.known.tolist()
    unset, blind = graph.is_uninitialised.tolist(), graph.is_blind.tolist()
    writes = graph.is_writer.tolist()
    taken, used = [False] * len(right), [False] * len(right)
    for op in range(len(graph)):
        for value in graph.takes[op]:
            taken[value] = True
            used[value] = used[value] or not blind[op]
    found = []
    for op in range(until):
        if unset[op]:
            continue
        gives = graph.gives[op]
        is_end = not any(taken[v] for v in gives)
        wrong = [v for v in gives if known[v] and not right[v] and (used[v] or is_end)]
        takes = graph.takes[op][int(writes[op]) :]
        if wrong and all(right[v] or not known[v] for v in takes):
            found.append(op)
    harmful = _leading_to(graph, ends)
    return [op for op in found if harmful[op]] or found


def _wrong(half: Half, op: int) -> list[int]:
    """Return the results of an op that are wrong, or else that differ, or else all."""
    gives = half.graph.gives[op]
    return [v for v in gives if not half.right[v]] or [v for v in gives if half.far[v] > 0] or gives


def _outside(half: Half, until: int) -> tuple[int, int] | None:
    """Return the first op before one that took a differing value from outside, and the value."""
    graph = half.graph
    differs = (graph.maker < 0) & (half.far > half.noise) & ~half.right
    for op in range(until):
        for value in graph.takes[op][int(graph.is_writer[op]) :]:
            if differs[value]:
                return op, value
    return None


def _origin(found: Compared, op: int) -> int:
    """Go back from an op to the one whose result first was off at all.

    Errors grow on their way, so the first op beyond noise may be later than the op at fault. This
    only holds for runs that agree bit for bit before: else the way back ends at any rounding.
    """
    half = found.b
    graph, far = half.graph, half.far
    if not _is_exact_before(found, op):
        return op
    while True:
        takes = graph.takes[op][int(graph.is_writer[op]) :]
        takes = [v for v in takes if graph.maker[v] >= 0]
        off = [(far[v], v) for v in takes if far[v] > 0]
        # What has nothing in its place in the other run was put in, or replaced.
        alone = [v for v in takes if np.isnan(far[v]) and half.facts.known[v] and graph.depends[v]]
        if not off:
            return int(graph.maker[alone[0]]) if alone else op
        op = int(graph.maker[max(off)[1]])


def _changed(found: Compared, before: int) -> int:
    """Return the first op up to one that was given other numbers, and so gives another result.

    Its own error may be too small to count; that of what is computed from it need not be.
    """
    a, b = found.a, found.b
    leads = _leading_to(b.graph, b.graph.takes[before])
    for op_b in range(before):
        op_a = int(found.pairs[op_b])
        if op_a < 0 or not leads[op_b]:
            continue
        before_it = max((float(b.far[v]) for v in b.graph.takes[op_b]), default=0.0)
        after_it = max((float(b.far[v]) for v in b.graph.gives[op_b]), default=0.0)
        if after_it > _JUMP * max(before_it, _ROUNDED) and different_arguments(
            a.graph, op_a, b.graph, op_b
        ):
            return op_b
    return before


def _leading_to(graph: FlowGraph, values: list[int]) -> list[bool]:
    """Return which ops something was computed by that values were computed from."""
    # Results that are kept for the backward pass come back under numbers of their own.
    trains = bool((graph.run.phase[graph.rows] == BACKWARD).any())
    same = graph.same_as.tolist() if trains else [-1] * len(graph.maker)
    wanted = {same[v] if same[v] >= 0 else v for v in values}
    leads = [False] * len(graph)
    for op in range(len(graph) - 1, -1, -1):
        if not wanted.isdisjoint(graph.gives[op]):
            leads[op] = True
            wanted.update(same[v] if same[v] >= 0 else v for v in graph.takes[op])
    return leads


def _is_exact_before(found: Compared, op: int) -> bool:
    """Return whether most ops of `b` before one that correspond and took equal values gave such."""
    graph, far = found.b.graph, found.b.far
    pairs = found.pairs.tolist()
    exact = same = 0
    for before in range(op):
        if pairs[before] >= 0 and all(far[v] == 0 for v in graph.takes[before]):
            exact += 1
            same += all(far[v] == 0 for v in graph.gives[before])
    return exact >= 8 and same >= 0.97 * exact
