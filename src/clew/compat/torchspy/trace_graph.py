"""torchspy's trace graph: a list of calls as a tree of names, and its picture by Clew.

In comes a trace file (one module path per line), out come a `Node` tree, JSON and a drawing that
needs neither Graphviz nor its Python package.
"""

from __future__ import annotations

import json
from pathlib import Path

from clew.analysis.graph.calls import read_calls
from clew.analysis.graph.names import Name as Node
from clew.analysis.graph.names import name_tree as build_tree
from clew.analysis.graph.names import without_leaves as prune_leaves
from clew.views.graph.choices import SUFFIXES
from clew.views.graph.view import GraphView, graph_view

__all__ = [
    "Node", "apply_graph_render_options", "build_tree", "construct_graph", "parse_trace",
    "prune_leaves", "render_graph", "save_tree_json", "squash_numeric_indices",
]  # fmt: skip

_DEEPEST = 64


def parse_trace(path: str | Path) -> list[str]:
    """The paths of a trace file."""
    paths = Path(path).read_text(encoding="utf-8").split()
    if not paths:
        raise ValueError(f"trace file is empty: {path}")
    return paths


def squash_numeric_indices(tree: Node) -> Node:
    """The tree as it is: numbers are squashed as it is built."""
    return tree


def save_tree_json(tree: Node, path: str | Path) -> None:
    """Write the tree as JSON."""
    Path(path).write_text(json.dumps(tree.to_dict(), indent=2), encoding="utf-8")


class Drawing:
    """The picture of a trace: `source` is DOT, `render` writes a file."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.options: dict[str, float] = {"dpi": 150}

    @property
    def source(self) -> str:
        """The graph in the DOT language."""
        return self.view.dot()

    def render(self, filename: str | Path, cleanup: bool = True) -> str:
        """Write the picture, as PNG unless the name ends otherwise."""
        path = Path(filename)
        if path.suffix.lower() not in SUFFIXES:
            path = path.with_name(path.name + ".png")
        options = self.options if path.suffix.lower() == ".png" else {}
        return str(self.view.save(path, **options))


def construct_graph(
    tree: Node, show_repetition: bool = True, prune_leaves_flag: bool = True,
    squash_name: bool = False,
) -> Drawing:  # fmt: skip
    """The tree as a picture from top to bottom; repeated layers say how often they are there."""
    shown = prune_leaves(tree) if prune_leaves_flag else tree
    calls, squash = read_calls(dict.fromkeys(shown.paths)), "name" if squash_name else None
    fold = show_repetition
    return Drawing(graph_view(calls, depth=_DEEPEST, fold=fold, squash=squash, edges="tree"))


def apply_graph_render_options(
    dot: Drawing, dpi: int = 150, figwidth: float | None = None, figheight: float | None = None
) -> Drawing:
    """Say how large the picture is to be, in dots per inch and inches."""
    wanted = {"dpi": dpi, "width": figwidth, "height": figheight}
    dot.options = {name: size for name, size in wanted.items() if size is not None}
    return dot


def render_graph(
    tree: Node, show_repetition: bool = True, prune_leaves_flag: bool = True,
    squash_name: bool = False, dpi: int = 150, figwidth: float | None = None,
    figheight: float | None = None,
) -> Drawing:  # fmt: skip
    """The picture of a tree, with its size."""
    drawing = construct_graph(tree, show_repetition, prune_leaves_flag, squash_name)
    return apply_graph_render_options(drawing, dpi, figwidth, figheight)
