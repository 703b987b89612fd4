"""Values that one run computes in slices and the other at once: token by token, head by head.

Input: the data flow and the facts of both runs of other code. Output: how far each value is from
what it is a slice of, or from its slices taken together. The results of one line in successive
calls are joined in every way that gives the size of a value of the other run; what is known of the
whole follows from what is known of its slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clew.analysis.diff.distance import ValueFacts, distances, orders_between
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.orders import Order, Orders
from clew.analysis.diff.value_matching import match
from clew.events.columns import Flags, Floats, Ints
from clew.events.fingerprint import MOST_AXES, SUMS, block_of

_Number = TypeVar("_Number", np.int64, np.float64)

# Fewer elements than this in slices of which there may be many agree by chance.
_FEWEST = 16
# Of the results of one line so many numbers are tried to be joined, the largest first.
_MOST_LENGTHS = 8


@dataclass(frozen=True, slots=True)
class _Joined:
    """Slices that may be one value: the numbers of the slices of each, and the facts of each."""

    slices: list[Ints]
    facts: ValueFacts
    noise: Floats


def sliced_distances(
    mine: FlowGraph, facts: ValueFacts, noise: Floats,
    other: FlowGraph, other_facts: ValueFacts, other_noise: Floats, unmatched: Flags,
) -> tuple[Floats, Flags]:  # fmt: skip
    """Return how far values are from what they are slices of, or from all their slices, else NaN;
    and which of them are slices that are known to be in the same order.

    Only what is equal up to noise, and is not known to be in another order, is the same.
    """
    far: Floats = np.full(len(unmatched), np.nan)
    in_order = np.zeros(len(unmatched), dtype=bool)
    if not unmatched.any():
        return far, in_order
    joined = _joined(mine, facts, noise, unmatched, other_facts)
    if joined is not None:
        for at, error, order in _equal(other_facts, other_noise, joined.facts, joined.noise):
            far[joined.slices[at]] = np.fmin(far[joined.slices[at]], error)
            in_order[joined.slices[at]] |= order == Order.SAME
    theirs = _joined(other, other_facts, other_noise, other_facts.known, facts)
    if theirs is not None:
        wanted = unmatched & np.isin(facts.count, theirs.facts.count)
        for value, error, _ in _equal(theirs.facts, theirs.noise, facts, noise, wanted):
            far[value] = np.fmin(far[value], error)
    # A value may be less precise than what it was compared with: that says nothing about it.
    far[far > noise] = np.nan
    return far, in_order & ~np.isnan(far)


def _equal(
    a: ValueFacts, noise_a: Floats, b: ValueFacts, noise_b: Floats, wanted: Flags | None = None
) -> Iterator[tuple[int, float, int]]:
    """Give the values of `b` that equal one of `a`, how far they are from it, and their order."""
    partner = match(a, b, noise_a, noise_b, wanted)
    values = np.flatnonzero((partner >= 0) & (b.count >= _FEWEST))
    errors = distances(a, partner[values], b, values)
    orders = orders_between(a, partner[values], b, values, errors)
    for value, error, order in zip(values.tolist(), errors.tolist(), orders.tolist(), strict=True):
        if order >= Order.UNKNOWN:
            yield value, error, order


def _joined(
    graph: FlowGraph, facts: ValueFacts, noise: Floats, wanted: Flags, other: ValueFacts
) -> _Joined | None:
    """Join slices, some of which are wanted, to values of which the other run has some as large."""
    sizes = set(other.count[other.says_much & ~other.exact].tolist())
    tables = [
        table[wanted[table].any(axis=1)]
        for group in _groups(graph, facts)
        if wanted[group].any()
        for table in _tables(group, facts, sizes)
    ]
    tables = [table[_are_joinable(graph, table)] for table in tables if len(table)]
    tables = [table for table in tables if len(table)]
    if not tables:
        return None
    slices = [row for table in tables for row in table]

    def each(column: NDArray[_Number], how: np.ufunc) -> NDArray[_Number]:
        return np.concatenate([how.reduce(column[table], axis=1) for table in tables])

    joined = ValueFacts(
        each(facts.count, np.add), each(facts.nonfinite, np.add), each(facts.zeros, np.add),
        each(facts.total, np.add), np.sqrt(each(facts.norm**2, np.add)),
        each(facts.low, np.minimum), each(facts.high, np.maximum),
        np.full(len(slices), -1, dtype=np.int64), np.zeros(len(slices), dtype=bool),
        _StackedOrders(graph, facts.orders, slices),
    )  # fmt: skip
    return _Joined(slices, joined, each(noise, np.maximum))


def _groups(graph: FlowGraph, facts: ValueFacts) -> Iterator[Ints]:
    """Give results that ops of one line gave, in order, each in several ways.

    The line may be reached on one way or on several, in one module or in several, and give results
    of one shape or of several.
    """
    run, first = graph.run, np.array(graph.gives.first, dtype=np.int64)
    op = np.repeat(np.arange(len(graph)), np.diff(first))
    position = np.arange(len(op)) - first[op]
    made = facts.known & ~facts.exact & (facts.count > 0)
    mine = np.flatnonzero(made[graph.gives.values])
    value, row = graph.gives.values[mine], graph.rows[op[mine]]
    same = graph.name_codes[op[mine]], position[mine]
    stack, line = run.columns.place[row], _lines(graph)[run.derived.source[row]]
    module, shape = run.derived.module[row], run.columns.meta[value]
    seen: set[bytes] = set()
    for key in (
        (stack, module, shape), (stack, shape), (line, module, shape), (line, shape),
        (line, module), (line,),
    ):  # fmt: skip
        order = np.lexsort((*same, *key))
        changes = [np.diff(column[order]) != 0 for column in (*same, *key)]
        for group in np.split(value[order], np.flatnonzero(np.any(changes, axis=0)) + 1):
            if len(group) > 1 and group.tobytes() not in seen:
                seen.add(group.tobytes())
                yield group


def _lines(graph: FlowGraph) -> Ints:
    """Return a number for the line of each place, whatever called it; -1 as that of no place."""
    known: dict[tuple[str, int], int] = {}
    places = graph.run.columns.places
    numbers = [known.setdefault((place.file, place.line), len(known)) for place in places]
    return np.array([*numbers, -1], dtype=np.int64)


def _tables(group: Ints, facts: ValueFacts, sizes: set[int]) -> Iterator[Ints]:
    """Give ways to cut a group into rows of slices that together have one of some sizes.

    Slices follow each other, or are those of every so manieth call: of one layer in each step.
    """
    total, counts = len(group), facts.count[group]
    count = int(counts[0]) if (counts == counts[0]).all() else 0
    lengths = [n for n in range(total, 1, -1) if total % n == 0]
    lengths = [n for n in lengths if not count or n * count in sizes]
    for length in lengths[:_MOST_LENGTHS]:
        tables = [group.reshape(-1, length), group.reshape(length, -1).T]
        for table in tables[: 1 + (length < total)]:
            if not count:
                sums = facts.count[table].sum(axis=1).tolist()
                table = table[[size in sizes for size in sums]]
            yield table


def _are_joinable(graph: FlowGraph, table: Ints) -> list[bool]:
    """Return for each row whether its slices have one dtype, and differ along one axis at most."""
    metas, found = graph.run.metas, []
    for row in graph.run.columns.meta[table].tolist():
        some = [metas[meta] for meta in set(row)]
        is_alike = len({(meta.dtype, len(meta.shape or ())) for meta in some}) == 1
        axes = zip(*(meta.shape or () for meta in some), strict=False)
        found.append(is_alike and sum(len(set(sizes)) > 1 for sizes in axes) <= 1)
    return found


class _StackedOrders(Orders):
    """The fingerprints of values along whose first axis slices are stacked."""

    def __init__(self, graph: FlowGraph, orders: Orders, slices: list[Ints]) -> None:
        super().__init__(graph.run)
        self._slices, self._orders = slices, orders
        self.largest = np.array([orders.largest[one].max() for one in slices])
        self.tolerance = np.array([orders.tolerance[one].max() for one in slices])

    def _read(self, values: list[int]) -> Iterator[tuple[int, Floats]]:
        for value in values:
            slices = self._slices[value]
            numbers = self._orders.shape_numbers(slices)
            shape = self._orders.shapes[numbers[0]] if numbers.min() >= 0 else ()
            if (numbers == numbers[0]).all() and 0 < len(shape) < MOST_AXES:
                yield value, _stacked(shape, self._orders.sums(slices))


def _stacked(shape: tuple[int, ...], sums: Floats) -> Floats:
    """Return the packed fingerprint of slices of one shape, given the sums of each as a row."""
    head = [len(shape) + 1, len(sums), *shape]
    along = np.add.reduceat(sums[:, 0], np.arange(0, len(sums), block_of(len(sums))))
    added = sums.sum(axis=0)
    return np.concatenate([head, added[: len(SUMS)], along, added[len(SUMS) :]])
