"""A graph as a Mermaid flowchart, which GitHub and many document viewers draw."""

from __future__ import annotations

import json
from collections.abc import Iterator

from clew.analysis.graph.graph_model import BACKWARD, CALL, NEXT, OP, ORDER, WRITE, Graph, Node
from clew.plain_text import plain
from clew.spec import SCALE
from clew.views.graph import words
from clew.views.graph.colors import FAMILIES, Painter

# Characters with a meaning in a label: entities, the end of the label, tags, Markdown, formulas,
# line breaks; and what begins a setting or comment, anywhere in the text.
_CODES = str.maketrans(
    {
        "#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;",
        "$": "#36;", "\\": "#92;", "%": "#37;",
    }
)  # fmt: skip
_ARROWS = {BACKWARD: "-.->", ORDER: "-.->", WRITE: "==>"}


def mermaid(graph: Graph, *, color: str, direction: str, show: tuple[str, ...]) -> str:
    """Return the graph as text for Mermaid."""
    painter = Painter(graph.nodes, color)
    nodes = {node.id: node for node in graph.nodes}
    # Text between dashes before a diagram is YAML, and JSON is valid YAML.
    title = json.dumps(words.heading(graph)).replace("%", "\\u0025")
    lines = ["---", f"title: {title}", "---"] if graph.part else []
    lines.append(f"flowchart {'LR' if direction == 'right' else 'TB'}")
    for node in graph.tops:
        lines += _drawn(node, nodes, show, "  ")
    for edge in graph.edges:
        if edge.kind != NEXT:
            text = words.edge_label(edge)
            label = f'|"{_escaped(text)}"|' if text else ""
            arrow = _ARROWS.get(edge.kind, "-->")
            lines.append(f"  {edge.source} {arrow}{label} {edge.target}")
    painted: dict[str, list[str]] = {}
    for node in graph.boxes:
        if node.kind == CALL:
            painted.setdefault(painter.css_class(node), []).append(node.id)
    for css, ids in painted.items():
        paint = FAMILIES[css] if css in FAMILIES else SCALE[int(css[1:])]
        lines.append(f"  classDef {css} fill:{paint.fill},stroke:{paint.line},color:#1e293b")
        lines.append(f"  class {','.join(ids)} {css}")
    return "\n".join(lines) + "\n"


def _drawn(node: Node, nodes: dict[str, Node], show: tuple[str, ...], indent: str) -> Iterator[str]:
    name = _escaped(" ".join(filter(None, [words.title(node), words.times(node)])))
    if node.children:
        title = " ".join(filter(None, [name, _escaped(words.subtitle(node))]))
        yield f'{indent}subgraph {node.id}["{title}"]'
        for child in node.children:
            yield from _drawn(nodes[child], nodes, show, indent + "  ")
        yield f"{indent}end"
    elif node.kind == CALL:
        others = filter(None, [words.subtitle(node), words.facts(node, show)])
        yield f'{indent}{node.id}["{"<br/>".join([f"<b>{name}</b>", *map(_escaped, others)])}"]'
    else:
        yield (
            f'{indent}{node.id}(["{name}"])'
            if node.kind == OP
            else f'{indent}{node.id}[/"{name}"/]'
        )


def _escaped(text: str) -> str:
    """Escape text so that Mermaid shows it literally."""
    return plain(text).translate(_CODES)
