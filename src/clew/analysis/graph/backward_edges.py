"""Edges of the backward pass: gradients that go from the box of one forward op to another's."""

from __future__ import annotations

from clew.analysis.graph.boxes import Runs
from clew.analysis.graph.data_edges import DataEdges
from clew.analysis.graph.graph_model import BACKWARD, Edge
from clew.analysis.graph.order import is_next
from clew.events.columns import IN, OUT
from clew.events.vocabulary import BACKWARD as BACKWARD_PHASE
from clew.events.vocabulary import OP as OP_EVENT


def gradient_edges(flow: DataEdges) -> list[Edge]:
    """Return one edge for each pair of boxes between which gradients went.

    A backward op is drawn where its forward op is. If the forward op is not drawn, its gradients
    are passed on. Tensors of the forward pass that a backward op takes are not gradients.
    """
    run, boxes = flow.run, flow.boxes
    c = run.columns
    rows = [
        row
        for row in range(len(run))
        if c.kind[row] == OP_EVENT and run.phase[row] == BACKWARD_PHASE
    ]
    made_by: dict[int, tuple[int, ...]] = {}
    found: dict[tuple[str, str], dict[int, Runs]] = {}
    for row in rows:
        forward = int(run.forward_row[row])
        home = forward if forward >= 0 else -1
        box = boxes.box(home) if home >= 0 else None
        leaves = run.leaf_values(row)
        origins = dict.fromkeys(
            (o, v) for leaf, v in leaves if leaf.role == IN for o in made_by.get(v, ())
        )
        for origin, value in origins if box is not None else ():
            source = boxes.box(origin)
            apart = is_next(boxes.runs.get(origin, ()), boxes.runs.get(home, ()))
            if source is not None and source != box and box is not None and not apart:
                found.setdefault((source, box), {}).setdefault(value, boxes.runs.get(home, ()))
        behind = (home,) if box is not None else tuple(dict.fromkeys(o for o, _ in origins))
        for leaf, value in leaves:
            if leaf.role == OUT:
                made_by[value] = behind
    return [flow.carries(*pair, BACKWARD, values).edge() for pair, values in found.items()]
