"""What crosses the border of each frame, so that a frame can be closed where it is drawn.

A closed frame is a box: its edges carry the values that went into it, which the ops inside may view
in other shapes before a box takes them.
"""

from __future__ import annotations

from clew.analysis.graph.boxes import Boxes
from clew.analysis.graph.data_edges import Bundle, Carried, DataEdges
from clew.analysis.graph.order import is_next
from clew.analysis.structure import Structure
from clew.events.vocabulary import OP as OP_EVENT

# A call that is drawn as a frame: its node and its row.
_Frame = tuple[str, int]


class BorderEdges(DataEdges):
    """Data edges, and for each frame the edges that it has while it is closed."""

    def __init__(self, structure: Structure, boxes: Boxes) -> None:
        self._crossed: dict[tuple[str, str], Bundle] = {}
        self._around: dict[int, tuple[_Frame, ...]] = {-1: ()}
        self._parents: list[int] = structure.run.parent_row.tolist()
        super().__init__(structure, boxes)

    def borders(self) -> list[Carried]:
        """Return what each frame takes from the boxes outside it."""
        return self.by_kind(self._crossed)

    def cross(self, row: int, values: list[int]) -> None:
        """Note what an event takes into the frames around it."""
        frames = self._frames(self._parents[row])
        if not frames:
            return
        runs = self.boxes.runs
        if self.run.columns.kind[row] == OP_EVENT:
            for name, _ in frames:
                self.memory.write(name, row)
        for value in values:
            made = self.run.producer_row(value)
            for name, call in frames:
                if made >= call:
                    break
                for origin in self.origins.of(value):
                    mine = runs.get(call, ())
                    source = self.origins.box(origin)
                    loops = not isinstance(origin, str) and is_next(runs.get(origin, ()), mine)
                    if source is not None and not loops:
                        self._crossed.setdefault((source, name), {}).setdefault(value, mine)

    def _frames(self, row: int) -> tuple[_Frame, ...]:
        """Return the frames around what ran directly in an event, innermost first."""
        path = []
        while row not in self._around:
            path.append(row)
            row = self._parents[row]
        for inner in reversed(path):
            box = self.boxes.box(inner)
            own = ((box, inner),) if box is not None and box in self.boxes.frames else ()
            self._around[inner] = (*own, *self._around[row])
            row = inner
        return self._around[row]
