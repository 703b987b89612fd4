"""Order of the boxes in each row, so that few edges cross.

Sweeps down and up, sorts each row by the positions of its neighbours, and keeps the best order.
Boxes start in the order in which they ran, and stay in it unless another order has fewer crossings.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from itertools import pairwise

# Neighbours of each place in the row above, or below.
Neighbours = list[list[int]]

_MOST_SWEEPS = 12
# With more edges than this, only a few sweeps are made.
_MUCH = 20_000


def ordered(rows: list[list[int]], above: Neighbours, below: Neighbours) -> list[list[int]]:
    """Return the rows in an order with few crossings."""
    best = rows
    fewest = crossings(rows, below)
    edges = sum(map(len, below))
    sweeps = _MOST_SWEEPS if edges < _MUCH else 4
    current = rows
    for sweep in range(sweeps):
        if not fewest:
            break
        current = _swept(current, above if sweep % 2 == 0 else below, down=sweep % 2 == 0)
        count = crossings(current, below)
        if count < fewest:
            best, fewest = current, count
    return best


def _swept(rows: list[list[int]], neighbours: Neighbours, down: bool) -> list[list[int]]:
    at = {place: float(i) for row in rows for i, place in enumerate(row)}
    result = list(rows)
    for number in range(len(rows)) if down else range(len(rows) - 1, -1, -1):
        row = result[number]
        keyed = sorted(row, key=lambda p: _middle(neighbours[p], at, at[p]))
        result[number] = keyed
        for i, place in enumerate(keyed):
            at[place] = float(i)
    return result


def _middle(neighbours: list[int], at: dict[int, float], own: float) -> float:
    """Return the average position of the neighbours; a place without any keeps its position."""
    if not neighbours:
        return own
    return sum(at[n] for n in neighbours) / len(neighbours)


def crossings(rows: list[list[int]], below: Neighbours) -> int:
    """Count the crossings of edges between neighbouring rows."""
    total = 0
    for upper, lower in pairwise(rows):
        at = {place: i for i, place in enumerate(lower)}
        seen: list[int] = []
        for place in upper:
            ends = sorted(at[n] for n in below[place])
            for end in ends:
                total += len(seen) - bisect_right(seen, end)
            for end in ends:
                insort(seen, end)
    return total
