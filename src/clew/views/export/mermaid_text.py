"""The graph of the first rank as a Mermaid flowchart, for Markdown pages.

Layers that repeat are drawn once. `depth`, `fold`, `ops` and `step` are those of `Trace.graph`.
"""

from __future__ import annotations

from pathlib import Path

from clew.analysis.graph import Options, build
from clew.analysis.graph.part import one_rank
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.graph.mermaid import mermaid


def write(
    run: Run,
    target: Path,
    *,
    depth: int | None = None,
    fold: bool = True,
    ops: str | None = None,
    step: int | None = None,
) -> Contents:
    """Write the graph."""
    run, _, said = one_rank(run)
    graph = build(run, Options(depth, fold, ops, step=step), said=said)
    with text_file(target) as file:
        file.write(mermaid(graph, color="class", direction="down", show=("params", "time")))
    return Contents(len(graph.boxes), "node")
