"""Which values of two runs are the same, whatever op made them.

Input: the facts of both runs. Output: for each value of one the nearest equal value of the other,
or -1. Values that say little (a single number, all elements equal) match nothing.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.distance import ValueFacts, distances, orders_between
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.orders import Order, orders_of
from clew.events.columns import Flags, Floats, Ints

_UNKNOWN = int(Order.UNKNOWN)
# Of many values of one size and norm, so many neighbours are compared.
_NEIGHBOURS = 16


def match(
    a: ValueFacts, b: ValueFacts, noise_a: Floats, noise_b: Floats, wanted: Flags | None = None
) -> Ints:
    """Return for each value of `b` an equal one of `a`, up to the noise of the noisier of both.

    Of several the one whose elements have the same order, in any layout, is taken. `wanted` says
    which values of `b` to match, all if it is not given.
    """
    found: Ints = np.full(len(b.count), -1, dtype=np.int64)
    best: Floats = np.full(len(b.count), np.inf)
    mine_a, mine_b = (np.flatnonzero(facts.says_much & ~facts.exact) for facts in (a, b))
    mine_b = mine_b if wanted is None else mine_b[wanted[mine_b]]
    if not len(mine_a) or not len(mine_b):
        return found
    order = mine_a[np.lexsort((a.norm[mine_a], a.count[mine_a]))]
    # One key for size and norm, so that neighbours in it are candidates.
    keys = a.count[order] * 4.0 + _within(a.norm[order])
    at = np.searchsorted(keys, b.count[mine_b] * 4.0 + _within(b.norm[mine_b]))
    rank: Floats = np.full(len(b.count), -1.0)
    for offset in sorted(range(-_NEIGHBOURS, _NEIGHBOURS), key=abs):
        near = at + offset
        ok = (near >= 0) & (near < len(order))
        ia, ib = order[near[ok]], mine_b[ok]
        far = distances(a, ia, b, ib)
        close = (far <= np.maximum(noise_a[ia], noise_b[ib])) & (
            (rank[ib] < Order.SAME) | (far < best[ib])
        )
        ia, ib, far = ia[close], ib[close], far[close]
        orders = orders_between(a, ia, b, ib, far)
        better = (orders > rank[ib]) | ((orders == rank[ib]) & (far < best[ib]))
        rank[ib[better]] = orders[better]
        best[ib[better]] = far[better]
        found[ib[better]] = ia[better]
    return found


def disordered(
    graph: FlowGraph, facts: ValueFacts, other: ValueFacts, partner: Ints, values: Ints,
    in_order: Flags,
) -> Ints:  # fmt: skip
    """Return those of some values that an op has put into another order than their partners have.

    The order of what the op took must be known and better: a permutation that comes with the
    weights, or that no value shows, is a layout of its own. `in_order` are slices of values, known
    to be in the same order.
    """

    def order_of(some: Ints) -> dict[int, int]:
        known = some[partner[some] >= 0]
        of_other = partner[known]
        far = distances(other, of_other, facts, known)
        orders = orders_between(other, of_other, facts, known, far)
        return dict(zip(known.tolist(), orders.tolist(), strict=True))

    tells = facts.says_much.tolist()
    worse = {v: o for v, o in order_of(values[graph.maker[values] >= 0]).items() if o < _UNKNOWN}
    took = {v: [n for n in graph.takes[int(graph.maker[v])] if tells[n]] for v in worse}
    before = order_of(np.unique(np.array([n for ns in took.values() for n in ns], dtype=np.int64)))
    before |= dict.fromkeys(np.flatnonzero(in_order).tolist(), int(Order.SAME))
    found = [
        value
        for value, order in worse.items()
        if took[value] and all(order < before.get(n, _UNKNOWN) != _UNKNOWN for n in took[value])
    ]
    return np.array(found, dtype=np.int64)


def turned_results(
    mine: FlowGraph, facts: ValueFacts, other: FlowGraph, other_facts: ValueFacts, noise: Floats
) -> Ints:
    """Return what comes out of a run with the elements of what comes out of the other, in another
    order. A layout that other values may have is none for results of one shape.
    """
    found = []
    of_mine, of_other = _ends_by_shape(mine), _ends_by_shape(other)
    for shape, values in of_mine.items():
        others = of_other.get(shape, [])
        if len(values) != 1 or len(others) != 1 or not facts.says_much[values[0]]:
            continue
        x, y = np.array(others), np.array(values)
        far = distances(other_facts, x, facts, y)
        same = 0 <= facts.digest[values[0]] == other_facts.digest[others[0]]
        if not same and far[0] <= noise[values[0]]:
            order = orders_of(other_facts.orders, x, facts.orders, y, far, in_place=True)
            found += values if order[0] < _UNKNOWN else []
    return np.array(found, dtype=np.int64)


def _ends_by_shape(graph: FlowGraph) -> dict[object, list[int]]:
    found: dict[object, list[int]] = {}
    for value in graph.ends:
        found.setdefault(graph.run.value(value).shape, []).append(value)
    return found


def _within(norm: Floats) -> Floats:
    """Squeeze a norm between 0 and 1, in order."""
    logs = np.log2(np.maximum(norm, 1e-300))
    return np.asarray((logs + 1000.0) / 2048.0)
