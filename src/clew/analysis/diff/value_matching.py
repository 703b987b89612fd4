"""Which values of two runs are the same, whatever op made them.

Input: the facts of both runs. Output: for each value of one the nearest equal value of the other,
or -1. Values that say little (a single number, all elements equal) match nothing.
"""

from __future__ import annotations

import functools

import numpy as np

from clew.analysis.diff.distance import Floats, ValueFacts, distances, order_between
from clew.analysis.diff.flow_graph import Flags, FlowGraph
from clew.analysis.diff.orders import Order, order_of
from clew.events.columns import Ints

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
        orders = _orders(a, ia, b, ib, far)
        better = (orders > rank[ib]) | ((orders == rank[ib]) & (far < best[ib]))
        rank[ib[better]] = orders[better]
        best[ib[better]] = far[better]
        found[ib[better]] = ia[better]
    return found


def _orders(a: ValueFacts, of_a: Ints, b: ValueFacts, of_b: Ints, far: Floats) -> Floats:
    """Return how far the order of the elements of each pair is the same."""
    same = (a.digest[of_a] >= 0) & (a.digest[of_a] == b.digest[of_b])
    found: Floats = np.full(len(far), float(Order.SAME))
    for at in np.flatnonzero(~same).tolist():
        pair = (a.orders, int(of_a[at]), b.orders, int(of_b[at]))
        found[at] = order_of(*pair, float(far[at]))
    return found


def disordered(
    graph: FlowGraph, facts: ValueFacts, other: ValueFacts, partner: Ints, values: Ints
) -> Ints:
    """Return those of some values that an op has put into another order than their partners have.

    The order of what the op took must be known and better: a permutation that comes with the
    weights, or that no value shows, is a layout of its own.
    """
    tells, maker, partners = facts.says_much.tolist(), graph.maker.tolist(), partner.tolist()

    @functools.cache
    def order(value: int) -> Order:
        if partners[value] < 0:
            return Order.UNKNOWN
        return order_between(other, partners[value], facts, value)

    def is_worse(value: int) -> bool:
        if maker[value] < 0 or order(value) >= Order.UNKNOWN:
            return False
        before = [order(taken) for taken in graph.takes[maker[value]] if tells[taken]]
        return bool(before) and all(o > order(value) and o != Order.UNKNOWN for o in before)

    return np.array([value for value in values.tolist() if is_worse(value)], dtype=np.int64)


def _within(norm: Floats) -> Floats:
    """Squeeze a norm between 0 and 1, in order."""
    logs = np.log2(np.maximum(norm, 1e-300))
    return np.asarray((logs + 1000.0) / 2048.0)
