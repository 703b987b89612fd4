"""Which ops of two runs of other code lie between what agrees and the next place both must pass.

Input: one half of a comparison and its first wrong ops. Output: a `Region`. Other code computes the
same thing in other steps, most of which equal nothing of the other run. Any of them may be at fault
up to the next op that takes a parameter which both runs have: what both compute there is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.compared import Half
from clew.analysis.diff.flow_graph import FlowGraph
from clew.events.columns import Flags

# Without parameters in common a region has no end; further ops are less likely to be at fault.
_MOST = 400


@dataclass(frozen=True, slots=True)
class Region:
    """The wrong ops of one run before the next parameters of both, and ops that make constants.

    `constants` are the ops whose results the wrong ones take, and that use no input. `landmarks`
    are the parameters at which the region ends.
    """

    ops: list[int]
    constants: list[int]
    landmarks: frozenset[int]


def region_of(half: Half, first: list[int], landmarks: frozenset[int] | None = None) -> Region:
    """Return the region that begins with some ops, which take only right values.

    Parameters with a partner end it, or only those of `landmarks` if they are given.
    """
    graph, tells = half.graph, half.facts.says_much
    beginning, inside, beyond = set(first), set[int](), set[int]()
    ops: list[int] = []
    ended: set[int] = set()
    for op in range(min(first), len(graph)):
        takes = graph.takes[op]
        if op not in beginning and inside.isdisjoint(takes) and beyond.isdisjoint(takes):
            continue
        here = set() if op in beginning else _parameters(half, op, landmarks, tells)
        if here or not beyond.isdisjoint(takes):
            ended |= here if beyond.isdisjoint(takes) else set()
            beyond.update(graph.gives[op])
        elif len(ops) == _MOST:
            break
        else:
            ops.append(op)
            inside.update(v for v in graph.gives[op] if not half.right[v])
    return Region(ops, constant_makers(graph, ops), frozenset(ended))


def _parameters(half: Half, op: int, landmarks: frozenset[int] | None, tells: Flags) -> set[int]:
    """Return the parameters that an op takes and that end a region."""
    roots = {origin(half.graph, value) for value in half.graph.takes[op]}
    known = {v for v in roots if half.graph.maker[v] < 0 and half.partner[v] >= 0}
    known = {v for v in known if tells[v]}
    return known if landmarks is None else {v for v in known if int(half.partner[v]) in landmarks}


def origin(graph: FlowGraph, value: int) -> int:
    """Go back from a value whose elements were only moved to the one that they come from."""
    while graph.maker[value] >= 0 and graph.is_move[graph.maker[value]]:
        value = graph.takes[int(graph.maker[value])][0]
    return value


def constant_makers(graph: FlowGraph, ops: list[int]) -> list[int]:
    """Return the ops that make the constants which some ops take."""
    found: set[int] = set()
    waiting = list(ops)
    while waiting:
        for value in graph.takes[waiting.pop()]:
            maker = int(graph.maker[value])
            if maker >= 0 and maker not in found and not graph.depends[value]:
                found.add(maker)
                waiting.append(maker)
    return sorted(found)


def regions(a: Half, ops_a: list[int], b: Half, ops_b: list[int]) -> tuple[Region, Region]:
    """Return the regions of both runs that begin with their first wrong ops."""
    of_a = region_of(a, ops_a[:1])
    before = _first_taker(b, of_a.landmarks)
    return of_a, region_of(b, [op for op in ops_b if op < before] or ops_b[:1], of_a.landmarks)


def _first_taker(half: Half, landmarks: frozenset[int]) -> int:
    """Return the first op that takes one of the parameters of the other run, or the end."""
    graph = half.graph
    partner = half.partner
    marked = np.isin(partner, list(landmarks)) & (graph.maker < 0)
    for op in range(len(graph)):
        if any(marked[v] for v in graph.takes[op]):
            return op
    return len(graph)
