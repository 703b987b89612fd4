"""From a run to a graph: boxes, then edges between them, then the facts of each box."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clew.analysis.fold import Folds
from clew.analysis.graph.backward_edges import gradient_edges
from clew.analysis.graph.border_edges import BorderEdges
from clew.analysis.graph.boxes import (
    ALL_OPS,
    BETWEEN,
    MAJOR_OPS,
    NO_OPS,
    Boxes,
    BoxMaker,
    BoxOptions,
    top_rows,
)
from clew.analysis.graph.data_edges import Carried, DataEdges
from clew.analysis.graph.graph_model import INPUT, REPEAT, Edge, Graph, Node, nested
from clew.analysis.graph.node_facts import NodeFacts
from clew.analysis.graph.order import containment, order_edges
from clew.analysis.graph.part import GraphPart, first_forward, of_step
from clew.analysis.graph.squash import merged, merged_edges, squash
from clew.errors import ClewError
from clew.events.vocabulary import MODULE
from clew.run.run import Run

FLOW, CALLS, TREE = "data", "calls", "tree"
_CHOICES = {
    "ops": (None, BETWEEN, MAJOR_OPS, ALL_OPS, NO_OPS),
    "squash": (None, "class", "name"),
    "edges": (FLOW, CALLS, TREE),
}


@dataclass(frozen=True, slots=True)
class Options:
    """Which part of a run to show, and how.

    `depth` counts modules below the outermost (None: down to the last). `ops`: those that run
    `"between"` the calls of an open module, without views and copies; `"major"`: those inside
    modules that call no other as well; `"all"`; or `"none"`.
    `prune`: True leaves out calls that contain no other call; names or patterns leave out the
    modules they match, by class or path. Edges then lead past them. `squash` makes one box of the
    calls in a module that have the same `"class"`, or the same `"name"` except for the index.
    `edges`: what flowed (`"data"`), what ran next (`"calls"`), or what contains what (`"tree"`).
    `sizes=False` folds runs of a loop whose tensors differ in size. `step`: everything that ran
    forward in this step; None draws one forward pass of the first step that has one.
    """

    depth: int | None = None
    fold: bool = True
    ops: str | None = None
    prune: bool | tuple[str, ...] = False
    squash: str | None = None
    edges: str = FLOW
    backward: bool = False
    sizes: bool = True
    step: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            given = getattr(self, name)
            if given not in choices:
                known = ", ".join(map(repr, choices))
                raise ClewError(f"{name}={given!r} is not one of {known}")
        if self.depth is not None and self.depth < 0:
            raise ClewError(f"depth={self.depth!r} is not a number from 0 up, or None for all")


@dataclass(frozen=True, slots=True)
class FlowModel:
    """A graph with what a page needs beside it: the rows of each node, what each edge carries, and
    what each frame takes, for when it is closed.
    """

    graph: Graph
    rows: dict[str, list[int]]
    carried: list[Carried]
    borders: list[Carried]


def build_flow(
    options: Options, rows: list[int], folds: Folds, facts: NodeFacts | None = None
) -> FlowModel:
    """Return the graph of what flowed between some calls and ops that no call contains.

    `facts` saves collecting those of the same folds again.
    """
    boxes = _boxes(folds, options, GraphPart(rows))
    flow = BorderEdges(folds.structure, boxes)
    carried = flow.carried()
    found = _rows(boxes)
    nodes = _filled(facts or NodeFacts(folds), boxes.nodes, found)
    graph = _graph(folds, boxes, nodes, [c.edge() for c in carried], flow)
    return FlowModel(graph, found, carried, flow.borders())


def build(
    run: Run,
    options: Options,
    roots: list[int] | None = None,
    folds: Folds | None = None,
    said: str = "",
) -> Graph:
    """Return the graph of a run of one rank, or of some of its calls.

    `folds` saves folding the same run again; `said` is added to the description of the part drawn.
    """
    folds = folds or Folds(run, options.fold, options.sizes)
    part = _part(folds, options, roots)
    boxes = _boxes(folds, options, part)
    if options.edges == TREE:
        boxes.nodes = _without_repeats(boxes.nodes)
    edges, flow = _edges(folds, boxes, options)
    rows = _rows(boxes)
    nodes = boxes.nodes
    if options.squash is not None:
        becomes = squash(nodes, options.squash, everywhere=options.edges == TREE)
        nodes, rows = merged(nodes, rows, becomes, options.squash)
        edges = merged_edges(edges, becomes)
    filled = _filled(NodeFacts(folds), nodes, rows)
    if options.edges == TREE:
        filled = {name: replace(node, parent=None) for name, node in filled.items()}
    return _graph(folds, boxes, filled, edges, flow, ", ".join(filter(None, [part.said, said])))


def _filled(
    facts: NodeFacts, nodes: dict[str, Node], rows: dict[str, list[int]]
) -> dict[str, Node]:
    """Return the nodes with their facts."""
    filled = {name: facts.filled(node, rows[name]) for name, node in nodes.items()}
    inside: dict[str | None, list[Node]] = {}
    for node in filled.values():
        inside.setdefault(node.parent, []).append(node)
    repeats = [node for node in filled.values() if node.kind == REPEAT]
    return filled | {node.id: _summed(node, inside.get(node.id, [])) for node in repeats}


def _graph(
    folds: Folds,
    boxes: Boxes,
    nodes: dict[str, Node],
    edges: list[Edge],
    flow: DataEdges | None,
    part: str = "",
) -> Graph:
    """Put the graph together, values from outside before the calls, results after them."""
    outside = [] if flow is None else flow.origins.outside.values()
    before = {node.id: node for node in outside if node.kind == INPUT}
    after = {node.id: node for node in outside if node.kind != INPUT}
    title = _title(folds.structure.run, boxes)
    return Graph(title, nested(before | nodes | after), tuple(edges), part)


def count_boxes(folds: Folds, options: Options, roots: list[int] | None) -> tuple[int, int]:
    """Count the nodes of a graph, and those with nothing inside, without inputs and outputs.

    This is much cheaper than building the graph, most of whose work is its edges.
    """
    nodes = _boxes(folds, options, _part(folds, options, roots)).nodes
    is_tree = options.edges == TREE
    if is_tree:
        nodes = _without_repeats(nodes)
    becomes = {name: name for name in nodes}
    if options.squash is not None:
        becomes = squash(nodes, options.squash, everywhere=is_tree)
    left = set(becomes.values())
    frames = {becomes[n.parent] for n in nodes.values() if n.parent is not None and not is_tree}
    return len(left), len(left - frames)


def _boxes(folds: Folds, options: Options, part: GraphPart) -> Boxes:
    ops = options.ops or (BETWEEN if options.edges == FLOW else NO_OPS)
    maker = BoxMaker(folds, BoxOptions(options.depth, ops, options.prune))
    maker.add(part.rows)
    return maker.boxes


def _part(folds: Folds, options: Options, roots: list[int] | None) -> GraphPart:
    structure = folds.structure
    if options.step is not None:
        rows = top_rows(structure) if roots is None else roots
        return of_step(structure.run, rows, options.step)
    return first_forward(structure) if roots is None else GraphPart(roots)


def _without_repeats(nodes: dict[str, Node]) -> dict[str, Node]:
    """Return the nodes without repeats; their counts move to the nodes inside."""
    left: dict[str, Node] = {}
    repeats: dict[str, Node] = {}
    for node in nodes.values():
        around = repeats.get(node.parent or "")
        if around is not None:
            count, exact = node.count * around.count, node.exact and around.exact
            node = replace(node, parent=around.parent, count=count, exact=exact)
        (repeats if node.kind == REPEAT else left)[node.id] = node
    return left


def _edges(folds: Folds, boxes: Boxes, options: Options) -> tuple[list[Edge], DataEdges | None]:
    """Return the edges of the wanted sort, and where values come from if those are data edges."""
    if options.edges == TREE:
        return containment(boxes.nodes), None
    if options.edges == CALLS:
        return order_edges(folds.structure, boxes), None
    flow = DataEdges(folds.structure, boxes)
    edges = [carried.edge() for carried in flow.carried()]
    if options.backward:
        edges += gradient_edges(flow)
    return edges, flow


def _rows(boxes: Boxes) -> dict[str, list[int]]:
    """Return for each node the events it stands for, in all runs."""
    like: dict[int, list[int]] = {}
    for row, first in boxes.like.items():
        like.setdefault(first, []).append(row)
    return {
        name: sorted({row, *like.get(row, ())})
        for name, row in boxes.row_of.items()
        if name in boxes.nodes
    }


def _summed(repeat: Node, inside: list[Node]) -> Node:
    """Return a repeat with the time, parameters and ops of the nodes directly in it."""
    times = [node.seconds for node in inside if node.seconds is not None]
    return replace(
        repeat,
        seconds=sum(times) if len(times) == len(inside) else None,
        parameters=sum(node.parameters for node in inside),
        ops=sum(node.ops for node in inside),
    )


def _title(run: Run, boxes: Boxes) -> str:
    c = run.columns
    roots = [c.modules[int(c.subject[r])] for r in boxes.tops if c.kind[r] == MODULE]
    names = dict.fromkeys(module.path or module.cls for module in roots)
    return str(c.environment.get("name") or ", ".join(names) or "ops")
