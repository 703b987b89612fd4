"""Parquet: the event table of all ranks as one compact file, for DuckDB, Polars, pandas, Spark.

The columns that a trace's own `events-*.parquet` files spell out in words; each event once, in
order of rank and id. Rows of internal tables are left out: they mean nothing without the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clew.events.columns import IN
from clew.events.model import short_dtype
from clew.store.reader import Reader
from clew.store.schema import EVENTS
from clew.views.export.formats import Contents

_INTERNAL = ("subject", "place", "number", "template", "values")
SCHEMA = pa.schema([field for field in EVENTS if field.name not in _INTERNAL])
_ROWS = 50_000


def write(readers: list[Reader], target: Path) -> Contents:
    """Write the event table."""
    environment = json.dumps(dict(readers[0].columns.environment))
    schema = SCHEMA.with_metadata({"clew.environment": environment})
    with pq.ParquetWriter(target, schema, compression="zstd") as file:
        for reader in readers:
            for table in _tables(reader, schema):
                file.write_table(table)
    return Contents(sum(map(len, readers)), "event")


def _tables(reader: Reader, schema: pa.Schema) -> Iterator[pa.Table]:
    for start in range(0, len(reader), _ROWS):
        rows = [_row(reader, row) for row in range(start, min(start + _ROWS, len(reader)))]
        yield pa.Table.from_pylist(rows, schema=schema)


def _row(reader: Reader, row: int) -> dict[str, Any]:
    event = reader.event(row)
    source = event.source
    end = reader.end(row)
    found: dict[str, Any] = {
        name: getattr(event, name)
        for name in ("id", "parent", "kind", "name", "address", "module", "step", "phase", "rank",
                     "thread", "error")
    }  # fmt: skip
    found["call"] = event.call if event.kind in ("module", "op") else None
    found["start"] = int(reader.columns.start[row])
    found["end"] = end if end >= 0 else None
    if source is not None:
        found["file"], found["line"] = source.file, source.line
        found["function"] = source.function
    leaves = reader.leaf_values(row)
    outputs = [number for leaf, number in leaves if leaf.role != IN]
    found["inputs"] = [_text(reader, number) for leaf, number in leaves if leaf.role == IN]
    found["outputs"] = [_text(reader, number) for number in outputs]
    found.update(_stats(reader, outputs))
    return found


def _text(reader: Reader, number: int) -> str:
    meta = reader.columns.metas[int(reader.columns.meta[number])]
    shape = "?" if meta.shape is None else ",".join(map(str, meta.shape))
    return f"{short_dtype(meta.dtype)}[{shape}]"


def _stats(reader: Reader, numbers: list[int]) -> dict[str, Any]:
    """Statistics over all outputs, as far as they were taken."""
    kept = reader.columns.kept
    found = [reader.value(number).stats for number in numbers if number in kept]
    stats = [s for s in found if s is not None]
    if not stats:
        return {}
    return {
        "nan": sum(s.nan for s in stats),
        "inf": sum(s.inf for s in stats),
        "min": min((s.min for s in stats if s.min is not None), default=None),
        "max": max((s.max for s in stats if s.max is not None), default=None),
    }
