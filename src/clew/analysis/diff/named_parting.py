"""Where two runs without ops part: the first variable, tap or gradient that differs.

Input: `Compared` of two runs that hold named values alone, such as the traces of two watches.
Output: the first place, and how much of each run agrees. Values of the same address are compared:
by their elements where they were kept, else by fingerprints or statistics.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import distances
from clew.analysis.diff.divergence import Divergence, Matched
from clew.analysis.diff.elements import Array, distance_text, element_relation
from clew.analysis.diff.orders import Order, orders_of
from clew.analysis.diff.parting import EXTRA, MISSING, WRONG
from clew.analysis.diff.relation import relation
from clew.analysis.diff.source_changes import changed_functions
from clew.events.columns import OUT, Ints
from clew.events.number_text import measured
from clew.events.vocabulary import GRADIENT, TAP, VARIABLE
from clew.run.run import Run
from clew.run.value import Value

_KINDS = (VARIABLE, TAP, GRADIENT)


def has_only_names(found: Compared) -> bool:
    """Return whether neither run has ops, and both have named values."""
    halves = (found.a, found.b)
    return not any(len(half.graph) for half in halves) and all(
        len(_rows(half.graph.run)) for half in halves
    )


def first_named(found: Compared) -> tuple[Divergence | None, Matched]:
    """Return the first named value at which two runs part, and how much of them agrees."""
    a, b = found.a.graph.run, found.b.graph.run
    mine = {a.address(row): row for row in _rows(a).tolist()}
    theirs = {b.address(row): row for row in _rows(b).tolist()}
    # Where in `b` each divergence is; what `b` lacks comes after what it has of before.
    parted: list[tuple[float, str]] = []
    before = -1
    for address, row in mine.items():
        other = theirs.get(address)
        if other is None:
            parted.append((before + 0.5, address))
            continue
        before = max(before, other)
        if _difference(found, row, other):
            parted.append((other, address))
    parted += [(row, address) for address, row in theirs.items() if address not in mine]
    agreeing = len(mine) - sum(address in mine for _, address in parted)
    matched = Matched(agreeing / len(mine), agreeing / len(theirs))
    if not parted:
        return None, matched
    _, address = min(parted)
    return _divergence(found, mine.get(address), theirs.get(address)), matched


def _rows(run: Run) -> Ints:
    return np.flatnonzero(np.isin(run.columns.kind, _KINDS))


def _divergence(found: Compared, row_a: int | None, row_b: int | None) -> Divergence:
    a, b = found.a.graph.run, found.b.graph.run
    event_a = None if row_a is None else a.event(row_a)
    event_b = None if row_b is None else b.event(row_b)
    if row_a is None or row_b is None:
        kind = EXTRA if row_a is None else MISSING
        return Divergence(kind, event_a, event_b, ("only one run has this value",), ())
    evidence = tuple(_difference(found, row_a, row_b))
    suspects = tuple(changed_functions(a, [row_a], b, [row_b]))
    return Divergence(WRONG, event_a, event_b, evidence, suspects)


def _difference(found: Compared, row_a: int, row_b: int) -> list[str]:
    """Say how the values of two events differ; nothing if they agree."""
    mine, theirs = _results(found.a, row_a), _results(found.b, row_b)
    if mine.keys() != theirs.keys():
        return ["a and b hold other items"]
    for path in mine:
        said = between(found, mine[path], theirs[path])
        if said:
            return [f"at {path}: {said[0]}", *said[1:]] if path else said
    return []


def _results(half: Half, row: int) -> dict[str, int]:
    leaves = half.graph.run.leaf_values(row)
    return {leaf.path: number for leaf, number in leaves if leaf.role == OUT}


def between(found: Compared, of_a: int, of_b: int) -> list[str]:
    """Say how two values differ; nothing if they agree as far as is known."""
    a, b = found.a.graph.run.value(of_a), found.b.graph.run.value(of_b)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return [f"a has {a.look}, b {b.look}"]
    x, y = _data(found.a, a, of_a), _data(found.b, b, of_b)
    pair = np.array([of_a]), np.array([of_b])
    far = distances(found.a.facts, pair[0], found.b.facts, pair[1])
    error = float(far[0])
    if np.isnan(error):  # a number or text, of which there are no statistics
        same = x is None or y is None or _is_close(x, y, float(found.b.noise[of_b]))
        return [] if same else [f"it is {x} in a, {y} in b"]
    if error <= found.b.noise[of_b]:
        if 0 <= found.a.facts.digest[of_a] == found.b.facts.digest[of_b]:
            return []
        orders = orders_of(found.a.facts.orders, pair[0], found.b.facts.orders, pair[1], far,
                           in_place=True)  # fmt: skip
        return ["b has its elements in another order"] if orders[0] < Order.UNKNOWN else []
    size = f"by {measured(error, 2)} (relative)" if np.isfinite(error) else "by more than rounding"
    said = [f"b differs {size}"]
    if x is not None and y is not None and x.size and x.dtype.kind in "fiu":
        said += [element_relation(x, y) or relation(found.a.facts, of_a, found.b.facts, of_b)]
        said += [distance_text(x, y, b.dtype)]
    else:
        said += [relation(found.a.facts, of_a, found.b.facts, of_b)]
    return [one for one in said if one]


def _data(half: Half, value: Value, number: int) -> Array | None:
    """Return the elements of a value, None if they were not kept."""
    kept = half.graph.run.columns.kept.get(number)
    return None if kept is None or kept.payload is None else value.array()


def _is_close(x: Array, y: Array, noise: float) -> bool:
    if x.dtype.kind in "fc" and y.dtype.kind in "fc":
        return bool(np.allclose(x, y, rtol=noise, atol=0, equal_nan=True))
    return bool(np.array_equal(x, y))
