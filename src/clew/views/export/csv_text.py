"""CSV: the table of `Trace.table()`, of all ranks, with a header; `.gz` compresses it."""

from __future__ import annotations

import csv
from pathlib import Path

from clew.store.reader import Reader
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.text.table import table_view


def write(readers: list[Reader], target: Path) -> Contents:
    """Write one row per event of every rank."""
    count = 0
    with text_file(target) as file:
        lines = csv.writer(file, lineterminator="\n")
        for reader in readers:
            columns = table_view(reader).columns()
            if reader is readers[0]:
                lines.writerow(columns)
            for row in zip(*columns.values(), strict=True):
                lines.writerow(row)
                count += 1
    return Contents(count, "event")
