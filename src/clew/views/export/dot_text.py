"""The graph of the first rank in the DOT language, for Netron and Graphviz.

A box is a module call or an op, with its class or op as Netron's type; layers that repeat are
drawn once. `depth`, `fold` and `ops` are those of `Trace.graph`, all the way down if not told.
"""

from __future__ import annotations

from pathlib import Path

from clew.analysis.graph import Options, build
from clew.store.reader import Reader
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.graph.dot import netron_dot


def write(
    readers: list[Reader],
    target: Path,
    *,
    depth: int | None = None,
    fold: bool = True,
    ops: str | None = None,
) -> Contents:
    """Write the graph."""
    graph = build(readers[0], Options(depth, fold, ops))
    with text_file(target) as file:
        file.write(netron_dot(graph))
    return Contents(len(graph.boxes), "node")
