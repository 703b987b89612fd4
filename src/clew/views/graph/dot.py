"""A graph in the DOT language: for Graphviz, with frames as clusters, or for Netron.

Netron takes a box's type from a label in the form that `torch.fx` draws, and ignores clusters;
Graphviz draws such labels as records.
"""

from __future__ import annotations

from collections.abc import Iterator

from clew.analysis.graph.graph_model import (
    BACKWARD,
    CALL,
    INPUT,
    NEXT,
    OP,
    ORDER,
    OUTPUT,
    WRITE,
    Graph,
    Node,
)
from clew.plain_text import plain, plain_lines
from clew.spec import SCALE
from clew.views.graph import words
from clew.views.graph.colors import FAMILIES, Painter

_STYLES = {
    BACKWARD: 'style=dashed color="#ca8a04" constraint=false',
    WRITE: 'color="#d9480f"',
    ORDER: "style=dotted",
}
_SHAPES = {
    OP: 'shape=box style="rounded,filled" fillcolor="#ffffff" color="#94a3b8"',
    INPUT: 'shape=box style="rounded,filled" fillcolor="#1e293b" fontcolor="#f8fafc"',
    OUTPUT: 'shape=box style="rounded,filled" fillcolor="#1e293b" fontcolor="#f8fafc"',
}


def dot(graph: Graph, *, color: str, direction: str, show: tuple[str, ...]) -> str:
    """Return the graph for Graphviz."""
    painter = Painter(graph.nodes, color)
    rank = "LR" if direction == "right" else "TB"
    lines = [
        f"digraph {quoted(graph.heading)} {{",
        f'  graph [rankdir={rank} fontname="Helvetica" fontsize=11 compound=true];',
        '  node [fontname="Helvetica" fontsize=10 shape=box];',
        '  edge [fontname="Helvetica" fontsize=9 color="#7a8aa0" fontcolor="#64748b"];',
    ]
    if graph.part:
        lines.append(f"  label={quoted(graph.part)};")
    nodes = {node.id: node for node in graph.nodes}
    for node in graph.tops:
        lines += _drawn(node, nodes, painter, show, "  ")
    for edge in graph.edges:
        if edge.kind != NEXT:
            style = _STYLES.get(edge.kind, "")
            label = words.edge_label(edge)
            facts = " ".join(filter(None, [f"label={quoted(label)}" if label else "", style]))
            lines.append(f"  {edge.source} -> {edge.target}{f' [{facts}]' if facts else ''};")
    return "\n".join([*lines, "}"]) + "\n"


def _drawn(
    node: Node, nodes: dict[str, Node], painter: Painter, show: tuple[str, ...], indent: str
) -> Iterator[str]:
    name = " ".join(filter(None, [words.title(node), words.times(node)]))
    if node.children:
        label = quoted(" ".join(filter(None, [name, words.subtitle(node)])))
        yield f"{indent}subgraph cluster_{node.id} {{"
        yield f'{indent}  label={label}; labeljust=l; style=rounded; color="#cbd5e1";'
        for child in node.children:
            yield from _drawn(nodes[child], nodes, painter, show, indent + "  ")
        yield f"{indent}}}"
        return
    lines = [name]
    style = _SHAPES.get(node.kind, "")
    if node.kind == CALL:
        lines += filter(None, [words.subtitle(node), words.facts(node, show)])
        css = painter.css_class(node)
        paint = FAMILIES[css] if css in FAMILIES else SCALE[int(css[1:])]
        shape = 'style="rounded,filled" '
        style = f'{shape}fillcolor="{paint.fill}" color="{paint.line}"'
    if node.error:
        style += ' color="#dc2626" penwidth=2'
    yield f"{indent}{node.id} [label={quoted(chr(10).join(lines))} {style}];"


def netron_dot(graph: Graph) -> str:
    """Return the graph for Netron: boxes with type, names and facts; frames as clusters."""
    lines = [f"digraph {quoted(graph.heading)} {{", "  node [shape=record];"]
    names = {node.id: _netron_name(node) for node in graph.nodes}
    for node in graph.nodes:
        if not node.children:
            lines.append(f"  {quoted(names[node.id])} [label={_record(node, names[node.id])}];")
    for edge in graph.edges:
        if edge.kind not in (NEXT, BACKWARD):
            label = f" [label={quoted(words.edge_label(edge))}]" if edge.labels else ""
            source, target = quoted(names[edge.source]), quoted(names[edge.target])
            lines.append(f"  {source} -> {target}{label};")
    # Netron ignores clusters, so they only list boxes that were declared before.
    nodes = {node.id: node for node in graph.nodes}
    for node in graph.tops:
        lines += _cluster(node, nodes, names, "  ")
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(
    node: Node, nodes: dict[str, Node], names: dict[str, str], indent: str
) -> Iterator[str]:
    if not node.children:
        return
    yield f"{indent}subgraph cluster_{node.id} {{"
    yield f"{indent}  label={quoted(words.title(node))};"
    for child in node.children:
        if nodes[child].children:
            yield from _cluster(nodes[child], nodes, names, indent + "  ")
        else:
            yield f"{indent}  {quoted(names[child])};"
    yield f"{indent}}}"


def _netron_name(node: Node) -> str:
    """Return a unique name for each box, which begins with the module path."""
    name = node.path or node.name
    return f"{name}#{node.id}"


def _record(node: Node, name: str) -> str:
    """Return a label as `torch.fx` writes it: name, sort of call, what is called, facts."""
    kind = {CALL: "call_module", OP: "call_function", INPUT: "placeholder", OUTPUT: "output"}
    called = node.cls or node.name
    facts = [
        ("count", str(node.count) if node.count > 1 else ""),
        ("parameters", f"{node.parameters}" if node.parameters else ""),
        ("in", " ".join(node.inputs)),
        ("out", " ".join(node.outputs)),
        ("source", (node.source or "").replace(":", " line ")),
    ]
    said = "".join(f"{key}: {_in_record(text)}\\l" for key, text in facts if text)
    head = f"{_in_record(called)}\\l" if node.kind == CALL else ""
    called = f"{_in_record(called)}\\l" if node.kind != CALL else ""
    return f'"{{{_in_record(name)}|op_code={kind[node.kind]}\\l{head}|{called}{said}}}"'


def _in_record(text: str) -> str:
    """Return the text without characters that would end a field of a record."""
    text = plain(text)
    for mark in '{}|<>"\\':
        text = text.replace(mark, " ")
    return text


def quoted(text: str) -> str:
    r"""Return a string of the DOT language.

    >>> print(quoted('say "hi"'))
    "say \"hi\""
    """
    escaped = plain_lines(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
