"""Write one rank of a trace at once: all it has is known, and nobody reads the folder yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from clew.events.columns import Columns
from clew.store.write.trace_writer import TraceFiles

_SLICE = 1 << 14

# Gives the rows of the event table of one rank, a slice at a time.
EventRows: TypeAlias = Callable[[Columns], Iterator[dict[str, Any]]]


def write_rank(folder: Path, columns: Columns, event_rows: EventRows) -> None:
    """Write a rank's tables, values and events into its folder."""
    files = TraceFiles(folder)
    try:
        files.write_tables(columns, columns.sources.get)
        for start in range(0, len(columns.meta), _SLICE):
            numbers = range(start, min(start + _SLICE, len(columns.meta)))
            kept = {n: columns.kept[n] for n in numbers if n in columns.kept}
            files.write_values(columns, slice(start, start + _SLICE), kept)
        for rows in event_rows(columns):
            files.write_events(rows)
        files.seal()
    finally:
        files.close()
