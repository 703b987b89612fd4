"""Data model of a graph: nested nodes, edges between them. Plain data, the same as JSON.

A node with `children` is a frame drawn around them; one without is a box. Edges lead only between
boxes. The id of a call or op is `e` and the id of its (first) event.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from clew.events.model import SCHEMA

# Kinds of nodes. `REPEAT` is a frame around neighbours that run several times; `INPUT` is a value
# from outside, `OUTPUT` a result that leaves the outermost calls.
CALL, OP, REPEAT, INPUT, OUTPUT = "call", "op", "repeat", "input", "output"

# Kinds of edges. `VIEW`: the target takes a view of the same memory; `WRITE`: the target changes it
# in place; `BACKWARD`: a gradient; `NEXT`: from one run of a repeat to the next; `ORDER`: ran right
# after, if the flow was not recorded or not asked for; `INSIDE`: contains, as in a tree.
DATA, VIEW, WRITE, BACKWARD = "data", "view", "write", "backward"
NEXT, ORDER, INSIDE = "next", "order", "inside"


@dataclass(frozen=True, slots=True)
class Node:
    """One box or frame.

    `events` are the ids of the events it stands for, one per run; `count` is how many, `exact`
    False if their sizes differ. `modules` is how many different modules they called, `parameters`
    how many parameters these have together, `seconds` the time of all runs, `ops` how many ran in
    one. `inputs` and `outputs` are dtype and shape of the tensors (`f32[2,3]`). `stats` has
    statistics of its results; `nan`, `nan_share` and `inf` are of everything inside.
    """

    id: str
    kind: str
    name: str
    cls: str = ""
    path: str | None = None
    parent: str | None = None
    children: tuple[str, ...] = ()
    level: int = 0
    events: tuple[int, ...] = ()
    count: int = 1
    exact: bool = True
    ops: int = 0
    modules: int = 0
    parameters: int = 0
    seconds: float | None = None
    bytes: int = 0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    stats: dict[str, float] | None = None
    source: str | None = None
    error: str | None = None
    address: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the node as plain data."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two boxes; `labels` are dtype and shape of the tensors as taken."""

    source: str
    target: str
    kind: str = DATA
    labels: tuple[str, ...] = ()
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as plain data."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole graph: nodes in the order in which they ran, a frame before its children.

    `part` says which part of a longer run it shows: `step 0 of 20, rank 0 of 2`.
    """

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    part: str = ""

    @property
    def heading(self) -> str:
        """Return the title with the part of the run that is drawn."""
        return f"{self.title}, {self.part}" if self.part else self.title

    def __getitem__(self, node: str) -> Node:
        for found in self.nodes:
            if found.id == node:
                return found
        raise KeyError(node)

    @property
    def tops(self) -> tuple[Node, ...]:
        """Return the nodes that no frame contains."""
        return tuple(node for node in self.nodes if node.parent is None)

    @property
    def boxes(self) -> tuple[Node, ...]:
        """Return the nodes without children."""
        return tuple(node for node in self.nodes if not node.children)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as plain data, the shape of its JSON."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "part": self.part,
            "nodes": [node.to_dict() for node in self.nodes],
            "edges": [edge.to_dict() for edge in self.edges],
        }

    def __repr__(self) -> str:
        return f"<Graph {self.heading!r}: {len(self.nodes)} nodes, {len(self.edges)} edges>"


def nested(nodes: dict[str, Node]) -> tuple[Node, ...]:
    """Return nodes with children filled in from their parents, a frame before its children."""
    children: dict[str | None, list[str]] = {}
    for node in nodes.values():
        children.setdefault(node.parent, []).append(node.id)

    found = []
    pending = children.get(None, [])[::-1]
    while pending:
        name = pending.pop()
        inside = children.get(name, [])
        found.append(replace(nodes[name], children=tuple(inside)))
        pending += inside[::-1]
    return tuple(found)


def _plain(data: Any) -> dict[str, Any]:
    found = ((f.name, getattr(data, f.name)) for f in fields(data))
    return {name: list(item) if isinstance(item, tuple) else item for name, item in found}
