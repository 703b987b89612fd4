"""Where two runs part: ops that took right values and returned a wrong one.

Input: `Compared`. Output: a `PartingPlace`, or None if nothing differs beyond noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import distances
from clew.analysis.diff.passed import tensors_of
from clew.events.columns import Ints

WRONG, MISSING, EXTRA, INPUTS = KINDS = ("wrong", "missing", "extra", "inputs")

# A result this many times as far off as the inputs is a jump, not the growth of an earlier error.
_JUMP = 8.0
_ROUNDED = 1e-7


@dataclass(frozen=True, slots=True)
class PartingPlace:
    """The first place where two runs part: ops of both, -1 for none, and the value that differs.

    `value` is one of `b`, or of `a` where `b` has none, as `of_a` says.
    """

    kind: str
    op_a: int
    op_b: int
    value: int
    of_a: bool


def first_parting(found: Compared) -> PartingPlace | None:
    """Return the first place where the runs part, None if they agree up to noise."""
    a, b = found.a, found.b
    if _same_end(a, b):
        return None
    ops_a, ops_b = _frontier(a), _frontier(b)
    given = _outside(b)
    if given is not None and (not ops_b or given[0] <= ops_b[0]):
        op, value = given
        return PartingPlace(INPUTS, int(found.pairs[op]), op, value, of_a=False)
    if not ops_a and not ops_b:
        return None
    op_a, op_b = (ops[0] if ops else -1 for ops in (ops_a, ops_b))
    if op_b >= 0:
        op_b = _changed(found, _origin(b, op_b) if (found.pairs >= 0).any() else op_b)
    if op_b < 0:
        return PartingPlace(MISSING, op_a, op_b, _wrong(a, op_a)[0], of_a=True)
    kind, op_a = _kind(found, op_a, op_b)
    passed = _passed_by_one(found, op_a, op_b) if kind == WRONG else None
    return passed or PartingPlace(kind, op_a, op_b, _wrong(b, op_b)[0], of_a=False)


def _passed_by_one(found: Compared, op_a: int, op_b: int) -> PartingPlace | None:
    """Return where one run makes a tensor that two ops that correspond do not both get.

    That is the first op on the way to it that the other run lacks; None if it runs all of them, and
    only does not pass their result on.
    """
    if op_a < 0 or found.pairs[op_b] != op_a:
        return None
    a, b = found.a, found.b
    mine, theirs = tensors_of(a, op_a), tensors_of(b, op_b)
    paired_a: Ints = np.full(len(a.graph), -1, dtype=np.int64)
    paired_a[found.pairs[found.pairs >= 0]] = np.flatnonzero(found.pairs >= 0)
    for path in [path for path in theirs if path not in mine]:
        op = _first_alone(b, theirs[path], found.pairs)
        if op >= 0:
            return PartingPlace(EXTRA, op_a, op, b.graph.gives[op][0], of_a=False)
    for path in [path for path in mine if path not in theirs]:
        op = _first_alone(a, mine[path], paired_a)
        if op >= 0:
            return PartingPlace(MISSING, op, op_b, a.graph.gives[op][0], of_a=True)
    return None


def _first_alone(half: Half, value: int, pairs: Ints) -> int:
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

    One run may give more than the other, such as hidden states.
    """
    wrong_a, wrong_b = _unlike(a, b), _unlike(b, a)
    counts = len(a.graph.ends), len(b.graph.ends)
    if not min(counts):
        return not _frontier(a) and not _frontier(b)
    if counts[0] == counts[1]:
        return not wrong_a and not wrong_b
    return not (wrong_a if counts[0] < counts[1] else wrong_b)


def _unlike(half: Half, other: Half) -> list[int]:
    """Return the values that come out of a run and agree with none that the other gives."""
    found = []
    others = np.array(other.graph.ends, dtype=np.int64)
    for value in half.graph.ends:
        if not half.facts.known[value] or half.far[value] <= half.noise[value]:
            continue
        far = distances(other.facts, others, half.facts, np.full_like(others, value))
        if not (far <= np.maximum(half.noise[value], other.noise[others])).any():
            found.append(value)
    return found


def _frontier(half: Half) -> list[int]:
    """Return the ops that took only right values and gave a wrong one that is used, in order."""
    graph, right = half.graph, half.right.tolist()
    known = half.facts.known.tolist()
    used = np.zeros(len(right), dtype=bool)
    used[graph.takes.values] = True
    leads = used.tolist()
    unset = graph.is_uninitialised.tolist()
    found = []
    for op in range(len(graph)):
        if unset[op]:
            continue
        gives = graph.gives[op]
        ends = not any(leads[v] for v in gives)
        wrong = [v for v in gives if known[v] and not right[v] and (leads[v] or ends)]
        if wrong and all(right[v] or not known[v] for v in graph.takes[op]):
            found.append(op)
    return found


def _wrong(half: Half, op: int) -> list[int]:
    """Return the results of an op that are wrong, or else that differ, or else all."""
    gives = half.graph.gives[op]
    return [v for v in gives if not half.right[v]] or [v for v in gives if half.far[v] > 0] or gives


def _outside(half: Half) -> tuple[int, int] | None:
    """Return the first op that took a value from outside that differs, and the value."""
    graph = half.graph
    differs = (graph.maker < 0) & (half.far > half.noise) & ~half.right
    for op in range(len(graph)):
        for value in graph.takes[op]:
            if differs[value]:
                return op, value
    return None


def _origin(half: Half, op: int) -> int:
    """Go back from an op to the one whose result first was off at all.

    Errors grow on their way, so the first op beyond noise may be later than the op at fault. This
    only holds for runs that agree bit for bit before: else the way back ends at any rounding.
    """
    graph, far = half.graph, half.far
    if not _is_exact_before(half, op):
        return op
    while True:
        takes = [v for v in graph.takes[op] if graph.maker[v] >= 0]
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
    leads = _leading_to(b, before)
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


def _leading_to(half: Half, op: int) -> list[bool]:
    """Return which ops something that an op took was computed by."""
    graph = half.graph
    wanted = set(graph.takes[op])
    leads = [False] * len(graph)
    for before in range(op - 1, -1, -1):
        if not wanted.isdisjoint(graph.gives[before]):
            leads[before] = True
            wanted.update(graph.takes[before])
    return leads


def _is_exact_before(half: Half, op: int) -> bool:
    """Return whether most ops before one that took exactly equal values returned such."""
    graph, far = half.graph, half.far
    exact = same = 0
    for before in range(op):
        if all(far[v] == 0 for v in graph.takes[before]):
            exact += 1
            same += all(far[v] == 0 for v in graph.gives[before])
    return exact >= 8 and same >= 0.97 * exact
