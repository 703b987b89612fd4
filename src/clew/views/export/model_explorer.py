"""Model Explorer's JSON: a graph per rank whose layers nest as the module calls do.

Every call is a layer that can be opened, every op a node with the shapes of its inputs and outputs,
its source and its time. `depth`, `fold`, `ops` and `step` are those of `Trace.graph`; by default
all ops, nothing folded, down to the last level.
"""

from __future__ import annotations

from pathlib import Path

from clew.analysis.graph import Edge, Graph, Node, Options, build
from clew.analysis.graph.graph_model import NEXT
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.graph import words
from clew.views.strict_json import as_json
from clew.views.text.style import time_text


def write(
    run: Run,
    target: Path,
    *,
    depth: int | None = None,
    fold: bool = False,
    ops: str | None = "all",
    step: int | None = None,
) -> Contents:
    """Write the graphs of all ranks."""
    options = Options(depth, fold, ops, step=step)
    graphs = {rank: build(run.only(rank=rank), options) for rank in run.ranks}
    data = {
        "label": next(iter(graphs.values())).heading,
        "graphs": [_graph(rank, graph, len(graphs) > 1) for rank, graph in graphs.items()],
    }
    with text_file(target) as file:
        file.write(as_json(data))
    return Contents(sum(len(graph.boxes) for graph in graphs.values()), "node")


def _graph(rank: int, graph: Graph, several: bool) -> dict[str, object]:
    nodes = {node.id: node for node in graph.nodes}
    spaces = _namespaces(graph)
    incoming: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if edge.kind != NEXT:
            incoming.setdefault(edge.target, []).append(edge)
    return {
        "id": f"rank {rank}" if several else graph.heading,
        "nodes": [
            {
                "id": node.id,
                "label": words.title(node),
                "namespace": spaces[node.parent] if node.parent is not None else "",
                "attrs": _pairs(_facts(node)),
                "incomingEdges": [
                    {
                        "sourceNodeId": edge.source,
                        "sourceNodeOutputId": _output(nodes[edge.source], edge),
                        "targetNodeInputId": str(number),
                    }
                    for number, edge in enumerate(incoming.get(node.id, ()))
                ],
                "inputsMetadata": [
                    {"id": str(number), "attrs": _pairs({"tensor": ", ".join(edge.labels)})}
                    for number, edge in enumerate(incoming.get(node.id, ()))
                ],
                "outputsMetadata": [
                    {"id": str(number), "attrs": _pairs({"shape": look})}
                    for number, look in enumerate(node.outputs)
                ],
            }
            for node in graph.boxes
        ],
        "groupNodeAttributes": {
            spaces[node.id]: _facts(node) for node in graph.nodes if node.children
        },
    }


def _namespaces(graph: Graph) -> dict[str, str]:
    """Return the path of each frame; a number tells two calls of one module apart."""
    spaces: dict[str, str] = {}
    taken: dict[str, int] = {}
    for node in graph.nodes:
        if not node.children:
            continue
        name = words.title(node).replace("/", "_")
        space = name if node.parent is None else f"{spaces[node.parent]}/{name}"
        taken[space] = taken.get(space, -1) + 1
        spaces[node.id] = f"{space} #{taken[space]}" if taken[space] else space
    return spaces


def _facts(node: Node) -> dict[str, str]:
    facts = {
        "class" if node.kind == "call" else "op": node.cls,
        "path": node.path or "",
        "runs": str(node.count) if node.count > 1 else "",
        "parameters": f"{node.parameters:,}" if node.parameters else "",
        "time": time_text(node.seconds) if node.seconds else "",
        "source": node.source or "",
        "error": node.error or "",
        **{name: f"{number:.6g}" for name, number in (node.stats or {}).items()},
    }
    return {key: text for key, text in facts.items() if text}


def _pairs(facts: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": text} for key, text in facts.items()]


def _output(source: Node, edge: Edge) -> str:
    """Return which of a node's results an edge carries, by dtype and shape."""
    found = [n for n, look in enumerate(source.outputs) if look in edge.labels]
    return str(found[0] if found else 0)
