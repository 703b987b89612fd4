"""Row of each box: below all boxes that lead to it, as near to them as possible.

Boxes have even rows, so that the odd row in between is free for the labels of edges.
"""

from __future__ import annotations

# Edges between numbered boxes; every edge leads from a lower number to a higher one.
Pairs = list[tuple[int, int]]


def ranks(count: int, pairs: Pairs) -> list[int]:
    """Return the row of each box: 0, 2, 4 …"""
    rank = [0] * count
    following: list[list[int]] = [[] for _ in range(count)]
    entering = [0] * count
    for source, target in pairs:
        following[source].append(target)
        entering[target] += 1
    for box in range(count):
        for target in following[box]:
            rank[target] = max(rank[target], rank[box] + 2)
    # A box with more edges going out than coming in (an input, a constant) belongs near its
    # targets.
    for box in range(count - 1, -1, -1):
        if len(following[box]) > entering[box]:
            rank[box] = max(rank[box], min(rank[target] for target in following[box]) - 2)
    _spread_loners(rank, following, entering)
    return rank


def _spread_loners(rank: list[int], following: list[list[int]], entering: list[int]) -> None:
    """Put boxes without edges into rows below one another."""
    loners = [b for b in range(len(rank)) if not following[b] and not entering[b]]
    others = len(rank) - len(loners)
    in_a_row = max(4, round(len(loners) ** 0.5)) if others == 0 else 4
    for position, box in enumerate(loners):
        rank[box] = 2 * (position // in_a_row)
