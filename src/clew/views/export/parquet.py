"""Parquet: the event table of all ranks as one compact file, for DuckDB, Polars, pandas, Spark.

It has the readable columns of the trace's `events-*.parquet` files, each event once, in order of
rank and id. Columns that refer to internal tables are left out: they mean nothing without the
tables.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clew.run.run import Run
from clew.run.writing import rows_of_rank
from clew.store.format.arrow import record_batch
from clew.store.format.schema import EVENTS
from clew.views.export.formats import Contents

_INTERNAL = ("source", "subject", "place", "number", "template", "values")
SCHEMA = pa.schema([field for field in EVENTS if field.name not in _INTERNAL])


def write(run: Run, target: Path) -> Contents:
    """Write the event table."""
    schema = SCHEMA.with_metadata({"clew.environment": json.dumps(dict(run.environment))})
    with pq.ParquetWriter(target, schema, compression="zstd") as file:
        for columns, _ in run.parts:
            for rows in rows_of_rank(columns):
                file.write_batch(record_batch(rows, schema))
    return Contents(len(run), "event")
