"""Sealing a part: a live Arrow stream becomes Parquet, aside and then in one move."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clew.store.live import BrokenOff
from clew.store.parts import Piece, live_rows, sealed_rows
from clew.store.schema import SCHEMAS, footer_name

# Rows read together: enough to be quick, few enough that one value's data is little to read and
# that a file cut short loses little.
_GROUP_ROWS = 1 << 14
_GROUP_BYTES = 4 << 20


def seal_part(path: Path, table: str) -> tuple[int, list[Exception]]:
    """Write a live part, or one that is cut short, as Parquet; how many rows, and what was lost.

    A stream that breaks off is sealed up to there. What has damage before its end is kept beside
    the sealed part, under a name that no reader takes for a part.
    """
    target, aside = path.with_suffix(".parquet"), path.with_suffix(".tmp")
    footer = path.with_name(footer_name(path.stem))
    read = live_rows if path.suffix == ".arrows" else sealed_rows
    damage: list[Exception] = []
    try:
        rows = _write(aside, table, read(path, table, SCHEMAS[table].names), damage)
        # A copy of the footer: without it nothing in a file that has lost its end can be found.
        pq.read_metadata(aside).write_metadata_file(aside.with_suffix(".footer.tmp"))
        if any(not isinstance(d, BrokenOff) for d in damage):
            _keep(path)
        os.replace(aside.with_suffix(".footer.tmp"), footer)
        os.replace(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        aside.with_suffix(".footer.tmp").unlink(missing_ok=True)
        raise
    if path != target:
        path.unlink(missing_ok=True)
    return rows, damage


def _keep(path: Path) -> None:
    """Keep a damaged file under another name as well."""
    aside = path.with_name(f"{path.name}.damaged")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:
        # A file system without links.
        os.rename(path, aside)


def _write(target: Path, table: str, pieces: Iterator[Piece], damage: list[Exception]) -> int:
    paths = [
        f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in SCHEMAS[table]
    ]
    rows = 0
    with pq.ParquetWriter(
        target,
        SCHEMAS[table],
        compression="zstd",
        compression_level=1,
        use_dictionary=[path for path in paths if path != "data"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for group in _groups(pieces, table, damage):
            writer.write_table(group, row_group_size=max(len(group), 1))
            rows += len(group)
    return rows


def _groups(pieces: Iterator[Piece], table: str, damage: list[Exception]) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    size = rows = 0
    for _, piece in pieces:
        if isinstance(piece, Exception):
            damage.append(piece)
            continue
        pending.append(piece)
        size += piece.nbytes
        rows += piece.num_rows
        if size >= _GROUP_BYTES or rows >= _GROUP_ROWS:
            yield _joined(pending, table)
            pending, size, rows = [], 0, 0
    if pending:
        yield _joined(pending, table)


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
