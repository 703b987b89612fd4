"""Write one rank of a trace at once, when all of it is known and no one reads the folder yet.

A kill need not leave a readable trace, so each part is Parquet from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from clew.events.columns import Columns
from clew.store.format.arrow import folded_batch
from clew.store.format.schema import SCHEMAS, footer_name, part_name
from clew.store.write.seal_part import copy_footer, group_rows, parquet_options
from clew.store.write.trace_writer import Rows, TraceFiles
from clew.store.write.value_rows import kept_rows

# Values written together, each of which may have data in its row; and the rows of one part.
_SLICE = 1 << 14
_PART_ROWS = 200_000
_PART_BYTES = 256 << 20

# Returns the event table rows of one rank, a slice at a time.
EventRows: TypeAlias = Callable[[Columns], Iterator[dict[str, Any]]]


def write_rank(folder: Path, columns: Columns, event_rows: EventRows) -> None:
    """Write a rank's tables, values and events into its folder."""
    files = TraceFiles(folder, SealedTable)
    try:
        files.write_tables(columns)
        for start in range(0, len(columns.meta), _SLICE):
            end = min(start + _SLICE, len(columns.meta))
            kept = kept_rows(columns.kept, range(start, end))
            files.write_values(columns, slice(start, end), kept)
        for rows in event_rows(columns):
            files.write_events(rows)
        files.seal()
    finally:
        files.close()


class SealedTable:
    """One table of a trace, its parts Parquet from the beginning."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self.index = 0
        self._rows = self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Rows, to_come_again: int = 0) -> None:
        """Append rows; no call is open, so none come again."""
        assert not to_come_again
        rows = pa.Table.from_batches([folded_batch(columns, SCHEMAS[self._table])])
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path(), rows.schema, **parquet_options(self._table)
            )
        self._writer.write_table(rows, row_group_size=group_rows(rows))
        self._rows += len(rows)
        self._bytes += rows.nbytes
        if self._rows >= _PART_ROWS or self._bytes >= _PART_BYTES:
            self.seal()

    def seal(self) -> None:
        """Finish the part; the next rows begin another."""
        if self._writer is not None:
            self.close()
            path = self._path()
            copy_footer(path, path.with_name(footer_name(path.stem)))
            self.index += 1
            self._rows = self._bytes = 0

    def roll(self) -> None:
        """Finish the part: no call is open."""
        self.seal()

    def close(self) -> None:
        """Close the part without sealing it."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _path(self) -> Path:
        return self._folder / part_name(self._table, self.index, live=False)
