"""Sealing a part: a live Arrow stream becomes Parquet, aside and then in one move."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clew.store.live import BrokenOff
from clew.store.parts import live_rows
from clew.store.schema import SCHEMAS

# Rows read together: enough to be quick, few enough that one value's data is little to read.
_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 8 << 20


def seal_part(live: Path, table: str) -> tuple[int, list[Exception]]:
    """Write a live part as Parquet; how many rows, and what of it could not be read.

    A stream that breaks off is sealed up to there. One with damage before its end is kept beside
    the sealed part, under a name that no reader takes for a part.
    """
    target = live.with_suffix(".parquet")
    aside = live.with_suffix(".tmp")
    paths = [
        f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in SCHEMAS[table]
    ]
    damage: list[Exception] = []
    rows = 0
    try:
        with pq.ParquetWriter(
            aside,
            SCHEMAS[table],
            compression="zstd",
            compression_level=1,
            use_dictionary=[path for path in paths if path != "data"],
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            for group in _groups(live, table, damage):
                writer.write_table(group, row_group_size=max(len(group), 1))
                rows += len(group)
        os.replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if any(not isinstance(d, BrokenOff) for d in damage):
        live.rename(live.with_name(f"{live.name}.damaged"))
    else:
        live.unlink()
    return rows, damage


def _groups(live: Path, table: str, damage: list[Exception]) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    size = rows = 0
    for _, batch in _readable(live, table, damage):
        pending.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size >= _GROUP_BYTES or rows >= _GROUP_ROWS:
            yield _joined(pending, table)
            pending, size, rows = [], 0, 0
    if pending:
        yield _joined(pending, table)


def _readable(live: Path, table: str, damage: list[Exception]) -> Iterator[tuple[int, pa.Table]]:
    for start, rows in live_rows(live, table, SCHEMAS[table].names):
        if isinstance(rows, Exception):
            damage.append(rows)
        else:
            yield start, rows


def _joined(tables: list[pa.Table], table: str) -> pa.Table:
    joined = pa.concat_tables(tables).combine_chunks()
    return without_superseded(joined) if table == "events" else joined


def without_superseded(events: pa.Table) -> pa.Table:
    """Events without the rows of calls that were open when written and have ended since."""
    ids = events["id"].to_numpy()
    _, last = np.unique(ids[::-1], return_index=True)
    if len(last) == len(ids):
        return events
    return events.take(pa.array(np.sort(len(ids) - 1 - last)))
