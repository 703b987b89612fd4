"""CSV: the table of `Trace.table()`, of all ranks, with a header; `.gz` compresses it.

A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@` as a formula. So text that begins
with one gets a `'` in front, and characters that cannot be seen are escaped. Numbers stay numbers.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from clew.plain_text import plain_lines
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.text.table_view import table_view

# A sign that begins a formula, in its wide form too. Some spreadsheets divide cells at semicolons,
# and lines within a cell if the quotes are not where they expect them.
_FORMULA = re.compile(r"(^|;)((?:[^\S\n]|\")*)(?=[=+\-@＝＋－＠])", re.MULTILINE)


def write(run: Run, target: Path) -> Contents:
    """Write one row per event of every rank."""
    with text_file(target) as file:
        lines = csv.writer(file, lineterminator="\n")
        columns = table_view(run).columns()
        lines.writerow(columns)
        lines.writerows(zip(*map(_cells, columns.values()), strict=True))
    return Contents(len(run), "event")


def _cells(column: list[Any]) -> list[Any]:
    """Return a column of texts as cells that hold text, a column of numbers unchanged."""
    # Most events share their names, so there are few texts.
    changed = {text: cell(text) for text in set(column) if isinstance(text, str)}
    if all(text is shown for text, shown in changed.items()):
        return column
    return [changed.get(item, item) for item in column]


def cell(text: str) -> str:
    """Write a text so that a spreadsheet shows it.

    >>> cell("=1+1"), cell("layers.0"), cell("-1"), cell("a;@b")
    ("'=1+1", 'layers.0', '-1', "a;'@b")
    """
    text = plain_lines(text)
    if _is_number(text) or not _FORMULA.search(text):
        return text
    return _FORMULA.sub(r"\1\2'", text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
