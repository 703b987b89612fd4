"""How far two values are from each other, by what was recorded of them.

Input: statistics and digests of both runs. Output: for each pair an estimate of the relative error
of an element, 0 for equal digests, infinite for values that cannot be the same. Statistics forgive
the order of elements; `permuted` says when that is all that differs, as far as digests and, where
there are any, fingerprints tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.orders import Order, Orders, apart_in_place, orders_of
from clew.events.columns import Flags, Floats, Ints

# Sums of equal elements in another order differ by this much, rounding of elements by far more.
SAME_ELEMENTS = 1e-12
# Values that differ by more than this are not the same in another order.
_NEAR = 1e-2
# What rounding of an element adds to sums at most, in parts of what tells no order from another.
_ROUNDED = 0.1
# Only in double precision this little tells one order from another.
_DOUBLE = 1e-9
# Fewer elements than this agree by chance.
_FEWEST = 6
# What the other elements of a tensor add to its sums if a single number outweighs them.
_RARE = 1e-6


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """What is known of the values of one run, an array each; digests as numbers both runs share."""

    count: Ints
    nonfinite: Ints
    zeros: Ints
    total: Floats
    norm: Floats
    low: Floats
    high: Floats
    digest: Ints
    exact: Flags
    orders: Orders

    @property
    def known(self) -> Flags:
        """Return which values have statistics."""
        return np.asarray(self.count >= 0)

    @property
    def says_much(self) -> Flags:
        """Return which values cannot agree by chance.

        Not those of few elements or of one number only, nor those in which one number, at some
        places, outweighs all others: scores of which some are masked with -1e9.
        """
        varied = self.known & (self.count >= _FEWEST) & (self.high > self.low)
        with np.errstate(all="ignore"):
            extreme = np.where(-self.low > self.high, self.low, self.high)
            places = np.round((self.norm / extreme) ** 2)
            squares = np.abs(self.norm**2 - places * extreme**2) <= _RARE * self.norm**2
            sums = np.abs(self.total - places * extreme) <= _RARE * np.abs(places * extreme)
        return np.asarray(varied & ~(squares & sums))


def facts_of(a: FlowGraph, b: FlowGraph) -> tuple[ValueFacts, ValueFacts]:
    """Return the facts of both runs."""
    codes: dict[str, int] = {}
    return _facts(a, codes), _facts(b, codes)


def _facts(graph: FlowGraph, codes: dict[str, int]) -> ValueFacts:
    stats = graph.run.stats
    count = stats["count"]
    digest = [-1 if d is None else codes.setdefault(d, len(codes)) for d in graph.digests]
    integral = [
        not meta.dtype.startswith(("float", "bfloat", "complex")) for meta in graph.run.metas
    ]
    exact = np.array([*integral, False], dtype=bool)[graph.run.columns.meta]
    return ValueFacts(
        count,
        stats["nan"] * (1 << 32) + stats["inf"],
        stats["zeros"],
        np.nan_to_num(stats["mean"]) * count,
        np.nan_to_num(stats["norm"]),
        np.nan_to_num(stats["min"]),
        np.nan_to_num(stats["max"]),
        np.array(digest, dtype=np.int64),
        exact,
        Orders(graph.run),
    )


@np.errstate(all="ignore")
def distances(a: ValueFacts, of_a: Ints, b: ValueFacts, of_b: Ints) -> Floats:
    """Estimate the relative error of each pair; NaN where one has no statistics."""
    count = a.count[of_a]
    scale = np.maximum(a.norm[of_a], b.norm[of_b])
    root = np.sqrt(np.maximum(count, 1))
    element = scale / root
    size = np.maximum.reduce(
        [element, *(np.abs(x) for x in (a.low[of_a], a.high[of_a], b.low[of_b], b.high[of_b]))]
    )
    error = np.maximum.reduce([
        np.abs(a.total[of_a] - b.total[of_b]) / scale,
        np.abs(a.norm[of_a] - b.norm[of_b]) * root / scale,
        np.abs(a.low[of_a] - b.low[of_b]) / size,
        np.abs(a.high[of_a] - b.high[of_b]) / size,
    ])  # fmt: skip
    error = np.where(scale == 0, 0.0, error)
    other = (count != b.count[of_b]) | (a.nonfinite[of_a] != b.nonfinite[of_b])
    error = np.where(other, np.inf, error)
    whole = a.exact[of_a] & b.exact[of_b] & (error > 0)
    error = np.where(whole, np.inf, error)
    unknown = (count < 0) | (b.count[of_b] < 0)
    same = (a.digest[of_a] >= 0) & (a.digest[of_a] == b.digest[of_b])
    return np.where(same, 0.0, np.where(unknown, np.nan, error))


def permuted(a: ValueFacts, of_a: Ints, b: ValueFacts, of_b: Ints) -> Flags:
    """Return which pairs have the same elements in another order: axis by axis, or bit for bit."""
    far = distances(a, of_a, b, of_b)
    known = (a.digest[of_a] >= 0) & (b.digest[of_b] >= 0)
    same = known & (a.digest[of_a] == b.digest[of_b])
    found = known & ~same & (far <= SAME_ELEMENTS)
    found[found] = ~_only_rounded(a, of_a[found], b, of_b[found])
    # What is far apart is no permutation, whatever its order.
    near = np.flatnonzero(~found & ~same & (far <= _NEAR))
    orders = orders_of(a.orders, of_a[near], b.orders, of_b[near], far[near], in_place=True)
    found[near] = orders < Order.UNKNOWN
    return np.asarray(found)


def _only_rounded(a: ValueFacts, of_a: Ints, b: ValueFacts, of_b: Ints) -> Flags:
    """Return which pairs of about the same sums differ in the last bits of some elements only.

    If few do, what they add to the sums may cancel. In a permutation whole elements change places,
    unless it stays within the blocks of an axis, which changes no sum at all. Sums of double
    precision do not tell such from rounding of the elements.
    """
    tolerance = np.maximum(a.orders.tolerance[of_a], b.orders.tolerance[of_b])
    is_double = (tolerance > 0) & (tolerance < _DOUBLE)
    apart = apart_in_place(a.orders, of_a, b.orders, of_b)
    rounded = (apart <= _ROUNDED * tolerance) & (is_double | (apart > SAME_ELEMENTS))
    return np.asarray(np.where(np.isnan(apart), is_double, rounded))


def order_between(
    a: ValueFacts, of_a: int, b: ValueFacts, of_b: int, in_place: bool = False
) -> Order:
    """Return how the elements of two equal values are ordered, whatever their layouts; with
    `in_place` the first axis of one is that of the other, and so on.
    """
    x, y = np.array([of_a]), np.array([of_b])
    return Order(int(orders_between(a, x, b, y, distances(a, x, b, y), in_place)[0]))


def orders_between(
    a: ValueFacts, of_a: Ints, b: ValueFacts, of_b: Ints, far: Floats, in_place: bool = False
) -> Ints:
    """Return how the elements of pairs of equal values are ordered, by how far they are apart."""
    found: Ints = np.full(len(of_a), int(Order.SAME), dtype=np.int64)
    other = np.flatnonzero((a.digest[of_a] < 0) | (a.digest[of_a] != b.digest[of_b]))
    found[other] = orders_of(a.orders, of_a[other], b.orders, of_b[other], far[other], in_place)
    return found
