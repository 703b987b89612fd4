"""Graph of the first rank in the DOT language, for Netron and Graphviz.

A box is a module call or an op, with its class or op as Netron's type; repeated layers are drawn
once. `depth`, `fold`, `ops` and `step` are those of `Trace.graph`; by default the graph goes down
to the last level.
"""

from __future__ import annotations

from pathlib import Path

from clew.analysis.graph import Options, build
from clew.analysis.graph.part import one_rank
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.graph.dot import netron_dot


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
        file.write(netron_dot(graph))
    return Contents(len(graph.boxes), "node")
