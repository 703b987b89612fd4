"""Places where two runs may part, most likely first, for those who can check them.

Input: `Compared`. Output: `PartingPlace`s: the one that `first_parting` names, then every other op
of `b` that took only right values and returned a wrong one, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from clew.analysis.diff.compared import Compared
from clew.analysis.diff.parting import WRONG, PartingPlace, first_parting


def candidates(found: Compared) -> Iterator[PartingPlace]:
    """Give the places where the runs may part; none if they agree up to noise."""
    first = first_parting(found)
    if first is None:
        return
    yield first
    half = found.b
    graph, known, right = half.graph, half.facts.known, half.right
    for op in range(max(first.op_b + 1, 0), len(graph)):
        if graph.is_uninitialised[op] or not all(right[v] or not known[v] for v in graph.takes[op]):
            continue
        wrong = [v for v in graph.gives[op] if known[v] and not right[v]]
        if wrong:
            yield PartingPlace(WRONG, int(found.pairs[op]), op, wrong[0], of_a=False)
