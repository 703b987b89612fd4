"""Lines of the tree laid out in columns that fit the width.

Input: `TreeLine`s of cells. Output: strings. Names and shapes get the room that numbers leave. If
the width is limited and too small, source, ops, parameters and values are left out, in that order,
and the line of titles says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clew.views.text.cells import Cells
from clew.views.text.style import Style, clipped

_GAP = "  "
_NARROWEST_FLOW = 16
_COMFORTABLE_FLOW = 34
_COMFORTABLE_LABEL = 46
_WIDEST_LABEL = 0.46
_SHORTEST = 4
_CUT = " …"
_TITLES = Cells(
    name="", flow=["in → out"], value="value", ops="ops", params="params", time="time",
    source="source",
)  # fmt: skip
# Columns after the shapes, in order; of the dispensable ones the last is left out first.
_COLUMNS = ("value", "ops", "params", "time", "source")
_DISPENSABLE = ("value", "params", "ops", "source")

# Pieces of text, each with its looks.
_Pieces = list[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One line: its lead, and either cells or, across the columns, words."""

    lead: str
    cells: Cells
    words: str = ""
    looks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Widths:
    """Widths of the names, of the shapes, and of each further column that is shown."""

    label: int
    flow: int
    others: dict[str, int]
    left_out: list[str]


def laid_out(lines: list[TreeLine], style: Style) -> list[str]:
    """Write the lines, a line of column titles first."""
    titles = TreeLine("", _TITLES)
    if not style.unicode:
        titles, *lines = [_in_ascii(line, style) for line in (titles, *lines)]
    widths = _widths(lines, titles.cells, style)
    if widths.left_out:
        titles = TreeLine("", replace(titles.cells, cls=f"… {', '.join(widths.left_out)}"))
    title = "".join(text for text, _ in _row(titles, widths))
    rows: list[_Pieces] = [[(title.rstrip(), ("dim",))]]
    for line in lines:
        words = [(line.lead, ("dim",)), (line.words, line.looks)]
        rows.append(words if line.words else _row(line, widths))
    return [_painted(row, style) for row in rows]


def _in_ascii(line: TreeLine, style: Style) -> TreeLine:
    """Return a line in ASCII, before its widths are measured."""
    said = style.finish
    c = line.cells
    cells = replace(
        c, name=said(c.name), bullet=said(c.bullet), cls=said(c.cls), mark=said(c.mark),
        value=said(c.value), alarm=said(c.alarm), ops=said(c.ops), params=said(c.params),
        time=said(c.time), source=said(c.source), flow=[said(form) for form in c.flow],
        shorter=[said(form) for form in c.shorter],
    )  # fmt: skip
    return TreeLine(said(line.lead), cells, said(line.words), line.looks)


def _widths(lines: list[TreeLine], titles: Cells, style: Style) -> _Widths:
    cells = [line.cells for line in lines if not line.words]
    sizes = {column: _width(cells, titles, column) for column in _COLUMNS}
    others = {column: size for column, size in sizes.items() if size}
    label = max(_label_widths(lines), default=0)
    label = min(label, int(style.width * _WIDEST_LABEL)) if style.bounded else label
    flow = _left(style.width, label, others)
    shortest = max((len(c.flow[-1]) for c in cells), default=0)
    left_out = []
    if style.bounded:
        needed = min(shortest, _NARROWEST_FLOW)
        for column in reversed(_DISPENSABLE):
            comfort = _COMFORTABLE_FLOW if column == "source" else needed
            if flow < comfort and others.pop(column, 0):
                left_out.append(column)
                flow = _left(style.width, label, others)
        label -= max(needed - flow, 0)
        flow = max(flow, needed)
    else:
        # The width is not limited, so nothing is cut.
        flow = max(flow, shortest, _COMFORTABLE_FLOW)
    used = max(len(_fitting(c.flow, flow)) for c in (*cells, titles))
    return _Widths(label, min(flow, used), others, left_out)


def _left(width: int, label: int, others: dict[str, int]) -> int:
    """Return the room that names and numbers leave for shapes."""
    return width - label - len(_GAP) - sum(len(_GAP) + size for size in others.values())


def _width(cells: list[Cells], titles: Cells, column: str) -> int:
    """Return the width of a column, 0 if it is empty."""
    widest = max((len(_cell(c, column)) for c in cells), default=0)
    return max(widest, len(_cell(titles, column))) if widest else 0


def _cell(cells: Cells, column: str) -> str:
    if column == "value":
        return " ".join(filter(None, (cells.value, cells.alarm)))
    text: str = getattr(cells, column)
    return text


def _fitting(forms: list[str], width: int) -> str:
    """Return the longest form that fits, cut if none does."""
    return next((form for form in forms if len(form) <= width), clipped(forms[-1], width))


def _label_widths(lines: list[TreeLine]) -> Iterator[int]:
    for line in lines:
        cells = line.cells
        if line.words:
            continue
        width = len(line.lead) + len(_named(cells)) + len(cells.cls) + 2 * cells.failed
        width += 2 * bool(cells.cls)
        if cells.elastic:
            shortest = len(line.lead) + 2 + len(cells.shorter[-1]) if cells.shorter else 0
            width = min(width, max(_COMFORTABLE_LABEL, shortest))
        yield width


def _named(cells: Cells) -> str:
    """Return a line's name and how often it ran."""
    return " ".join(part for part in (cells.name, cells.mark) if part)


def _label(line: TreeLine, width: int) -> _Pieces:
    """Write lead, name, mark and class in the room there is; the class is shortened first."""
    cells = line.cells
    pieces: _Pieces = [(line.lead, ("dim",))]
    if cells.failed:
        pieces.append(("✗ ", ("red", "bold")))
    room = width - sum(len(text) for text, _ in pieces)
    mark = f" {cells.mark}" if cells.mark else ""
    # If there is no room for a class, a mark shows that there is one.
    cut = _CUT if cells.name and cells.cls else ""
    name = clipped(cells.name, max(room - len(mark) - len(cut), _SHORTEST))
    pieces += [(name, ("bold",)), (mark, ("cyan",))]
    room -= len(name) + len(mark)
    gap = "  " if cells.name else cells.bullet
    least = min(len(cells.cls), _SHORTEST)
    if cells.cls and (room - len(gap) >= least or not cells.name):
        forms = [cells.cls, *cells.shorter]
        pieces.append((gap + _fitting(forms, max(room - len(gap), _SHORTEST)), ()))
    elif cut:
        pieces.append((cut, ()))
    used = sum(len(text) for text, _ in pieces)
    pieces.append((" " * max(width - used, 0), ()))
    return pieces


def _row(line: TreeLine, widths: _Widths) -> _Pieces:
    cells = line.cells
    pieces = _label(line, widths.label)
    over = sum(len(text) for text, _ in pieces) - widths.label
    flow = _fitting(cells.flow, widths.flow)
    pieces.append((_GAP + flow.ljust(max(widths.flow - max(over, 0), 0)), ()))
    for column, size in widths.others.items():
        text = _cell(cells, column)
        if column == "value":
            value = cells.value + " " * bool(cells.value and cells.alarm)
            pieces += [(_GAP + value, ()), (cells.alarm, ("red", "bold"))]
            pieces.append((" " * (size - len(text)), ()))
        elif column == "source":
            pieces.append((_GAP + text, ("dim",)))
        else:
            pieces.append((_GAP + text.rjust(size), ()))
    return pieces


def _painted(pieces: _Pieces, style: Style) -> str:
    """Join pieces, cut at the width, without trailing spaces."""
    while pieces and not pieces[-1][0].strip():
        pieces = pieces[:-1]
    if pieces:
        pieces = [*pieces[:-1], (pieces[-1][0].rstrip(), pieces[-1][1])]
    room = style.width if style.bounded else sum(len(text) for text, _ in pieces)
    texts = []
    for text, looks in pieces:
        shown = clipped(text, room)
        room -= len(shown)
        shown = shown if style.unicode else shown.replace("…", "~")
        texts.append(style.paint(shown, *looks) if looks else shown)
        if room <= 0:
            break
    return "".join(texts)
