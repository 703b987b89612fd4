"""Sizes of boxes, titles of frames and labels, by the texts that are written in them."""

from __future__ import annotations

from clew.analysis.graph.graph_model import CALL, REPEAT, Node
from clew.views.graph import words
from clew.views.graph.layout.shapes import Size
from clew.views.graph.text_size import text_width

# Font sizes in pixels: names of boxes, what is below a name, labels of edges.
NAME, SMALL, LABEL = 12.5, 10.5, 10.0
LINE_HEIGHT = 14.0
# How far the cards of a stack lie apart.
STACK = 3.0
_LONG_TITLE = 110.0


def title_size(node: Node, right: bool = False) -> Size:
    """Return the size of a frame's title."""
    first, second = _title_widths(node)
    if in_two_lines(node, right):
        return max(first, second), 33.0
    return first + (second + 6 if second else 0.0), 20.0


def in_two_lines(node: Node, right: bool = False) -> bool:
    """Return whether the class goes below the name, which leaves more room for lines."""
    first, second = _title_widths(node)
    return bool(second) and not right and first + second > _LONG_TITLE


def _title_widths(node: Node) -> Size:
    return _name_width(node), text_width(words.subtitle(node), SMALL)


def _name_width(node: Node) -> float:
    width = text_width(words.title(node), NAME, bold=True)
    if node.count > 1:
        width += text_width(words.times(node), NAME, bold=True) + 6
    return width


def box_size(node: Node, show: tuple[str, ...]) -> Size:
    """Return the size of a box that is closed, or has nothing inside."""
    if node.kind not in (CALL, REPEAT):
        return text_width(words.title(node) + words.times(node), SMALL) + 22, 20.0
    others = [t for t in (words.subtitle(node), words.facts(node, show)) if t]
    width = max([_name_width(node), *(text_width(t, SMALL) for t in others)]) + 22
    stack = 2 * STACK if node.count > 1 else 0.0
    return max(width, 64.0) + stack, 12 + LINE_HEIGHT * (1 + len(others)) + stack


def label_size(text: str, right: bool = False) -> Size:
    """Return the size of an edge's label."""
    return text_width(text, LABEL) + 10, 14.0 if right else 12.0


def stub_size(node: Node) -> Size:
    """Return the size of the note that names a box where the line from it is left out."""
    return text_width(words.title(node), LABEL) + 16, 16.0
