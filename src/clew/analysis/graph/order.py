"""Events in the order in which they began and ended, and edges for that order."""

from __future__ import annotations

from collections.abc import Iterator

from clew.analysis.graph.boxes import Boxes, Runs
from clew.analysis.graph.graph_model import INSIDE, NEXT, ORDER, Edge, Node
from clew.analysis.structure import Structure
from clew.events.vocabulary import BACKWARD, OPTIMIZER

_LATER_PHASES = (BACKWARD, OPTIMIZER)


def walk(structure: Structure, tops: list[int]) -> Iterator[tuple[int, bool]]:
    """Yield each event of the forward pass as it begins (True), and calls again as they end
    (False).
    """
    phase = structure.run.phase.tolist()
    pending = [(row, True) for row in reversed(tops)]
    while pending:
        row, begins = pending.pop()
        yield row, begins
        inside = structure.kids.get(row, None)
        if begins and inside is not None:
            pending.append((row, False))
            pending += [(r, True) for r in reversed(inside) if phase[r] not in _LATER_PHASES]
        elif begins:
            yield row, False


def is_next(source: Runs, target: Runs) -> bool:
    """Return whether two events belong to different runs of one repeat."""
    for (repeat, run), (other, other_run) in zip(source, target, strict=False):
        if repeat != other:
            return False
        if run != other_run:
            return True
    return False


def order_edges(structure: Structure, boxes: Boxes) -> list[Edge]:
    """Return an edge from each box to the one that ran next."""
    edges: dict[tuple[str, str], Edge] = {}
    last: tuple[str, int] | None = None
    for row, begins in walk(structure, boxes.tops):
        box = boxes.box(row)
        if not begins or box is None or box in boxes.frames:
            continue
        if last is not None and last[0] != box:
            loops = is_next(boxes.runs.get(last[1], ()), boxes.runs.get(row, ()))
            pair = last[0], box
            edges.setdefault(pair, Edge(*pair, NEXT if loops else ORDER))
        last = box, row
    return list(edges.values())


def containment(nodes: dict[str, Node]) -> list[Edge]:
    """Return an edge from each frame to the nodes directly in it."""
    return [Edge(n.parent, n.id, INSIDE) for n in nodes.values() if n.parent is not None]
