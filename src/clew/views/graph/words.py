"""Texts of boxes and edges that all pictures of a graph share."""

from __future__ import annotations

from dataclasses import replace

from clew.analysis.graph.graph_model import (
    BACKWARD,
    CALL,
    DATA,
    NEXT,
    ORDER,
    WRITE,
    Edge,
    Graph,
    Node,
)
from clew.events.number_text import bytes_text
from clew.plain_text import plain, plain_lines
from clew.views.text.style import clipped, counted, short_number, time_text

_LONGEST_NAME = 34
_LONGEST_LABEL = 30
_MOST_LABELS = 2

SHOWN = ("params", "time")


def title(node: Node) -> str:
    """Return the name of a box."""
    return clipped(plain(node.name), _LONGEST_NAME)


def times(node: Node) -> str:
    """Return how often it ran, empty for once."""
    return f"×{node.count}" if node.count > 1 else ""


def subtitle(node: Node) -> str:
    """Return the class of a module, empty if the name already says it."""
    is_new = node.kind == CALL and node.cls != node.name
    return clipped(plain(node.cls), _LONGEST_NAME) if is_new else ""


def facts(node: Node, shown: tuple[str, ...] = SHOWN) -> str:
    """Return parameters, time and the like of one run, with `12 ×` before what each run has."""
    runs = max(len(node.events), 1)
    each = f"{node.count} × " if node.count > 1 else ""
    modules = max(node.modules, 1)
    own = each if modules >= node.count else ""
    texts = {
        "params": f"{own}{short_number(node.parameters / modules)}" if node.parameters else "",
        "time": "" if node.seconds is None else f"{each}{time_text(node.seconds / runs)}",
        "ops": counted(node.ops, "op") if node.ops and node.kind == CALL else "",
        "bytes": bytes_text(node.bytes) if node.bytes else "",
    }
    if not node.seconds:
        texts["time"] = ""
    return " · ".join(text for name, text in texts.items() if name in shown and text)


def edge_label(edge: Edge) -> str:
    """Return dtype and shape of the tensors an edge carries, shortened."""
    if edge.kind == NEXT:
        return ""
    shown = [clipped_label(label) for label in edge.labels[:_MOST_LABELS]]
    more = len(edge.labels) - len(shown)
    text = ", ".join(shown) + (f", +{more}" if more else "")
    if text and edge.count > len(edge.labels) and len(edge.labels) == 1:
        text += f" ×{edge.count}"
    return f"{text} in place".strip() if edge.kind == WRITE else text


def clipped_label(label: str) -> str:
    """Return dtype and shape of one tensor, shortened."""
    return clipped(plain(label), _LONGEST_LABEL)


def joined(edges: list[Edge]) -> Edge:
    """Join edges that share a line into one."""
    kinds = {edge.kind for edge in edges}
    labels = dict.fromkeys(label for edge in edges for label in edge.labels)
    kind = edges[0].kind if len(kinds) == 1 else DATA
    return replace(
        edges[0], kind=kind, labels=tuple(labels), count=max(edge.count for edge in edges)
    )


def description(node: Node) -> str:
    """Return everything known about a node, one fact per line, as a tooltip."""
    runs = max(len(node.events), 1)
    lines = [f"{node.path or node.name}{f' ({node.cls})' if node.cls else ''}"]
    if runs > 1:
        lines.append(f"runs: {runs}" + ("" if node.exact else ", sizes vary"))
    if node.inputs:
        lines.append(f"in: {', '.join(node.inputs)}")
    if node.outputs:
        lines.append(f"out: {', '.join(node.outputs)}")
    if node.parameters:
        lines.append(f"parameters: {node.parameters:,}")
    if node.seconds:
        lines.append(f"time: {time_text(node.seconds)}")
    if node.ops > 1:
        lines.append(f"ops: {node.ops:,}")
    for name in ("nan", "inf"):
        if node.stats and node.stats.get(name):
            lines.append(f"{name}: {int(node.stats[name]):,}")
    if node.source:
        lines.append(node.source)
    error = [plain_lines(f"error: {node.error}")] if node.error else []
    return "\n".join([*map(plain, lines), *error])


def edge_description(edge: Edge, names: dict[str, str]) -> str:
    """Return what an edge carries, from where to where."""
    how = {WRITE: " (in place)", BACKWARD: " (gradient)", ORDER: " (order)"}.get(edge.kind, "")
    carried = "\n".join(map(plain, edge.labels))
    return f"{names[edge.source]} → {names[edge.target]}{how}\n{carried}"


def heading(graph: Graph) -> str:
    """Return the title of the graph, and which part of the run it draws."""
    return plain(graph.heading)


def part(graph: Graph) -> str:
    """Return which part of the run is drawn, empty for all of it."""
    return plain(graph.part)
