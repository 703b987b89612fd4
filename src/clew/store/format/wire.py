"""A batch as bytes, for another process: a head of JSON, then arrays and data.

Two lengths come first, so that after a kill all messages but the last are complete. No pickle: no
code runs on the other side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from clew.events.columns import COLUMN_NAMES
from clew.events.vocabulary import Kept, Payload
from clew.store.format.json_rows import dump, from_json, load_facts, load_text
from clew.store.format.table_list import TABLES
from clew.stream.batch import Batch

_LENGTH = 8
_LONGEST_HEAD = 64 << 20
_LOADERS: dict[str, Callable[[Any], Any]] = {kind.attribute: kind.load for kind in TABLES.values()}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch, and further facts from its sender."""

    facts: dict[str, Any]
    batch: Batch


def to_bytes(batch: Batch, facts: dict[str, Any]) -> bytes:
    """Return a message as bytes."""
    arrays = [np.ascontiguousarray(batch.columns[name], "<i8") for name in COLUMN_NAMES]
    arrays += [batch.gone.astype("<i8"), batch.freed.astype("<i8").ravel()]
    data = [array.tobytes() for array in arrays]
    kept: list[object] = []
    for number, one in batch.kept.items():
        stored = None
        if one.payload is not None:
            data.append(bytes(one.payload.data))
            stored = [one.payload.dtype, list(one.payload.shape), len(data[-1])]
        mark = _read_mark(one)
        data.append(mark)
        kept.append([number, one.stats, stored, len(mark)])
    head = {
        "facts": facts,
        "rows": [len(array) for array in arrays],
        "open": batch.open_calls,
        "tables": {name: [dump(row) for row in rows] for name, rows in batch.tables.items()},
        "gone_templates": batch.gone_templates,
        "attributes": [dump(row) for row in batch.attributes],
        "kept": kept,
    }
    encoded = json.dumps(head).encode()
    sizes = [len(encoded), sum(map(len, data))]
    return b"".join([*(n.to_bytes(_LENGTH, "little") for n in sizes), encoded, *data])


def read_message(file: BinaryIO) -> Delivery | None:
    """Read the next message of a file; if there is none yet, return None and stay in place."""
    at = file.tell()
    sizes = file.read(2 * _LENGTH)
    head_size = int.from_bytes(sizes[:_LENGTH], "little")
    size = int.from_bytes(sizes[_LENGTH:], "little")
    if len(sizes) == 2 * _LENGTH and head_size <= _LONGEST_HEAD:
        body = file.read(head_size + size)
        if len(body) == head_size + size:
            return _message(load_facts(json.loads(body[:head_size])), body[head_size:])
    file.seek(at)  # still being written, or cut off by a kill
    return None


def _message(head: dict[str, Any], data: bytes) -> Delivery:
    at = 0

    def taken(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    *arrays, gone, freed = [np.frombuffer(taken(8 * rows), "<i8") for rows in head["rows"]]
    kept = {}
    for number, stats, stored, mark in head["kept"]:
        payload = None
        if stored is not None:
            dtype, shape, size = stored
            payload = Payload(dtype, tuple(shape), taken(size))
        kept[int(number)] = Kept(stats, payload, taken(mark) or None)
    tables = {name: _rows(name, rows) for name, rows in head["tables"].items()}
    columns = dict(zip(COLUMN_NAMES, arrays, strict=True))
    attributes = _rows("attributes", head["attributes"])
    batch = Batch(
        columns, head["open"], tables, kept, gone, freed.reshape(2, -1), head["gone_templates"],
        attributes,
    )  # fmt: skip
    return Delivery(head["facts"], batch)


def _read_mark(kept: Kept) -> bytes:
    """Return a packed fingerprint, no bytes for none."""
    mark = kept.fingerprint() if callable(kept.fingerprint) else kept.fingerprint
    return mark or b""


def _rows(table: str, rows: list[str]) -> list[Any]:
    load: Callable[[Any], Any] = _LOADERS.get(table, load_text)
    return [load(from_json(row)) for row in rows]
