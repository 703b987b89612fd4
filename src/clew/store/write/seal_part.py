"""Seal a part: turn a live Arrow stream into Parquet, in a temporary file that is then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.events.columns import Ints
from clew.program_errors import pass_on
from clew.store.format.live_stream import BrokenOff
from clew.store.format.schema import SCHEMAS, UNFOLDED, footer_name
from clew.store.read.table_parts import Piece, live_rows, sealed_rows

# Rows per group: enough to be quick, few enough that reading one value's data is cheap and that a
# file cut short loses little.
_GROUP_ROWS = 1 << 14
_GROUP_BYTES = 16 << 20
_GROUP_DATA = 1 << 20
# Columns in which hardly any value repeats: dictionary encoding would take more time and room.
_UNLIKE = frozenset(
    {"id", "start", "end", "call", "number", "address", "values", "value", "producer", "storage",
     "min", "max", "mean", "std", "norm", "digest", "offset", "checksum", UNFOLDED}
)  # fmt: skip
# Columns of events that queries filter by; their statistics say whether to read a group.
_QUERIED = (
    "id", "kind", "name", "module", "call", "step", "phase", "rank", "start", "end", "error",
    "min", "max", "nan", "inf",
)  # fmt: skip


def seal_part(
    path: Path, table: str, moved: pa.RecordBatch | pa.Table | None = None
) -> tuple[int, list[Exception]]:
    """Write a live part, or one that is cut short, as Parquet; return its rows and what was lost.

    Of each event only the newest row is taken, and none if a later part has one, among `moved`. A
    stream that breaks off is sealed up to there. A file with damage before its end is kept beside
    the sealed part, under a name that no reader takes for a part.
    """
    target, aside = path.with_suffix(".parquet"), path.with_suffix(".tmp")
    footer = path.with_name(footer_name(path.stem))
    read = live_rows if path.suffix == ".arrows" else sealed_rows
    damage: list[Exception] = []
    try:
        pieces = read(path, table, SCHEMAS[table].names)
        if table == "events":
            pieces = _newest(pieces, read(path, table, ["id"]), moved)
        rows = _write(aside, table, pieces, damage)
        copy_footer(aside, aside.with_suffix(".footer.tmp"))
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
    except OSError as odd:
        pass_on(odd)
        # The file system has no links.
        os.rename(path, aside)


def parquet_options(table: str) -> dict[str, Any]:
    """Return the options with which the parts of a table are written."""
    paths = {
        f.name: f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name
        for f in SCHEMAS[table]
    }
    return {
        # Numbers hardly compress, and uncompressed data of one value is read without its
        # neighbours.
        "compression": {p: "none" if p == UNFOLDED else "zstd" for p in paths.values()},
        "compression_level": {path: 1 for path in paths.values() if path != UNFOLDED},
        "use_dictionary": [path for name, path in paths.items() if name not in _UNLIKE],
        "write_page_checksum": True,
        # The other tables are always read whole.
        "write_statistics": list(_QUERIED) if table == "events" else False,
        "store_schema": False,
    }


def group_rows(rows: pa.Table) -> int:
    """Return how many rows to read together."""
    data = rows[UNFOLDED].nbytes if UNFOLDED in rows.column_names else 0
    share = min(_GROUP_BYTES / max(rows.nbytes, 1), _GROUP_DATA / max(data, 1))
    return max(min(_GROUP_ROWS, int(len(rows) * share)), 1)


def copy_footer(part: Path, target: Path) -> None:
    """Copy a part's footer: without it nothing can be found in a file that has lost its end."""
    pq.read_metadata(part).write_metadata_file(target)


def _write(target: Path, table: str, pieces: Iterator[Piece], damage: list[Exception]) -> int:
    rows = 0
    with pq.ParquetWriter(target, SCHEMAS[table], **parquet_options(table)) as writer:
        for group in _groups(pieces, damage):
            writer.write_table(group, row_group_size=group_rows(group))
            rows += len(group)
    return rows


def _groups(pieces: Iterator[Piece], damage: list[Exception]) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    size = rows = 0
    for _, piece in pieces:
        if isinstance(piece, Exception):
            damage.append(piece)
            continue
        pending.append(piece)
        size += piece.get_total_buffer_size()
        rows += piece.num_rows
        if size >= _GROUP_BYTES or rows >= _GROUP_ROWS:
            yield pa.concat_tables(pending).combine_chunks()
            pending, size, rows = [], 0, 0
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _newest(
    pieces: Iterator[Piece], ids: Iterator[Piece], moved: pa.RecordBatch | pa.Table | None
) -> Iterator[Piece]:
    """Yield events without rows of open calls that were written again later."""
    whole = [(start, _ints(piece)) for start, piece in ids if not isinstance(piece, Exception)]
    every = np.concatenate([np.zeros(0, dtype=np.int64), *(numbers for _, numbers in whole)])
    _, last = np.unique(every[::-1], return_index=True)
    keep = np.zeros(len(every), dtype=bool)
    keep[len(every) - 1 - last] = True
    if moved is not None:
        keep &= ~np.isin(every, _ints(moved))
    ends = np.cumsum([len(numbers) for _, numbers in whole]).tolist()
    wanted = {
        start: keep[end - len(numbers) : end]
        for (start, numbers), end in zip(whole, ends, strict=True)
    }
    for start, piece in pieces:
        if isinstance(piece, Exception) or start not in wanted or wanted[start].all():
            yield start, piece
        else:
            yield start, piece.filter(pa.array(wanted[start]))


def _ints(rows: pa.RecordBatch | pa.Table) -> Ints:
    column = pc.fill_null(rows.column("id"), -1)
    ids: Ints = np.asarray(column.to_numpy(zero_copy_only=False))
    return ids
