"""torchspy's trace graph: a list of calls as a tree of names, and its picture by Clew.

In comes a trace file (one module path per line), out come a `Node` tree, JSON and a drawing that
needs neither Graphviz nor its Python package.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.analysis.graph.calls import read_calls
from clew.views.graph.view import GraphView, graph_view

_DEEPEST = 64
# The last of several names, with the numbers behind it.
_LAST_NAME = re.compile(r"\.(?!\d+(?:\.|$))[^.]+(?:\.\d+)*$")


@dataclass(eq=False)
class Node:
    """One name in the tree; `indices` are the numbers that stood behind it (`layers.0`)."""

    name: str
    children: dict[str, Node] = field(default_factory=dict)
    count: int = 1
    first_seen: int = 0
    parents: list[Node] = field(default_factory=list)
    indices: set[str] = field(default_factory=set)
    # The lines the tree was made of, at its root.
    paths: list[str] = field(default_factory=list)


def parse_trace(path: str | Path) -> list[str]:
    """The paths of a trace file."""
    paths = Path(path).read_text(encoding="utf-8").split()
    if not paths:
        raise ValueError(f"trace file is empty: {path}")
    return paths


def build_tree(paths: list[str]) -> Node:
    """Paths as a tree of names; numbers belong to the name before them."""
    root = Node("root", paths=list(paths))
    for number, path in enumerate(paths):
        at = root
        for name, index in _names(path):
            child = at.children.get(name)
            if child is None:
                child = at.children[name] = Node(name, first_seen=number, parents=[at])
            else:
                child.count += 1
            if index is not None:
                child.indices.add(index)
            at = child
    return root


def _names(path: str) -> list[tuple[str, str | None]]:
    names: list[tuple[str, str | None]] = []
    for part in path.split("."):
        if part.isdigit() and names:
            names[-1] = (names[-1][0], part)
        else:
            names.append((part, None))
    return names


def squash_numeric_indices(tree: Node) -> Node:
    """The tree as it is: numbers are squashed as it is built."""
    return tree


def prune_leaves(tree: Node) -> Node:
    """The tree without the last name of each path; a path of one name is kept."""
    return build_tree([_LAST_NAME.sub("", path) for path in tree.paths])


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
        if path.suffix.lower() not in (".png", ".svg", ".dot", ".gv", ".json", ".mmd"):
            path = path.with_name(path.name + ".png")
        is_png = path.suffix.lower() == ".png"
        return str(self.view.save(path, **(self.options if is_png else {})))


def construct_graph(
    tree: Node,
    show_repetition: bool = True,
    prune_leaves_flag: bool = True,
    squash_name: bool = False,
) -> Drawing:
    """The tree as a picture from top to bottom; repeated layers say how often they are there."""
    shown = prune_leaves(tree) if prune_leaves_flag else tree
    calls = read_calls(dict.fromkeys(shown.paths))
    squash = "name" if squash_name else None
    return Drawing(
        graph_view(calls, depth=_DEEPEST, fold=show_repetition, squash=squash, edges="tree")
    )


def apply_graph_render_options(
    dot: Drawing, dpi: int = 150, figwidth: float | None = None, figheight: float | None = None
) -> Drawing:
    """Say how large the picture is to be, in dots per inch and inches."""
    wanted = {"dpi": dpi, "width": figwidth, "height": figheight}
    dot.options = {name: size for name, size in wanted.items() if size is not None}
    return dot


def render_graph(
    tree: Node,
    show_repetition: bool = True,
    prune_leaves_flag: bool = True,
    squash_name: bool = False,
    dpi: int = 150,
    figwidth: float | None = None,
    figheight: float | None = None,
) -> Drawing:
    """The picture of a tree, with its size."""
    drawing = construct_graph(tree, show_repetition, prune_leaves_flag, squash_name)
    return apply_graph_render_options(drawing, dpi, figwidth, figheight)


def save_tree_json(tree: Node, path: str | Path) -> None:
    """Write the tree as JSON."""
    Path(path).write_text(json.dumps(_as_data(tree), indent=2), encoding="utf-8")


def _as_data(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "count": node.count,
        "indices": sorted(node.indices, key=int),
        "children": [_as_data(child) for child in node.children.values()],
    }
