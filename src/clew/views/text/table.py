"""The table: one row per event, as columns of plain data or as text.

In comes a `Reader`, out comes a `TableView`: `columns()` for pandas and the like, `str()` to read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import Ints, Place
from clew.events.records import BACKWARD, KINDS, OP, PHASES
from clew.store.reader import Reader
from clew.views.text.calls import CallTexts
from clew.views.text.named import NAMED, named_text
from clew.views.text.places import short_place
from clew.views.text.style import Style, clipped, counted, short_op, style_for, time_text

_ROWS = 40
_TAIL = 5
_GAP = "  "
# Columns of the text with the most room each may take; the last takes what is left.
_WIDTHS = {
    "id": 8, "step": 5, "phase": 9, "kind": 8, "name": 30, "module": 34, "source": 30,
    "time": 8, "call": 1000,
}  # fmt: skip


class TableView:
    """The events of a trace as rows; `str()` is the text, `columns()` the data."""

    def __init__(self, reader: Reader, rows: int) -> None:
        self._reader = reader
        self._rows = rows

    def __str__(self) -> str:
        return self.text(style_for())

    def __len__(self) -> int:
        return len(self._reader)

    def __repr__(self) -> str:
        return f"<TableView of {counted(len(self), 'event')}; print() shows it>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": self.text(Style())}

    def head(self, rows: int) -> TableView:
        """The same table, showing at most so many rows."""
        return TableView(self._reader, rows)

    def to_dict(self) -> dict[str, Any]:
        """The columns."""
        return self.columns()

    def columns(self) -> dict[str, list[Any]]:
        """Every event, one list per column."""
        return _Table(self._reader).columns()

    def text(self, style: Style) -> str:
        """The text in a given style."""
        total = len(self)
        shown = list(range(total))
        left_out = total - self._rows
        if left_out > 0:
            # The end is where a crash is.
            tail = min(_TAIL, self._rows // 4)
            shown = [*range(self._rows - tail), *range(total - tail, total)]
        lines = _Table(self._reader).text(shown, style)
        if left_out > 0:
            note = (
                f"… {counted(left_out, 'row')} left out; t.table().head({total}) shows all, "
                "t.to_pandas() has all columns"
            )
            at = 1 + self._rows - min(_TAIL, self._rows // 4)
            lines[at:at] = style.wrapped("", note)
        return style.finish("\n".join(lines))


def table_view(reader: Reader, *, rows: int = _ROWS) -> TableView:
    """The events of a trace as a table; its text shows at most so many rows."""
    return TableView(reader, rows)


class _Table:
    """Makes the columns of one trace."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._texts = CallTexts(reader)
        c = reader.columns
        forward = reader.forward_row
        # An op of the backward pass has the source of its forward op.
        self._place: Ints = c.place[np.where(forward >= 0, forward, np.arange(len(c.id)))]
        self._sources: dict[int, int] = {}

    def columns(self) -> dict[str, list[Any]]:
        reader = self._reader
        c = reader.columns
        rows = range(len(reader))
        clock = c.environment.get("clock", 0)
        places = [self._source(place) for place in self._place.tolist()]
        named = [c.places[place] if place >= 0 else None for place in places]
        return {
            "id": c.id.tolist(),
            "parent": [parent if parent >= 0 else None for parent in c.parent.tolist()],
            "kind": [KINDS[kind] for kind in c.kind.tolist()],
            "name": [reader.name(row) for row in rows],
            "module": self._modules(),
            "call": reader.call_index.tolist(),
            "step": c.step.tolist(),
            "phase": [PHASES[phase] for phase in reader.phase.tolist()],
            "rank": [c.rank] * len(reader),
            "thread": [self._thread(thread) for thread in reader.thread.tolist()],
            "file": [None if place is None else place.file for place in named],
            "line": [None if place is None else place.line for place in named],
            "function": [None if place is None else place.function for place in named],
            "inputs": [self._texts.inputs(row) for row in rows],
            "outputs": [self._texts.outputs(row) for row in rows],
            "start": ((c.start - clock) / 1e9).tolist(),
            "duration": [self._duration(row) for row in rows],
            "error": [c.errors[error] if error >= 0 else None for error in c.error.tolist()],
        }

    def text(self, rows: list[int], style: Style) -> list[str]:
        """Some rows as lines, titles first."""
        cells = [self._cells(row) for row in rows]
        names = [n for n in _WIDTHS if any(cell[n] for cell in cells)]
        widths = {
            name: min(max([len(name), *(len(cell[name]) for cell in cells)]), _WIDTHS[name])
            for name in names
        }
        lines = [_joined({name: name for name in names}, widths, style, "dim")]
        for row, cell in zip(rows, cells, strict=True):
            failed = self._reader.columns.error[row] >= 0
            lines.append(_joined(cell, widths, style, "red" if failed else ""))
        return lines

    def _cells(self, row: int) -> dict[str, str]:
        c = self._reader.columns
        kind = int(c.kind[row])
        place = self._source(int(self._place[row]))
        seconds = self._duration(row)
        error = int(c.error[row])
        name = self._reader.name(row)
        inputs, outputs = self._texts.inputs(row), self._texts.outputs(row)
        if kind in NAMED:
            call = named_text(self._reader, self._texts, row)
        else:
            call = f"{inputs} -> {outputs}" if outputs else inputs
        message = f"✗ {c.errors[error].splitlines()[0]}" if error >= 0 else ""
        source = c.places[place] if place >= 0 else None
        module = self._reader.module_path(row)
        return {
            "id": str(int(c.id[row])),
            "step": str(int(c.step[row])) if c.step[-1] else "",
            "phase": PHASES[int(self._reader.phase[row])],
            "kind": KINDS[kind],
            "name": short_op(name) if kind == OP else name,
            "module": ("(root)" if module == "" else module) or "",
            "source": "" if source is None else short_place(source),
            "time": "" if seconds is None else time_text(seconds),
            "call": "  ".join(part for part in (message, call) if part),
        }

    def _modules(self) -> list[str | None]:
        """For each event the path of the module it ran in."""
        c = self._reader.columns
        paths: list[str | None] = []
        phase = self._reader.phase.tolist()
        subject = c.subject.tolist()
        for row, call in enumerate(self._reader.module_row.tolist()):
            if call >= 0:
                paths.append(c.modules[subject[call]].path)
            else:
                paths.append(self._reader.module_path(row) if phase[row] == BACKWARD else None)
        return paths

    def _source(self, place: int) -> int:
        """The innermost place of the user's own code, else the innermost there is, else -1."""
        found = self._sources.get(place)
        if found is None:
            found = self._sources[place] = _innermost(self._reader.columns.places, place)
        return found

    def _duration(self, row: int) -> float | None:
        end = self._reader.end(row)
        return (end - int(self._reader.columns.start[row])) / 1e9 if end >= 0 else None

    def _thread(self, thread: int) -> str:
        threads = self._reader.columns.threads
        return threads[thread] if thread < len(threads) else str(thread)


def _innermost(places: list[Place], place: int) -> int:
    first = -1
    while place >= 0:
        if places[place].line > 0:
            if not places[place].library:
                return place
            first = place if first < 0 else first
        place = places[place].parent
    return first


def _joined(cell: dict[str, str], widths: dict[str, int], style: Style, look: str) -> str:
    texts = []
    for name, width in widths.items():
        text = clipped(cell[name], width)
        texts.append(text.rjust(width) if name in ("id", "step", "time") else text.ljust(width))
    line = _GAP.join(texts).rstrip()
    line = clipped(line, style.width) if style.bounded else line
    return style.paint(line, look) if look else line
