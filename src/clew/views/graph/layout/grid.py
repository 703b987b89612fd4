"""Places in rows with the edges between them: the input for choosing columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# For each place its neighbours in the row above (or below): the neighbour, the offset of the edge
# on this place and on the neighbour, and how many rows the whole edge spans.
Tie = tuple[int, float, float, int]
Ties = list[list[Tie]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of places, their half widths, their edges, and which are bends of a line."""

    rows: list[list[int]]
    half: list[float]
    above: Ties
    below: Ties
    bend: list[bool]
    room: Callable[[int, int], float]
    _positions: dict[int, tuple[list[int], int]] = field(default_factory=dict)

    def position(self, place: int) -> tuple[list[int], int]:
        """Return the row of a place, and its index in the row."""
        if not self._positions:
            for row in self.rows:
                self._positions.update((p, (row, at)) for at, p in enumerate(row))
        return self._positions[place]
