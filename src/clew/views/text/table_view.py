"""The table: one row per event, as columns of plain data or as text.

Input: a `Run`. Output: a `TableView`: `columns()` for pandas and the like, `str()` to read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import Coded, CodedLists, CountedTexts
from clew.events.notebook_port import Shown
from clew.events.vocabulary import KINDS, OF_OPS, PHASES
from clew.plain_text import first_line, plain
from clew.run.run import Run
from clew.views.text.call_texts import CallTexts
from clew.views.text.code_places import short_place
from clew.views.text.named_texts import NAMED, named_text
from clew.views.text.style import Style, clipped, counted, style_for, time_text

_ROWS = 40
_TAIL = 5
_GAP = "  "
# Columns of the text with the most room each may take; the last takes the rest.
_WIDTHS = {
    "rank": 5, "id": 8, "step": 5, "phase": 9, "kind": 8, "name": 30, "module": 34, "source": 30,
    "time": 10, "call": 1000,
}  # fmt: skip


_COLUMNS = (
    "id", "parent", "kind", "name", "address", "module", "call", "step", "phase", "rank", "thread",
    "file", "line", "function", "inputs", "outputs", "start", "duration", "error", "min", "max",
    "nan", "inf",
)  # fmt: skip
# Columns of numbers in which a negative number means none.
_MAY_MISS = frozenset({"parent", "call", "line", "nan", "inf"})


class TableView(Shown):
    """The events of a trace as rows; `str()` is the text, `columns()` the data."""

    def __init__(self, run: Run, rows: int) -> None:
        self._run = run
        self._rows = rows

    def __str__(self) -> str:
        return self.text(style_for())

    def __len__(self) -> int:
        return len(self._run)

    def __repr__(self) -> str:
        return f"<TableView of {counted(len(self), 'event')}; print() shows it>"

    def head(self, rows: int) -> TableView:
        """Return the same table, showing at most so many rows."""
        return TableView(self._run, rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as plain data, with the unit in the name of those that have one."""
        units = {"start": "start_seconds", "duration": "duration_seconds"}
        return {units.get(name, name): column for name, column in self.columns().items()}

    def columns(self) -> dict[str, list[Any]]:
        """Return every event of all ranks, one list per column.

        `start` and `duration` are seconds; `min`, `max`, `nan` and `inf` are over all results of an
        event. None means that there is no such fact, or that it was not recorded.
        """
        return _Table(self._run).columns()

    def cells(self) -> tuple[list[str], list[list[str]], int]:
        """Return what the text shows: titles, rows of short texts, and how many are left out."""
        names, cells = _Table(self._run).cells(self._shown())
        return names, [[cell[name] for name in names] for cell in cells], self._left_out

    @property
    def _left_out(self) -> int:
        return max(len(self) - self._rows, 0)

    @property
    def _tail(self) -> int:
        # A crash is at the end.
        return min(_TAIL, self._rows // 4) if self._left_out else 0

    def _shown(self) -> list[int]:
        total, tail = len(self), self._tail
        return [*range(min(self._rows, total) - tail), *range(total - tail, total)]

    def text(self, style: Style) -> str:
        """Return the text in a given style."""
        lines = _Table(self._run).text(self._shown(), style)
        if self._left_out:
            note = (
                f"… {counted(self._left_out, 'row')} left out; t.table().head({len(self)}) shows "
                "all, t.to_pandas() has all columns"
            )
            at = 1 + self._rows - self._tail
            lines[at:at] = style.wrapped("", note)
        return style.finish("\n".join(lines))


def table_view(run: Run, *, rows: int = _ROWS) -> TableView:
    """Return the events of a trace as a table; its text shows at most so many rows."""
    return TableView(run, rows)


class _Table:
    """Makes the columns of one trace."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._texts = CallTexts(run)

    def columns(self) -> dict[str, list[Any]]:
        run = self._run
        rows = range(len(run))
        facts = run.table()
        found: dict[str, list[object]] = {}
        for name in _COLUMNS:
            if name in ("inputs", "outputs"):
                texts = self._texts.inputs if name == "inputs" else self._texts.outputs
                found[name] = [texts(row) for row in rows]
            elif name == "start":
                found[name] = (run.start / 1e9).tolist()
            elif name == "duration":
                found[name] = [run.seconds(row) for row in rows]
            else:
                found[name] = _plain(facts[name], name in _MAY_MISS)
        return found

    def cells(self, rows: list[int]) -> tuple[list[str], list[dict[str, str]]]:
        """Return some rows as texts by column, and the columns in which there is any."""
        cells = [self._cells(row) for row in rows]
        return [n for n in _WIDTHS if any(cell[n] for cell in cells)], cells

    def text(self, rows: list[int], style: Style) -> list[str]:
        """Return some rows as lines, titles first."""
        names, cells = self.cells(rows)
        widths = {
            name: min(max([len(name), *(len(cell[name]) for cell in cells)]), _WIDTHS[name])
            for name in names
        }
        lines = [_joined({name: name for name in names}, widths, style, "dim")]
        for row, cell in zip(rows, cells, strict=True):
            failed = self._run.columns.error[row] >= 0
            lines.append(_joined(cell, widths, style, "red" if failed else ""))
        return lines

    def _cells(self, row: int) -> dict[str, str]:
        c = self._run.columns
        kind = int(c.kind[row])
        seconds = self._run.seconds(row)
        error = int(c.error[row])
        inputs, outputs = self._texts.inputs(row), self._texts.outputs(row)
        if kind in NAMED:
            call = named_text(self._run, self._texts, row)
        else:
            call = f"{inputs} -> {outputs}" if outputs else inputs
        message = f"✗ {first_line(c.errors[error])}" if error >= 0 else ""
        source = self._run.source_place(row)
        module = self._run.module_path(row)
        return {
            "id": str(int(c.id[row])),
            "rank": str(int(self._run.rank[row])) if len(self._run.ranks) > 1 else "",
            "step": str(int(self._run.step[row])) if len(self._run.steps) > 1 else "",
            "phase": PHASES[int(self._run.phase[row])],
            "kind": KINDS[kind],
            "name": self._texts.short_op(row) if kind in OF_OPS else plain(self._run.name(row)),
            "module": "(root)" if module == "" else plain(module or ""),
            "source": "" if source is None else short_place(source),
            "time": "" if seconds is None else time_text(seconds),
            "call": "  ".join(part for part in (message, call) if part),
        }


def _plain(column: Any, may_miss: bool) -> list[Any]:
    """Return a column as a list of plain data, None for what is missing."""
    if isinstance(column, (Coded, CodedLists, CountedTexts)):
        return list(column.listed())
    missing = np.isnan(column) if column.dtype.kind == "f" else may_miss & (column < 0)
    return [None if gone else item for item, gone in zip(column.tolist(), missing, strict=True)]


def _joined(cell: dict[str, str], widths: dict[str, int], style: Style, look: str) -> str:
    texts = []
    for name, width in widths.items():
        text = clipped(cell[name], width)
        texts.append(
            text.rjust(width) if name in ("rank", "id", "step", "time") else text.ljust(width)
        )
    line = _GAP.join(texts).rstrip()
    line = clipped(line, style.width) if style.bounded else line
    return style.paint(line, look) if look else line
