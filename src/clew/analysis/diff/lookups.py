"""Which op of other code looks up other rows of a table, or made the numbers of these rows.

Input: `Compared` and the op of `b` at which two runs of other code part. Output: an op of `b`, and
the lookup of `a`. Rows of one table in another order have the same statistics, and layouts of other
code may be turned, so that what was looked up seems to agree. But both runs must look up the same
rows of a table that both have: words, positions, biases of distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import distances
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.orders import Order, orders_of
from clew.analysis.diff.unmatched_regions import origin
from clew.events.columns import Flags

LOOKUPS = frozenset({"embedding", "index", "index_select", "gather"})


@dataclass(frozen=True, slots=True)
class _Lookup:
    """An op that takes the rows `index` of a parameter."""

    op: int
    table: int
    index: int


def other_lookup(found: Compared, op_b: int) -> tuple[int, int] | None:
    """Return the lookup of `a`, and the op of `b` that makes its own one another; None for none.

    Each run has looked up as many rows of a table as the other never does, before an op of `b`.
    """
    only_a, only_b = _unlike(found, _lookups(found.a), _lookups(found.b))
    leads = leading_to(found.b.graph, [op_b])
    for lookup in only_b:
        others = [one for one in only_a if _are_beside(found, one, lookup)]
        if not leads[lookup.op] or any(_are_alike(found, one, lookup) for one in others):
            continue
        for one in others:
            if not any(_are_alike(found, one, other) for other in only_b):
                return one.op, first_other(found, lookup.op, [lookup.index])
    return None


def _unlike(
    found: Compared, mine: list[_Lookup], theirs: list[_Lookup]
) -> tuple[list[_Lookup], list[_Lookup]]:
    """Return the lookups of each run of which the other has none with the same digest."""
    a, b = found.a, found.b
    keys_a = [(one.table, int(a.facts.digest[one.index])) for one in mine]
    keys_b = [(int(b.partner[one.table]), int(b.facts.digest[one.index])) for one in theirs]
    common = {key for key in set(keys_a) & set(keys_b) if key[1] >= 0}
    only_a = [one for one, key in zip(mine, keys_a, strict=True) if key not in common]
    only_b = [one for one, key in zip(theirs, keys_b, strict=True) if key not in common]
    return only_a, only_b


def _lookups(half: Half) -> list[_Lookup]:
    """Return the ops that look up rows of parameters by numbers which no float has led to."""
    graph, exact = half.graph, half.facts.exact
    computed = from_floats(half)
    found = []
    for op in np.flatnonzero(graph.are(LOOKUPS)).tolist():
        takes = graph.takes[op]
        if len(takes) == 2 and exact[takes[1]] and not computed[takes[1]]:
            table = origin(graph, takes[0])
            if graph.maker[table] < 0 and half.partner[table] >= 0:
                found.append(_Lookup(op, table, takes[1]))
    return found


def from_floats(half: Half) -> list[bool]:
    """Return which values were computed from numbers that came from outside and are no integers."""
    graph = half.graph
    found: list[bool] = (graph.depends & (graph.maker < 0) & ~half.facts.exact).tolist()
    for op in np.flatnonzero(~graph.is_blind).tolist():
        if any(found[value] for value in graph.takes[op]):
            for value in graph.gives[op]:
                found[value] = True
    return found


def leading_to(graph: FlowGraph, ops: Sequence[int]) -> Flags:
    """Return which ops lead to some ops, or are one of them."""
    leads = np.zeros(len(graph), dtype=bool)
    leads[list(ops)] = True
    for op in range(max(ops, default=-1), -1, -1):
        if leads[op]:
            makers = graph.maker[graph.takes[op]]
            leads[makers[makers >= 0]] = True
    return leads


def _are_beside(found: Compared, of_a: _Lookup, of_b: _Lookup) -> bool:
    """Return whether two lookups take as many rows of the same table."""
    counts = found.a.facts.count[of_a.index], found.b.facts.count[of_b.index]
    return bool(found.b.partner[of_b.table] == of_a.table and counts[0] == counts[1])


def _are_alike(found: Compared, of_a: _Lookup, of_b: _Lookup) -> bool:
    """Return whether two lookups take the same rows of the same table."""
    return _are_beside(found, of_a, of_b) and same_integers(found, of_a.index, of_b.index)


def first_other(found: Compared, op: int, taken: list[int]) -> int:
    """Go back from an op of `b` by integers that it took to the first that `a` nowhere has."""
    graph, waiting = found.b.graph, taken
    while waiting:
        value = waiting.pop()
        maker = int(graph.maker[value])
        if 0 <= maker < op and not _is_known(found, value):
            op = maker
            waiting = [v for v in graph.takes[op] if found.b.facts.exact[v]]
    return op


def _is_known(found: Compared, value: int) -> bool:
    """Return whether `a` has the integers of a value of `b`; a single number says nothing."""
    a, count = found.a.facts, int(found.b.facts.count[value])
    others = np.flatnonzero(a.exact & (a.count == count)).tolist() if count > 1 else []
    return count <= 1 or any(same_integers(found, one, value) for one in others)


def same_integers(found: Compared, of_a: int, of_b: int) -> bool:
    """Return whether two values have the same integers, as far as it is known: in the same order,
    or in another layout if they have other shapes.
    """
    a, b = found.a.facts, found.b.facts
    if a.digest[of_a] >= 0 and a.digest[of_a] == b.digest[of_b]:
        return True
    x, y = np.array([of_a]), np.array([of_b])
    if a.count[of_a] != b.count[of_b] or distances(a, x, b, y)[0] > 0:
        return False
    of_a_look, of_b_look = (
        half.graph.run.value(v) for half, v in ((found.a, of_a), (found.b, of_b))
    )
    is_same = of_a_look.shape == of_b_look.shape
    if is_same and of_a_look.dtype == of_b_look.dtype and min(a.digest[of_a], b.digest[of_b]) >= 0:
        return False
    return bool(orders_of(a.orders, x, b.orders, y, np.zeros(1), is_same)[0] >= Order.UNKNOWN)
