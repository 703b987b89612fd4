"""Which op of other code put elements into another order than the original has them in.

Input: `Compared` and the regions in which two runs part. Output: the op of `b` that moved elements
otherwise, with its counterpart. Whether a move is right only shows where its result is used: heads
may be split and merged in many ways, but what a projection takes must be in one order.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.counterparts import moved_from
from clew.analysis.diff.distance import distances, order_between
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.orders import Order
from clew.analysis.diff.unmatched_regions import Region

# What puts several tensors, or one several times, into one.
_ASSEMBLING = frozenset({
    "cat", "stack", "repeat", "expand", "index", "index_select", "gather", "repeat_interleave",
})  # fmt: skip
# What takes elements by their numbers.
_PICKING = frozenset({"index", "index_select", "gather", "flip", "roll"})
# What these give has an order of its own: it comes with the weights.
_MIXING = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "linear", "matmul",
})  # fmt: skip
# Sums of the same elements in another order differ by no more than this.
_MOVED = 1e-7


def reordered(found: Compared, of_a: Region, of_b: Region) -> tuple[int, int] | None:
    """Return the ops of both runs that order elements differently, None if none is known to."""
    a, b = found.a, found.b
    given_a, given_b = _given(a, of_a), _given(b, of_b)
    families = _families(a)
    for value, user in given_b.items():
        chain = _before(b, value)
        same = [x for x in given_a if _are_near(found, x, value)]
        best = max((_order_along(found, x, chain) for x in same), default=Order.SAME)
        if best >= Order.UNKNOWN or best >= (worst := _inherited(found, chain[-1], families)):
            continue
        for x in same:
            op = _culprit(found, x, chain, worst, user)
            op = op if op >= 0 else _reorderer(found, chain[-1], families)
            if op >= 0:
                return _mover(a.graph, x, given_a[x]), op
    return None


def _order_along(found: Compared, of_a: int, chain: list[int]) -> Order:
    """Return the order of a value of `b` against one of `a`, or of what it was moved from."""
    orders = (_order(found, of_a, value) for value in chain)
    return next((order for order in orders if order is not Order.UNKNOWN), Order.UNKNOWN)


def _inherited(found: Compared, value: int, families: dict[int, list[int]]) -> Order:
    """Return the worst order that a value of `b` has from the weights it was computed with.

    Weights of other code may be permuted, and with them all that they give. An order that an op of
    its own has made does not come from them.
    """
    graph, worst = found.b.graph, Order.SAME
    mixes = graph.are(_MIXING)
    seen, waiting = {value}, [value]
    while waiting:
        one = waiting.pop()
        op = int(graph.maker[one])
        if (one != value or mixes[op]) and _reorderer(found, one, families) < 0:
            worst = min(worst, _order_of_partner(found, one, families))
        if op >= 0 and not mixes[op]:
            new = [v for v in graph.takes[op] if graph.depends[v] and v not in seen]
            seen.update(new)
            waiting += new
    return worst


def _is_put_otherwise(found: Compared, value: int, families: dict[int, list[int]]) -> bool:
    """Return whether an op picked elements by their numbers, and its result is in a worse order."""
    graph = found.b.graph
    op = int(graph.maker[value])
    if op < 0 or graph.names[int(graph.name_codes[op])] not in _PICKING:
        return False
    before = _order_of_partner(found, graph.takes[op][0], families)
    return _order_of_partner(found, value, families) < before


def _reorderer(found: Compared, value: int, families: dict[int, list[int]]) -> int:
    """Go back from a value to an op that put the elements otherwise which it was computed from,
    element by element; -1 for none.
    """
    graph, count = found.b.graph, found.b.facts.count
    while (op := int(graph.maker[value])) >= 0:
        if _is_put_otherwise(found, value, families):
            return op
        if graph.names[int(graph.name_codes[op])] in _MIXING:
            break
        before = [v for v in graph.takes[op] if graph.depends[v] and count[v] == count[value]]
        if len(before) != 1:
            break
        value = before[0]
    return -1


def _order_of_partner(found: Compared, value: int, families: dict[int, list[int]]) -> Order:
    """Return the worst order of a value against its partner in any form of the same axes."""
    a, b = found.a.graph.run, found.b.graph.run
    partner = int(found.b.partner[value])
    axes = _axes(b.value(value).shape)
    forms = [x for x in families.get(partner, [partner]) if _axes(a.value(x).shape) == axes]
    orders = [_order(found, x, value) for x in forms if x >= 0]
    return min((order for order in orders if order is not Order.UNKNOWN), default=Order.SAME)


def _axes(shape: tuple[int, ...] | None) -> list[int]:
    return sorted(size for size in shape or () if size != 1)


def _families(half: Half) -> dict[int, list[int]]:
    """Return for each value all that have its elements, moved in whatever way."""
    roots = moved_from(half.graph, half.facts.count.tolist())
    found: dict[int, list[int]] = {}
    for value, root in enumerate(roots):
        found.setdefault(root, []).append(value)
    return {value: found[root] for value, root in enumerate(roots)}


def _given(half: Half, region: Region) -> dict[int, int]:
    """Return the right values that a region takes, and the first op in it that takes each."""
    found: dict[int, int] = {}
    for op in region.ops:
        for value in half.graph.takes[op]:
            if half.right[value] and half.facts.says_much[value] and not half.facts.exact[value]:
                found.setdefault(value, op)
    return found


def _are_near(found: Compared, of_a: int, of_b: int) -> bool:
    a, b = found.a, found.b
    if a.facts.count[of_a] != b.facts.count[of_b]:
        return False
    far = distances(a.facts, np.array([of_a]), b.facts, np.array([of_b]))[0]
    return bool(far <= max(a.noise[of_a], b.noise[of_b]))


def _order(found: Compared, of_a: int, of_b: int) -> Order:
    return order_between(found.a.facts, of_a, found.b.facts, of_b)


def _culprit(found: Compared, of_a: int, chain: list[int], worst: Order, user: int) -> int:
    """Return the op of `b` that put a value into another order than that of `a`, -1 for none.

    `chain` has the value and those that its elements were moved from, `worst` the order that is
    as good as theirs was before.
    """
    graph = found.b.graph
    before = _before(found.a, of_a)
    culprit, moves = -1, list[int]()
    for value, source in zip(chain, [*chain[1:], -1], strict=True):
        op = int(graph.maker[value])
        order = _order(found, of_a, value)
        if order >= worst and order is not Order.UNKNOWN:
            return _changing(graph, moves, culprit)
        if op < 0:
            # A parameter in another order is used here.
            return user if found.a.graph.maker[before[-1]] < 0 else -1
        moves.append(op)
        if order is not Order.UNKNOWN and not _only_splits(graph, source, value):
            culprit = op
    *moves, last = moves
    if _order(found, before[-1], chain[-1]) is Order.SAME:
        # What was moved is as it is in `a`, so it was moved otherwise.
        return _changing(graph, moves, culprit)
    is_assembled = graph.names[int(graph.name_codes[last])] in _ASSEMBLING
    return culprit if is_assembled or culprit != last else -1


def _only_splits(graph: FlowGraph, source: int, value: int) -> bool:
    """Return whether a value is another with axes split, whose order it shows more of."""
    if source < 0 or not graph.is_move[graph.maker[value]]:
        return False
    whole, parts = (
        [size for size in graph.run.value(v).shape or () if size != 1] for v in (source, value)
    )
    for size in whole:
        while size > 1 and parts and size % parts[0] == 0:
            size //= parts.pop(0)
        if size > 1:
            return False
    return not parts


def _changing(graph: FlowGraph, moves: list[int], culprit: int) -> int:
    """Return the last of some moves that takes elements by their numbers, or else the culprit."""
    return next((op for op in moves if not graph.is_move[op]), culprit if moves else -1)


def _before(half: Half, value: int) -> list[int]:
    """Return a value and those that its elements were moved from, the last first."""
    found = [value]
    while (op := int(half.graph.maker[value])) >= 0:
        value = _moved_from(half, op, value)
        if value < 0:
            break
        found.append(value)
    return found


def _moved_from(half: Half, op: int, value: int) -> int:
    """Return the value whose elements an op only moved, all of them; -1 for none."""
    facts = half.facts
    for taken in half.graph.takes[op]:
        if facts.count[taken] != facts.count[value] or facts.exact[taken]:
            continue
        far = distances(facts, np.array([taken]), facts, np.array([value]))[0]
        if half.graph.is_move[op] or far <= _MOVED:
            return taken
    return -1


def _mover(graph: FlowGraph, value: int, user: int) -> int:
    """Return the op on another line that made a value which an op takes, or else that op."""
    (text,) = graph.texts([user])
    op = int(graph.maker[value])
    while op >= 0 and graph.is_move[op]:
        if graph.texts([op]) != [text]:
            return op
        op = int(graph.maker[graph.takes[op][0]])
    return user
