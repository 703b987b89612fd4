"""CSV: the table of `Trace.table()`, of all ranks, with a header; `.gz` compresses it."""

from __future__ import annotations

import csv
from pathlib import Path

from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.text.table_view import table_view


def write(run: Run, target: Path) -> Contents:
    """Write one row per event of every rank."""
    with text_file(target) as file:
        lines = csv.writer(file, lineterminator="\n")
        columns = table_view(run).columns()
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))
    return Contents(len(run), "event")
