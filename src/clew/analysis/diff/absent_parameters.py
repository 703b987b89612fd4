"""Which op of `a` takes a parameter or an input that other code never takes: the one `b` lacks.

Input: `Compared` of other code, and the region of `a` in which the runs part. Output: an op of `a`.
A parameter without a partner may be part of a fused one. If it were, that of another layer would
be, too; and all that were fused add up: what is missing from the sums over those of `b` is the
parameter, or those of the module, that are absent.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.counterparts import moved_from
from clew.analysis.diff.lines_elsewhere import NUMBER
from clew.analysis.diff.unmatched_regions import Region, origin
from clew.events.columns import Floats

# Sums of as many numbers differ by less than this part of them.
_CLOSE = 1e-5
# So many values before a branch may be the one that it joins again.
_STEM = 8


def taker_of_absent(found: Compared, of_a: Region) -> int:
    """Return the first op that takes what `b` never takes, and else what is right; -1 for none."""
    half = found.a
    absent = set(_absent(found))
    if not absent:
        return -1
    graph, inside = half.graph, set(of_a.ops)
    for op in range(len(graph)):
        takes = graph.takes[op]
        if graph.is_move[op] or not any(origin(graph, v) in absent for v in takes):
            continue
        known = (half.right[v] or int(graph.maker[v]) in inside for v in takes)
        if all(known) and not all(half.right[v] for v in graph.gives[op]):
            return _joining(half, op, absent)
    return -1


def _joining(half: Half, first: int, absent: set[int]) -> int:
    """Return the op at which a branch that begins with an op, and has only absent parameters, joins
    the value that it branched off from; the first op if there is none, or if it could be left out
    alone: it gives as many numbers as it took.
    """
    graph, count = half.graph, half.facts.count
    data = [v for v in graph.takes[first] if origin(graph, v) not in absent and graph.depends[v]]
    if any(count[v] == count[graph.gives[first][0]] for v in data):
        return first
    roots = moved_from(graph, count.tolist())
    stem, waiting = set[int](), [first]
    while waiting and len(stem) < _STEM:
        taken = {roots[v] for v in graph.takes[waiting.pop()] if graph.depends[v]} - absent - stem
        stem |= taken
        waiting += [int(graph.maker[v]) for v in taken if graph.maker[v] >= 0]
    branch = set(graph.gives[first])
    for op in range(first + 1, len(graph)):
        takes = set(graph.takes[op])
        if branch.isdisjoint(takes):
            continue
        others = {roots[v] for v in takes - branch if graph.depends[v]}
        if others - absent:
            return op if others <= stem else first
        branch.update(graph.gives[op])
    return first


def _absent(found: Compared) -> Iterable[int]:
    """Return the values from outside that only `a` takes."""
    alone_a, alone_b = _unmatched(found.a), _unmatched(found.b)
    digests = set(found.b.facts.digest[found.b.graph.maker < 0].tolist()) - {-1}
    alone_a = [v for v in alone_a if int(found.a.facts.digest[v]) not in digests]
    if not alone_b:
        return alone_a
    # A parameter that only this layer of `b` has may be the one of `a`, changed.
    odd_a, odd_b = _unlike_other_layers(found.a, alone_a), _unlike_other_layers(found.b, alone_b)
    sizes = set(found.b.facts.count[odd_b].tolist())
    odd_a = [v for v in odd_a if int(found.a.facts.count[v]) not in sizes]
    if odd_a:
        return odd_a
    whole = _sums(found.a, alone_a)
    lacking = whole - _sums(found.b, alone_b)
    for group in _groups(found.a, alone_a):
        apart = np.abs(_sums(found.a, group) - lacking)
        if apart[0] == 0 and (apart <= _CLOSE * whole[1]).all():
            return group
    return []


def _unmatched(half: Half) -> list[int]:
    """Return the numbers from outside that an op takes and that the other run does not have."""
    graph, facts = half.graph, half.facts
    taken = np.zeros(len(graph.maker), dtype=bool)
    taken[graph.takes.values] = True
    alone = taken & (graph.maker < 0) & (half.partner < 0) & facts.says_much & ~facts.exact
    found: list[int] = np.flatnonzero(alone).tolist()
    return found


def _unlike_other_layers(half: Half, values: list[int]) -> list[int]:
    """Return those of some parameters that have no partner, but whose like in other layers do."""
    run, outside = half.graph.run, np.flatnonzero(half.graph.maker < 0)
    names = {value: run.value(value).name or "" for value in outside.tolist()}
    like: dict[str, list[int]] = {}
    for value, name in names.items():
        like.setdefault(NUMBER.sub("*", name), []).append(value)
    found = []
    for value in values:
        others = [v for v in like[NUMBER.sub("*", names[value])] if names[v] != names[value]]
        if others and all(half.partner[v] >= 0 for v in others):
            found.append(value)
    return found


def _sums(half: Half, values: list[int]) -> Floats:
    """Return how many numbers some values have, the sum of their squares, and their sum."""
    facts = half.facts
    return np.array([
        facts.count[values].sum(), (facts.norm[values] ** 2).sum(), facts.total[values].sum(),
    ], dtype=np.float64)  # fmt: skip


def _groups(half: Half, values: list[int]) -> Iterable[list[int]]:
    """Give each value alone, and those of each module together."""
    modules: dict[str, list[int]] = {}
    for value in values:
        name = half.graph.run.value(value).name or ""
        modules.setdefault(name.rpartition(".")[0], []).append(value)
        yield [value]
    yield from modules.values()
