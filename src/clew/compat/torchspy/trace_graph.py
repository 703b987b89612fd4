"""torchspy's trace graph: a list of calls as a tree of names, and its picture by Clew.

Input: a trace file (one module path per line). Output: a `Node` tree, JSON and a drawing that needs
neither Graphviz nor its Python package.
"""

from __future__ import annotations

import json
from pathlib import Path

from clew.compat.engine.name_graph import name_graph
from clew.compat.engine.name_tree import Name, name_tree, without_leaves
from clew.views.graph.view import GraphView

Node = Name
build_tree = name_tree
prune_leaves = without_leaves


def parse_trace(path: str | Path) -> list[str]:
    """Return the paths of a trace file."""
    paths = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    if not any(paths):
        raise ValueError(f"trace file is empty: {path}")
    return [path for path in paths if path]


def squash_numeric_indices(tree: Node) -> Node:
    """Return the tree as it is: numbers are squashed as it is built."""
    return tree


def save_tree_json(tree: Node, json_path: str | Path) -> None:
    """Write the tree as JSON."""
    Path(json_path).write_text(json.dumps(tree.to_dict(), indent=2), encoding="utf-8")


def render_graph(
    tree: Node, show_repetition: bool = True, prune_leaves_flag: bool = True,
    squash_name: bool = False, dpi: int = 150, figwidth: float | None = None,
    figheight: float | None = None,
) -> GraphView:  # fmt: skip
    """Draw the tree from top to bottom; repeated layers say how often they are there."""
    graph = name_graph(tree, prune=prune_leaves_flag, fold=show_repetition, squash=squash_name)
    return GraphView(graph, dpi=dpi, width=figwidth, height=figheight)


# Its callers give no sizes, so the default ones are used.
construct_graph = render_graph


def apply_graph_render_options(
    dot: GraphView, dpi: int = 150, figwidth: float | None = None, figheight: float | None = None
) -> GraphView:
    """Set how large the picture is to be, in dots per inch and inches."""
    dot.dpi, dot.width, dot.height = dpi, figwidth, figheight
    return dot
