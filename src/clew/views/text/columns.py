"""Lines of the tree laid out in columns that fit the width there is.

In come `Line`s of cells, out come strings. Names and shapes get the room that numbers leave; the
source goes first when there is too little.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.views.text.cells import Cells
from clew.views.text.style import Style, clipped

_GAP = "  "
_NARROWEST_FLOW = 26
_WIDEST_LABEL = 0.46
_TITLES = Cells(name="", flow=["in → out"], ops="ops", params="params", time="time", source="source")

# Pieces of text, each with its looks.
_Pieces = list[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what stands before it, what it says, and what stands before lines under it."""

    lead: str
    cells: Cells
    level: int
    below: str = ""


@dataclass(frozen=True, slots=True)
class _Widths:
    label: int
    flow: int
    ops: int
    params: int
    time: int
    source: int


def laid_out(lines: list[Line], style: Style) -> list[str]:
    """The lines as text, a line of column titles first."""
    widths = _widths(lines, style.width)
    titles = _row(Line("", _TITLES, 0), widths)
    rows = [[("".join(text for text, _ in titles).rstrip(), ("dim",))]]
    for line in lines:
        rows += _failure(line) if line.cells.error and not line.cells.cls else [_row(line, widths)]
    return [_painted(row, style) for row in rows]


def _widths(lines: list[Line], width: int) -> _Widths:
    cells = [line.cells for line in lines if not line.cells.error or line.cells.cls]
    cells = [*cells, _TITLES]
    ops = max(len(c.ops) for c in cells)
    params = max(len(c.params) for c in cells if c is not _TITLES) if len(cells) > 1 else 0
    params = max(params, len(_TITLES.params)) if params else 0
    time = max(len(c.time) for c in cells)
    source = max(len(c.source) for c in cells)
    # Lines of ops, which have no name, make do with the room that the others take.
    labels = [len(line.lead) + len(_label_text(line.cells)) for line in lines if line.cells.name]
    labels = labels or [width // 3]
    label = min(max(labels, default=0), int(width * _WIDEST_LABEL))
    numbers = sum(len(_GAP) + size for size in (ops, params, time) if size)
    flow = width - label - numbers - len(_GAP)
    if flow - source - len(_GAP) >= _NARROWEST_FLOW:
        flow -= source + len(_GAP)
    else:
        source = 0
    longest = max(len(c.flow[0]) for c in cells)
    return _Widths(label, min(max(flow, 12), longest), ops, params, time, source)


def _label_text(cells: Cells) -> str:
    return " ".join(part for part in (cells.name, cells.mark) if part) + (
        f"  {cells.cls}" if cells.name and cells.cls else cells.cls
    )


def _label(line: Line, width: int) -> _Pieces:
    cells = line.cells
    room = max(width - len(line.lead), 8)
    pieces: _Pieces = [(line.lead, ("dim",))]
    if cells.error:
        pieces.append(("✗ ", ("red", "bold")))
        room -= 2
    named = " ".join(part for part in (cells.name, cells.mark) if part)
    name = clipped(cells.name, room)
    pieces.append((name, ("bold",)))
    if cells.mark:
        pieces.append((f" {cells.mark}" if name else cells.mark, ("cyan",)))
    if cells.cls:
        gap = "  " if named else ""
        pieces.append((gap + clipped(cells.cls, max(room - len(named) - len(gap), 6)), ()))
    used = sum(len(text) for text, _ in pieces)
    pieces.append((" " * max(width - used, 0), ()))
    return pieces


def _row(line: Line, widths: _Widths) -> _Pieces:
    cells = line.cells
    pieces = _label(line, widths.label)
    over = sum(len(text) for text, _ in pieces) - widths.label
    flow = next((f for f in cells.flow if len(f) <= widths.flow), cells.flow[-1])
    flow = clipped(flow, widths.flow)
    pieces.append((_GAP + flow.ljust(max(widths.flow - max(over, 0), 0)), ()))
    for text, size in (
        (cells.ops, widths.ops),
        (cells.params, widths.params),
        (cells.time, widths.time),
    ):
        if size:
            pieces.append((_GAP + text.rjust(size), ()))
    if widths.source:
        pieces.append((_GAP + cells.source, ("dim",)))
    return pieces


def _failure(line: Line) -> list[_Pieces]:
    cells = line.cells
    first = cells.error.splitlines()[0] if cells.error else ""
    return [
        [(line.lead, ("dim",)), (f"✗ {first}", ("red", "bold"))],
        [(line.below + "  ", ("dim",)), (cells.detail, ())],
    ]


def _painted(pieces: _Pieces, style: Style) -> str:
    """Pieces joined, cut at the edge of a terminal, nothing trailing."""
    while pieces and not pieces[-1][0].strip():
        pieces = pieces[:-1]
    if pieces:
        pieces = [*pieces[:-1], (pieces[-1][0].rstrip(), pieces[-1][1])]
    room = style.width if style.terminal else sum(len(text) for text, _ in pieces)
    texts = []
    for text, looks in pieces:
        shown = clipped(text, room)
        room -= len(shown)
        texts.append(style.paint(shown, *looks) if looks else shown)
        if room <= 0:
            break
    return "".join(texts)
