"""The graph of the first rank as a Mermaid flowchart, for Markdown pages.

Layers that repeat are drawn once. `depth`, `fold` and `ops` are those of `Trace.graph`.
"""

from __future__ import annotations

from pathlib import Path

from clew.analysis.graph import Options, build
from clew.store.reader import Reader
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.graph.mermaid import mermaid


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
        file.write(mermaid(graph, color="class", direction="down", show=("params", "time")))
    return Contents(len(graph.boxes), "node")
