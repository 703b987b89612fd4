"""Lines of the tree laid out in columns that fit the width there is.

In come `Line`s of cells, out come strings. Names and shapes get the room that numbers leave; the
source goes first when there is too little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clew.views.text.cells import Cells
from clew.views.text.style import Style, clipped

_GAP = "  "
_NARROWEST_FLOW = 26
_COMFORTABLE_FLOW = 34
_COMFORTABLE_LABEL = 46
_WIDEST_LABEL = 0.46
_TITLES = Cells(
    name="", flow=["in → out"], ops="ops", params="params", time="time", source="source"
)

# Pieces of text, each with its looks.
_Pieces = list[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what stands before it, what it says, and what stands before lines under it."""

    lead: str
    cells: Cells
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
    widths = _widths(lines, style)
    titles = _row(Line("", _TITLES), widths)
    rows: list[_Pieces] = [[("".join(text for text, _ in titles).rstrip(), ("dim",))]]
    for line in lines:
        rows += _failure(line) if line.cells.detail else [_row(line, widths)]
    return [_painted(row, style) for row in rows]


def _widths(lines: list[Line], style: Style) -> _Widths:
    width = style.width
    cells = [line.cells for line in lines if not line.cells.detail]
    ops = _width([c.ops for c in cells], _TITLES.ops)
    params = _width([c.params for c in cells], _TITLES.params)
    time = _width([c.time for c in cells], _TITLES.time)
    source = _width([c.source for c in cells], _TITLES.source)
    label = min(max(_label_widths(lines), default=0), int(width * _WIDEST_LABEL))
    numbers = sum(len(_GAP) + size for size in (ops, params, time) if size)
    flow = width - label - numbers - len(_GAP)
    if not style.terminal:
        # Nothing gets lost beyond the edge: the source may stand there.
        flow = max(flow - source - len(_GAP), _COMFORTABLE_FLOW)
    elif flow - source - len(_GAP) >= _NARROWEST_FLOW:
        flow -= source + len(_GAP)
    else:
        source = 0
    flow = max(flow, 12)
    used = max(len(_fitting(c.flow, flow)) for c in (*cells, _TITLES))
    return _Widths(label, min(flow, used), ops, params, time, source)


def _width(texts: list[str], title: str) -> int:
    """The width of a column, 0 if nothing stands in it."""
    widest = max(map(len, texts), default=0)
    return max(widest, len(title)) if widest else 0


def _fitting(forms: list[str], width: int) -> str:
    """The longest form that fits, cut if none does."""
    return next((form for form in forms if len(form) <= width), clipped(forms[-1], width))


def _label_widths(lines: list[Line]) -> Iterator[int]:
    for line in lines:
        cells = line.cells
        if cells.detail:
            continue
        width = len(line.lead) + len(_named(cells)) + len(cells.cls) + 2 * bool(cells.error)
        width += 2 * bool(cells.cls)
        # Lists of ops have shorter forms; names do not.
        yield width if cells.name else min(width, _COMFORTABLE_LABEL)


def _named(cells: Cells) -> str:
    return " ".join(part for part in (cells.name, cells.mark) if part)


def _label(line: Line, width: int) -> _Pieces:
    cells = line.cells
    room = max(width - len(line.lead), 8)
    pieces: _Pieces = [(line.lead, ("dim",))]
    if cells.error:
        pieces.append(("✗ ", ("red", "bold")))
        room -= 2
    named = _named(cells)
    name = clipped(cells.name, room)
    pieces.append((name, ("bold",)))
    if cells.mark:
        pieces.append((f" {cells.mark}" if name else cells.mark, ("cyan",)))
    if cells.cls:
        gap = "  " if named else cells.bullet
        left = max(room - len(named) - len(gap), 6)
        pieces.append((gap + _fitting([cells.cls, *cells.shorter], left), ()))
    used = sum(len(text) for text, _ in pieces)
    pieces.append((" " * max(width - used, 0), ()))
    return pieces


def _row(line: Line, widths: _Widths) -> _Pieces:
    cells = line.cells
    pieces = _label(line, widths.label)
    over = sum(len(text) for text, _ in pieces) - widths.label
    flow = _fitting(cells.flow, widths.flow)
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
