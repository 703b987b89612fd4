"""Horizontal position of each box: edges as straight as possible, no overlaps.

After Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment" (2001): boxes are
aligned with a median neighbour, once each from the four corners, and the middle of the four
outcomes is taken. Edges may be fixed off a box's centre, which aligning takes into account.
"""

from __future__ import annotations

from itertools import pairwise

from clew.views.graph.layout.grid import Grid, Tie
from clew.views.graph.layout.straight import straighten

# Beyond this number of places the picture is seen from far away, and straightening is skipped.
_MOST_TO_STRAIGHTEN = 3000


def columns(grid: Grid) -> list[float]:
    """Return the centre of each place."""
    if not grid.half:
        return []
    conflicts = _conflicts(grid)
    outcomes = []
    for down in (True, False):
        for left in (True, False):
            xs = _one_corner(grid, conflicts, down, left)
            outcomes.append(xs if left else [-x for x in xs])
    _line_up(grid, outcomes)
    result = []
    for four in zip(*outcomes, strict=True):
        low = sorted(four)
        result.append((low[1] + low[2]) / 2)
    if len(result) <= _MOST_TO_STRAIGHTEN:
        straighten(grid, result)
    return result


def _line_up(grid: Grid, outcomes: list[list[float]]) -> None:
    """Shift the outcomes to the narrowest: left-packed by its left side, others by its right."""
    half = grid.half

    def span(xs: list[float]) -> tuple[float, float]:
        return (
            min(x - h for x, h in zip(xs, half, strict=True)),
            max(x + h for x, h in zip(xs, half, strict=True)),
        )

    spans = [span(xs) for xs in outcomes]
    low, high = min(spans, key=lambda s: s[1] - s[0])
    for number, (xs, (left, right)) in enumerate(zip(outcomes, spans, strict=True)):
        shift = low - left if number % 2 == 0 else high - right
        outcomes[number] = [x + shift for x in xs]


def _conflicts(grid: Grid) -> set[tuple[int, int]]:
    """Return edges that cross the straight part of a line and so must not be aligned.

    Each is a pair (upper place, lower place).
    """
    found: set[tuple[int, int]] = set()
    for upper, lower in pairwise(grid.rows):
        at = {place: i for i, place in enumerate(upper)}
        start, low = 0, 0
        for i, place in enumerate(lower):
            inner = _inner(grid, place)
            if inner is None and i < len(lower) - 1:
                continue
            high = at[inner] if inner is not None else len(upper) - 1
            for other in lower[start : i + 1]:
                for neighbour, _, _, _ in grid.above[other]:
                    crosses = not low <= at[neighbour] <= high
                    if crosses and not (grid.bend[other] and grid.bend[neighbour]):
                        found.add((neighbour, other))
            start, low = i + 1, high
    return found


def _inner(grid: Grid, place: int) -> int | None:
    if grid.bend[place] and grid.above[place]:
        neighbour = grid.above[place][0][0]
        return neighbour if grid.bend[neighbour] else None
    return None


def _one_corner(grid: Grid, conflicts: set[tuple[int, int]], down: bool, left: bool) -> list[float]:
    """Align towards one corner; if not `left`, the result is mirrored and the caller mirrors it
    back.
    """
    rows = grid.rows if down else grid.rows[::-1]
    if not left:
        rows = [row[::-1] for row in rows]
    sign = 1.0 if left else -1.0
    root, shift = _aligned(grid, rows, conflicts, down, sign)
    return _packed(grid, rows, root, shift)


def _aligned(
    grid: Grid, rows: list[list[int]], conflicts: set[tuple[int, int]], down: bool, sign: float
) -> tuple[list[int], list[float]]:
    """Return blocks of places to be aligned vertically: the root of each place, and its offset."""
    count = len(grid.half)
    root = list(range(count))
    shift = [0.0] * count
    taken = [False] * count
    ties, back = (grid.above, grid.below) if down else (grid.below, grid.above)
    promised = [_main(found) for found in back]
    for before, row in pairwise(rows):
        at = {place: i for i, place in enumerate(before)}
        limit = -1
        for place in row:
            found = sorted(ties[place], key=lambda tie: at[tie[0]])
            for neighbour, own, its, _ in _candidates(found):
                pair = (neighbour, place) if down else (place, neighbour)
                wanted = promised[neighbour] in (None, place)
                free = wanted and limit < at[neighbour] and not taken[neighbour]
                if free and pair not in conflicts:
                    taken[neighbour] = True
                    root[place] = root[neighbour]
                    shift[place] = shift[neighbour] + sign * (its - own)
                    limit = at[neighbour]
                    break
    return root, shift


def _candidates(ties: list[Tie]) -> list[Tie]:
    """Return what a place may be aligned with: its shortest edge first, then the middle ones."""
    main = _main(ties)
    middle = ties[(len(ties) - 1) // 2 : len(ties) // 2 + 1] if ties else []
    return [*(tie for tie in ties if tie[0] == main), *middle]


def _main(ties: list[Tie]) -> int | None:
    """Return the neighbour at the other end of the one shortest edge, None if there are several."""
    shortest = min((tie[3] for tie in ties), default=0)
    main = [tie[0] for tie in ties if tie[3] == shortest]
    return main[0] if len(main) == 1 else None


def _packed(grid: Grid, rows: list[list[int]], root: list[int], shift: list[float]) -> list[float]:
    """Push blocks as far left as possible, then as far right as costs no width."""
    gaps: dict[int, dict[int, float]] = {}
    for row in rows:
        for one, two in pairwise(row):
            gap = grid.half[one] + grid.half[two] + grid.room(one, two) + shift[one] - shift[two]
            known = gaps.setdefault(root[one], {})
            known[root[two]] = max(known.get(root[two], gap), gap)
    order = _topological(root, gaps)
    x: dict[int, float] = {}
    for place, block in enumerate(root):
        x[block] = max(x.get(block, 0.0), grid.half[place] - shift[place])
    for block in order:
        for other, gap in gaps.get(block, {}).items():
            x[other] = max(x[other], x[block] + gap)
    for block in reversed(order):
        limits = [x[other] - gap for other, gap in gaps.get(block, {}).items()]
        if limits:
            x[block] = max(x[block], min(limits))
    return [x[root[place]] + shift[place] for place in range(len(root))]


def _topological(root: list[int], gaps: dict[int, dict[int, float]]) -> list[int]:
    blocks = sorted(set(root))
    entering = dict.fromkeys(blocks, 0)
    for others in gaps.values():
        for other in others:
            entering[other] += 1
    ready = [block for block in blocks if not entering[block]]
    order: list[int] = []
    while ready:
        block = ready.pop()
        order.append(block)
        for other in gaps.get(block, {}):
            entering[other] -= 1
            if not entering[other]:
                ready.append(other)
    return order
