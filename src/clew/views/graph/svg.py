"""A graph as SVG, laid out here: no other program, font or script is needed.

The picture adapts to light and dark pages by itself, or is drawn for one of them. Every box has a
tooltip with all facts about it.
"""

from __future__ import annotations

import html
from itertools import pairwise

from clew.analysis.graph.graph_model import (
    BACKWARD,
    CALL,
    INPUT,
    INSIDE,
    NEXT,
    OP,
    ORDER,
    OUTPUT,
    Edge,
    Graph,
    Node,
)
from clew.plain_text import plain_lines
from clew.views.graph import words
from clew.views.graph.box_size import (
    LINE_HEIGHT,
    SMALL,
    STACK,
    box_size,
    in_two_lines,
    label_size,
    stub_size,
    title_size,
)
from clew.views.graph.colors import STEPS, Painter
from clew.views.graph.layout.nested import lay_out
from clew.views.graph.layout.shapes import Box, Link, Picture, Point, Rect, Route, Size
from clew.views.graph.stylesheet import FONT, style_sheet
from clew.views.graph.text_size import text_width

_MARGIN = 12.0
_ARROW = 6.0
_LEGEND, _LEGEND_WIDTH = 34.0, 270.0
# Room below the picture for the text that says which part of the run it shows.
_PART = 20.0


class Drawing:
    """One graph, laid out and ready to be written."""

    def __init__(
        self, graph: Graph, *, color: str, direction: str, theme: str, show: tuple[str, ...]
    ) -> None:
        self._graph = graph
        self._painter = Painter(graph.nodes, color)
        self._right = direction == "right"
        self._theme = theme
        self._show = show
        self._nodes = {node.id: node for node in graph.nodes}
        self._edges = [edge for edge in graph.edges if edge.kind != NEXT]
        self._labels = self._said_once()
        self.picture = self._laid_out()

    def _said_once(self) -> list[str]:
        """Return the label of each edge; edges that share a line have one, and no label is
        repeated.
        """
        lines: dict[tuple[str, str, str], list[int]] = {}
        for number, edge in enumerate(self._edges):
            lines.setdefault((edge.source, self._side_met(edge), _lane(edge)), []).append(number)
        labels = [""] * len(self._edges)
        said: set[tuple[str, str, str | None]] = set()
        for (source, side, _), numbers in lines.items():
            text = words.edge_label(words.joined([self._edges[n] for n in numbers]))
            key = source, text, self._nodes[side].parent
            if key not in said:
                labels[numbers[0]] = text
            said.add(key)
        return labels

    def _side_met(self, edge: Edge) -> str:
        """Return the target, or the outermost frame around it that does not contain the source."""
        around: set[str | None] = {None}
        at: str | None = edge.source
        while at is not None:
            around.add(at)
            at = self._nodes[at].parent
        side = edge.target
        while True:
            above = self._nodes[side].parent
            if above is None or above in around:
                return side
            side = above

    def _laid_out(self) -> Picture:
        links = [
            Link(
                edge.source,
                edge.target,
                label_size(text, self._right) if text else None,
                _lane(edge),
                minor=edge.kind == BACKWARD,
            )
            for edge, text in zip(self._edges, self._labels, strict=True)
        ]
        return lay_out(
            [self._box(node) for node in self._graph.tops],
            links,
            right=self._right,
            stub_size=self._stub_size,
        )

    def _box(self, node: Node) -> Box:
        if node.children:
            inside = tuple(self._box(self._nodes[child]) for child in node.children)
            return Box(node.id, *title_size(node, self._right), inside)
        return Box(node.id, *box_size(node, self._show))

    def _stub_size(self, name: str) -> Size:
        return stub_size(self._nodes[name])

    @property
    def size(self) -> Size:
        """Width and height in pixels."""
        legend = self._painter.legend() is not None
        part = text_width(words.part(self._graph), SMALL)
        width = max(self.picture.width + STACK, _LEGEND_WIDTH if legend else 0.0, part)
        below = (_LEGEND if legend else 0.0) + (_PART if part else 0.0)
        return width + 2 * _MARGIN, self.picture.height + STACK + 2 * _MARGIN + below

    def text(self) -> str:
        """Return the whole SVG file."""
        legend = self._painter.legend()
        width, height = self.size
        title = f"{words.heading(self._graph)}: {len(self._graph.nodes)} nodes"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="clew" width="{_n(width)}" '
            f'height="{_n(height)}" viewBox="{_n(-_MARGIN)} {_n(-_MARGIN)} {_n(width)} '
            f'{_n(height)}" role="img" aria-label="{escape(title)}" font-family="{escape(FONT)}">',
            f"<style>{style_sheet(self._theme)}</style>",
        ]
        if self._theme != "auto":
            parts.append(
                f'<rect class="paper" x="{_n(-_MARGIN)}" y="{_n(-_MARGIN)}" '
                f'width="{_n(width)}" height="{_n(height)}"/>'
            )
        parts += [self._frame(node) for node in self._graph.nodes if node.children]
        routes = list(zip(self._edges, self._labels, self.picture.routes, strict=True))
        parts += [self._line(edge, route) for edge, _, route in routes if route is not None]
        parts += [self._node(node) for node in self._graph.nodes if not node.children]
        parts += [self._label(e, text, r) for e, text, r in routes if r is not None]
        parts += [self._legend(*legend)] if legend else []
        if self._graph.part:
            y, part = height - _MARGIN - 6, escape(words.part(self._graph))
            parts.append(f'<text class="small" x="0" y="{_n(y)}">{part}</text>')
        return "\n".join([*filter(None, parts), "</svg>"]) + "\n"

    def _frame(self, node: Node) -> str:
        rect = self.picture.boxes[node.id]
        css = f"frame d{min(node.level, 3) % 2}" + (" failed" if node.error else "")
        behind = ""
        if node.count > 1:
            behind = _rect(Rect(rect.x + 4, rect.y + 4, rect.width, rect.height), css, 9)
        x, y = rect.x + (14.0 if not self._right else 12.0), rect.y + 17
        spans = [f'<tspan class="name">{escape(words.title(node))}</tspan>']
        if node.count > 1:
            spans.append(f'<tspan class="times" dx="6">{words.times(node)}</tspan>')
        if words.subtitle(node):
            at = f'x="{_n(x)}" dy="13"' if in_two_lines(node, self._right) else 'dx="6"'
            spans.append(f'<tspan class="small" {at}>{escape(words.subtitle(node))}</tspan>')
        return (
            f'<g data-node="{node.id}">{_tip(node)}{behind}{_rect(rect, css, 9)}'
            f'<text x="{_n(x)}" y="{_n(y)}">{"".join(spans)}</text></g>'
        )

    def _node(self, node: Node) -> str:
        rect = self.picture.boxes[node.id]
        css = self._painter.css_class(node) + (" failed" if node.error else "")
        middle = rect.x + rect.width / 2
        if node.kind != CALL:
            name = escape(words.title(node) + words.times(node))
            kind = {OP: "op", INPUT: "io", OUTPUT: "io"}[node.kind]
            return (
                f'<g data-node="{node.id}">{_tip(node)}{_rect(rect, f"{kind} {css}", 10)}'
                f'<text class="small {kind}-text" text-anchor="middle" x="{_n(middle)}" '
                f'y="{_n(rect.y + 13.8)}">{name}</text></g>'
            )
        behind = ""
        if node.count > 1:
            rect = Rect(rect.x, rect.y, rect.width - 2 * STACK, rect.height - 2 * STACK)
            middle = rect.x + rect.width / 2
            for off in (2 * STACK, STACK):
                moved = Rect(rect.x + off, rect.y + off, rect.width, rect.height)
                behind += _rect(moved, f"call {css}", 6)
        lines = [f'<tspan class="name">{escape(words.title(node))}</tspan>']
        if node.count > 1:
            lines[0] += f'<tspan class="times" dx="6">{words.times(node)}</tspan>'
        others = (words.subtitle(node), words.facts(node, self._show))
        lines += [f'<tspan class="small">{escape(text)}</tspan>' for text in others if text]
        texts = (
            f'<text text-anchor="middle" x="{_n(middle)}" '
            f'y="{_n(rect.y + 17 + number * LINE_HEIGHT)}">{line}</text>'
            for number, line in enumerate(lines)
        )
        return (
            f'<g data-node="{node.id}">{_tip(node)}{behind}'
            f"{_rect(rect, f'call {css}', 6)}{''.join(texts)}</g>"
        )

    def _line(self, edge: Edge, route: Route) -> str:
        names = {end: words.title(self._nodes[end]) for end in (edge.source, edge.target)}
        tip = f"<title>{escape(words.edge_description(edge, names))}</title>"
        path, arrow = _curve(route.points, self._right, head=edge.kind != INSIDE)
        return (
            f'<g class="edge {edge.kind}" data-edge="{edge.source} {edge.target}">{tip}'
            f'<path class="line" d="{path}"/>{arrow}</g>'
        )

    def _label(self, edge: Edge, text: str, route: Route) -> str:
        stub = ""
        if route.stub is not None:
            middle = route.stub.x + route.stub.width / 2
            name = escape(words.title(self._nodes[edge.source]))
            stub = (
                f'{_rect(route.stub, "stub", 8)}<text class="label" text-anchor="middle" '
                f'x="{_n(middle)}" y="{_n(route.stub.y + 11.5)}">{name}</text>'
            )
        if not text or route.label is None:
            return stub
        rect = route.label
        x, y = (rect.x + 5, rect.y + 8.5) if self._right else (rect.x + 5, rect.y + 9.5)
        css = f"label {edge.kind}-label"
        return f'{stub}<text class="{css}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'

    def _legend(self, name: str, low: str, high: str) -> str:
        y = self.picture.height + 14
        cells = "".join(_rect(Rect(i * 16.0, y, 16.0, 10.0), f"call q{i}", 0) for i in range(STEPS))
        end = STEPS * 16.0 + 6
        return (
            f'<g class="legend">{cells}<text class="small" x="{_n(end)}" y="{_n(y + 9)}">'
            f"{escape(f'{name}: {low} – {high}')}</text></g>"
        )


def escape(text: str) -> str:
    """Escape text for an element or attribute; keep only characters that XML allows."""
    return html.escape(plain_lines(text))


def _lane(edge: Edge) -> str:
    return edge.kind if edge.kind in (BACKWARD, ORDER) else ""


def _tip(node: Node) -> str:
    return f"<title>{escape(words.description(node))}</title>"


def _rect(rect: Rect, css: str, radius: float) -> str:
    return (
        f'<rect class="{css}" x="{_n(rect.x)}" y="{_n(rect.y)}" width="{_n(rect.width)}" '
        f'height="{_n(rect.height)}" rx="{_n(radius)}"/>'
    )


def _curve(points: list[Point], right: bool, head: bool) -> tuple[str, str]:
    """Return a smooth line through points, straight where they are aligned, and its arrow head."""
    tidy = [*(p for p, after in pairwise(points) if p != after), points[-1]]
    (x, y), before = tidy[-1], tidy[-2]
    along = (x - before[0]) if right else (y - before[1])
    sign = 1.0 if along >= 0 else -1.0
    arrow = ""
    if head:
        back, half = sign * _ARROW, _ARROW / 2
        tips = (
            [(x, y), (x - back, y - half), (x - back, y + half)]
            if right
            else [(x, y), (x - half, y - back), (x + half, y - back)]
        )
        arrow = f'<path class="head" d="M{"L".join(_p(tip) for tip in tips)}Z"/>'
        tidy[-1] = (x - back * 0.8, y) if right else (x, y - back * 0.8)
    path = [f"M{_p(tidy[0])}"]
    for (x0, y0), (x1, y1) in pairwise(tidy):
        if (y0 == y1) if right else (x0 == x1):
            path.append(f"L{_p((x1, y1))}")
        elif right:
            middle = (x0 + x1) / 2
            path.append(f"C{_p((middle, y0))} {_p((middle, y1))} {_p((x1, y1))}")
        else:
            middle = (y0 + y1) / 2
            path.append(f"C{_p((x0, middle))} {_p((x1, middle))} {_p((x1, y1))}")
    return "".join(path), arrow


def _p(point: Point) -> str:
    return f"{_n(point[0])} {_n(point[1])}"


def _n(number: float) -> str:
    """Write a number with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
