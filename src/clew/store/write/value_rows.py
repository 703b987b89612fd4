"""Rows of the values table as columns: dtypes, shapes and statistics.

Input: columns, statistics and data. Output: Arrow arrays and coded texts, made for all rows at
once. The caller adds where data is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from clew.events.columns import VALUE_COLUMNS, Coded, Columns, Ints
from clew.events.vocabulary import Kept, Payload
from clew.store.format.arrow import listed_array
from clew.store.format.schema import STAT_NAMES, VALUES
from clew.store.read.payloads import KeptOnDisk

_STATS = pa.struct([VALUES.field(name) for name in STAT_NAMES])


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Statistics and fingerprints of some values, a row for each, and the data of some."""

    numbers: Ints
    stats: dict[str, pa.Array]
    payloads: dict[int, Payload]


def kept_rows(kept: Mapping[int, Kept], numbers: range | None = None) -> KeptRows:
    """Return statistics and data of some values, of all of them without `numbers`."""
    if isinstance(kept, KeptOnDisk):
        return KeptRows(*kept.arrays(numbers))
    mine = kept if numbers is None else {n: kept[n] for n in numbers if n in kept}
    stats = pa.array([one.stats for one in mine.values()], _STATS)
    return KeptRows(
        np.fromiter(mine, np.int64, len(mine)),
        dict(zip(STAT_NAMES, stats.flatten(), strict=True)) | marks_column(mine.values()),
        {number: one.payload for number, one in mine.items() if one.payload is not None},
    )


def marks_column(kept: Iterable[Kept]) -> dict[str, pa.Array]:
    """Return the column of the fingerprints of some values, no column if there are none."""
    read = (one.fingerprint for one in kept)
    marks = [mark() if callable(mark) else mark for mark in read]
    if not any(marks):
        return {}
    lengths = np.array([len(mark or b"") // 8 for mark in marks])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    numbers = pa.array(np.frombuffer(b"".join(mark or b"" for mark in marks), "<f8"))
    missing = pa.array(np.append(lengths == 0, False))
    there = pa.array(offsets, mask=np.asarray(missing))
    return {"fingerprint": pa.ListArray.from_arrays(there, numbers)}


def value_rows(columns: Columns, taken: slice, numbers: Ints, kept: KeptRows) -> dict[str, Any]:
    """Return the rows of some values, without their data.

    `numbers` are those of the rows: first of the values `taken` from `columns`, then of earlier
    ones with new statistics or data; their rows have no facts.
    """
    facts = {name: getattr(columns, name)[taken] for name in VALUE_COLUMNS}
    met = len(facts["meta"])
    rows: dict[str, Any] = {"value": numbers}
    rows |= {name: _with_nulls(facts[name], len(numbers) - met) for name in VALUE_COLUMNS}
    rows["meta"] = np.append(facts["meta"], np.full(len(numbers) - met, -1))
    rows |= _looks(columns, rows["meta"])
    named = np.append(facts["value_name"], np.full(len(numbers) - met, -1))
    rows["name"] = Coded(named, columns.value_names)
    at = scattered(len(numbers), row_of(numbers, met, kept.numbers))
    return rows | {name: column.take(at) for name, column in kept.stats.items()}


def row_of(numbers: Ints, met: int, wanted: Ints) -> Ints:
    """Return the rows of values: the first `met` have consecutive numbers, others are searched."""
    first = int(numbers[0]) if met else 0
    rows: Ints = wanted - first
    late = np.flatnonzero((rows < 0) | (rows >= met))
    if len(late):
        order = np.argsort(numbers[met:], kind="stable")
        rows[late] = met + order[np.searchsorted(numbers[met:], wanted[late], sorter=order)]
    return rows


def scattered(count: int, rows: Ints) -> pa.Array:
    """Return for each of so many rows which item goes there, null for none."""
    at = np.full(count, -1, dtype=np.int64)
    at[rows] = np.arange(len(rows))
    return pa.array(at, mask=at < 0)


def _with_nulls(column: Ints, count: int) -> pa.Array:
    numbers = pa.array(column, pa.int64())
    return pa.concat_arrays([numbers, pa.nulls(count, pa.int64())]) if count else numbers


def _looks(columns: Columns, meta: Ints) -> dict[str, object]:
    """Return dtype, device and shape of values; null for the meta -1."""
    used, codes = np.unique(meta, return_inverse=True)
    metas = [columns.metas[number] if number >= 0 else None for number in used.tolist()]

    def coded(texts: Sequence[str | None]) -> Coded:
        there = np.array([text is not None for text in texts], dtype=bool)
        return Coded(np.where(there[codes], codes, -1), ["" if t is None else t for t in texts])

    shapes = [None if one is None or one.shape is None else list(one.shape) for one in metas]
    return {
        "dtype": coded([None if one is None else one.dtype for one in metas]),
        "device": coded([None if one is None else one.device for one in metas]),
        "shape": listed_array(shapes, VALUES.field("shape").type).take(pa.array(codes)),
    }
