"""Rows to write as Arrow: lists, NumPy arrays and coded texts become a record batch.

In come columns by name and a schema, out comes a batch. Numbers below 0 are null where the schema
of the event table says that a number may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clew.events.columns import Coded, CodedLists, Ints, NumberLists
from clew.store.format.schema import NULLABLE


def as_utf8(text: str) -> str:
    """Give a text as Arrow can hold it: half a surrogate pair becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def record_batch(columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Give rows as a record batch of a schema."""
    arrays = [_array(columns[f.name], f.type, f.name in NULLABLE) for f in schema]
    return pa.record_batch(arrays, schema=schema)


def _array(column: Any, kind: pa.DataType, nullable: bool) -> pa.Array:
    """Give a column as Arrow; of numbers those below 0 are null if they may be, NaN always."""
    if isinstance(column, Coded):
        return _coded(column.codes, column.texts, kind)
    if isinstance(column, CodedLists):
        return _lists(column.counts, _coded(column.codes, column.texts, kind.value_type))
    if isinstance(column, NumberLists):
        return _lists(column.counts, pa.array(column.numbers, kind.value_type))
    if isinstance(column, np.ndarray):
        missing = np.isnan(column) if column.dtype.kind == "f" else nullable & (column < 0)
        return pa.array(column, mask=missing).cast(kind)
    if column.count(None) == len(column):
        return pa.nulls(len(column), kind)
    try:
        return pa.array(column, type=kind)
    except UnicodeEncodeError:
        # Half a surrogate pair, as file names that are no UTF-8 have.
        return pa.array([None if text is None else as_utf8(text) for text in column], type=kind)


def _coded(codes: Ints, texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """Give texts by their codes, -1 as null."""
    indices = pa.array(codes, pa.int64(), mask=codes < 0)
    return _array(list(texts), kind, nullable=False).take(indices)


def _lists(counts: Ints, items: pa.Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items)
