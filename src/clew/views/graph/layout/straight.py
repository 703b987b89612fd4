"""Final pass over columns: straighten edges that are nearly straight, or have room to be."""

from __future__ import annotations

from clew.views.graph.layout.grid import Grid


def straighten(grid: Grid, xs: list[float]) -> None:
    """Move groups of aligned places where that aligns one more edge."""
    group = list(range(len(xs)))
    members = {place: [place] for place in group}

    def join(one: int, two: int) -> None:
        one, two = group[one], group[two]
        if one != two:
            small, large = sorted((one, two), key=lambda g: len(members[g]))
            for place in members[small]:
                group[place] = large
            members[large] += members.pop(small)

    edges = [
        (rows, place, other, own, its)
        for place, ties in enumerate(grid.below)
        for other, own, its, rows in ties
    ]
    for _, place, other, own, its in edges:
        if abs(xs[place] + own - xs[other] - its) < 0.01:
            join(place, other)
    for _, place, other, own, its in sorted(edges):
        off = xs[place] + own - xs[other] - its
        if abs(off) < 0.01 or group[place] == group[other]:
            continue
        sides = sorted(((place, -off), (other, off)), key=lambda side: len(members[group[side[0]]]))
        for side, shift in sides:
            if _has_room(grid, xs, group, members[group[side]], shift):
                for moved in members[group[side]]:
                    xs[moved] += shift
                join(place, other)
                break


def _has_room(
    grid: Grid, xs: list[float], group: list[int], members: list[int], shift: float
) -> bool:
    """Return whether some places can move without coming too near to others in their rows."""
    step = 1 if shift > 0 else -1
    for place in members:
        row, at = grid.position(place)
        beside = at + step
        if not 0 <= beside < len(row) or group[row[beside]] == group[place]:
            continue
        other = row[beside]
        pair = (place, other) if step > 0 else (other, place)
        gap = grid.half[place] + grid.half[other] + grid.room(*pair)
        if abs(xs[other] - xs[place]) - abs(shift) < gap - 1e-6:
            return False
    return True
