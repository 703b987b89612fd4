"""Rows to write as Arrow: lists, NumPy arrays and coded texts become a record batch.

Input: columns by name and a schema. Output: a batch. Numbers below 0 are null if the schema of the
event table allows a number to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.events.columns import Coded, CodedLists, CountedTexts, Ints, NumberLists
from clew.store.format.schema import NULLABLE


def as_utf8(text: str) -> str:
    """Return a text as Arrow can hold it: half a surrogate pair becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def record_batch(columns: Mapping[str, object], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch of a schema."""
    arrays = [_array(columns[f.name], f.type, f.name in NULLABLE) for f in schema]
    return pa.record_batch(arrays, schema=schema)


def folded_batch(columns: Mapping[str, object], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch with dictionary-encoded texts: each text is stored once.

    In Parquet it reads the same as the batch of the plain schema, and is quicker to write.
    """
    arrays = [_array(columns[f.name], f.type, f.name in NULLABLE, folded=True) for f in schema]
    return pa.record_batch(arrays, names=schema.names)


def _array(column: Any, kind: pa.DataType, nullable: bool, folded: bool = False) -> pa.Array:
    """Return a column as Arrow; numbers below 0 are null if that is allowed, NaN always is."""
    coded = _folded if folded else _coded
    if isinstance(column, pa.Array):
        return column if column.type.equals(kind) else column.cast(kind)
    if isinstance(column, Coded):
        return coded(column.codes, column.texts, kind)
    if isinstance(column, CountedTexts):
        return _counted(column, kind)
    if isinstance(column, CodedLists):
        return _lists(column.counts, coded(column.codes, column.texts, kind.value_type))
    if isinstance(column, NumberLists):
        return _lists(column.counts, pa.array(column.numbers, kind.value_type))
    if isinstance(column, np.ndarray):
        missing = np.isnan(column) if column.dtype.kind == "f" else nullable & (column < 0)
        return pa.array(column, mask=missing if missing.any() else None).cast(kind)
    return listed_array(column, kind)


def listed_array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a list as Arrow, text that is no UTF-8 escaped."""
    if column.count(None) == len(column):
        return pa.nulls(len(column), kind)
    try:
        return pa.array(column, type=kind)
    except UnicodeEncodeError:
        # Half a surrogate pair, as in file names that are not UTF-8.
        return pa.array([None if text is None else as_utf8(text) for text in column], type=kind)


def _coded(codes: Ints, texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """Return texts by their codes, -1 as null."""
    used, at = _used(codes, len(texts))
    return listed_array([texts[code] for code in used], kind).take(at)


def _folded(codes: Ints, texts: Sequence[str], kind: pa.DataType) -> pa.Array:
    """Return the same with each text once: equal texts must share a code for Parquet."""
    used, at = _used(codes, len(texts))
    once = listed_array([texts[code] for code in used], kind).dictionary_encode()
    return pa.DictionaryArray.from_arrays(once.indices.take(at), once.dictionary)


def _used(codes: Ints, count: int) -> tuple[list[int], pa.Array]:
    """Return the codes that occur, and for each row which of those it has, null for -1."""
    # The last entry means -1.
    occurs = np.zeros(count + 1, dtype=bool)
    occurs[codes] = True
    at = np.cumsum(occurs[:-1], dtype=np.int32)[codes] - 1 if count else codes.astype(np.int32)
    missing = codes < 0
    return np.flatnonzero(occurs[:-1]).tolist(), pa.array(
        at, mask=missing if missing.any() else None
    )


def _counted(column: CountedTexts, kind: pa.DataType) -> pa.Array:
    heads, tails = (_coded(column.codes, texts, kind) for texts in (column.heads, column.tails))
    missing = column.numbers < 0
    numbers = pa.array(column.numbers, mask=missing if missing.any() else None).cast(kind)
    return pc.binary_join_element_wise(
        heads, numbers, tails, "", null_handling="replace", null_replacement=""
    )


def _lists(counts: Ints, items: pa.Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items)
