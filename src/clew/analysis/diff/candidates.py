"""Places where two runs may part, most likely first, for those who can check them.

Input: `Compared`. Output: `PartingPlace`s: the one that `first_parting` names, then every other op
of `b` that took only right values and returned a wrong one, in order, and at last a changed number
or text whose effect is below the noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from clew.analysis.diff.compared import Compared
from clew.analysis.diff.parting import EXTRA, WRONG, PartingPlace, first_parting, small_parting


def candidates(found: Compared) -> Iterator[PartingPlace]:
    """Give the places where the runs may part; none if they agree up to noise."""
    first, small = first_parting(found), small_parting(found)
    if first is not None:
        yield from _from_first(found, first)
    if small is not None:
        yield small


def _from_first(found: Compared, first: PartingPlace) -> Iterator[PartingPlace]:
    yield first
    half = found.b
    graph, known, right = half.graph, half.facts.known, half.right
    for op in range(max(first.op_b + 1, 0), len(graph)):
        if graph.is_uninitialised[op] or not all(right[v] or not known[v] for v in graph.takes[op]):
            continue
        wrong = [v for v in graph.gives[op] if known[v] and not right[v]]
        if wrong:
            yield PartingPlace(WRONG, int(found.pairs[op]), op, wrong[0], of_a=False)


def place_before(found: Compared, value: int) -> PartingPlace:
    """Go back from a value of `b` that differs to the op that took only what agrees."""
    half = found.b
    while True:
        op = int(half.graph.maker[value])
        off = [
            v
            for v in half.graph.takes[op]
            if half.far[v] > half.noise[v] and half.graph.maker[v] >= 0
        ]
        if not off:
            break
        value = off[0]
    op_a = int(found.pairs[op])
    return PartingPlace(WRONG if op_a >= 0 else EXTRA, op_a, op, value, of_a=False)
