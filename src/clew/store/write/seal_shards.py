"""Seal shards without a header, or cut short, from the values table."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clew.store.format.shards import (
    LENGTH_BYTES,
    PADDING,
    Entries,
    entry,
    seal,
    shard_name,
    value_name,
)
from clew.store.read.table_parts import read_table
from clew.store.safe_files import opened, read_at

_COLUMNS = ["value", "data_dtype", "data_shape", "shard", "offset", "length"]
_NAME = re.compile(r"\.shard-(\d{5,9})\.open|shard-(\d{5,9})\.safetensors")
_LARGEST_HEADER = 100 << 20

Rows = list[dict[str, Any]]


def seal_shards(folder: Path) -> Iterator[str]:
    """Seal every shard that is open or cut short; yield a line about each."""
    found = {path: _NAME.fullmatch(path.name) for path in sorted(folder.iterdir())}
    unsealed = {
        path: int(match[1] or match[2])
        for path, match in found.items()
        if match and (match[1] or not _is_whole(path))
    }
    if not unsealed:
        return
    table, _ = read_table(folder, "values", _COLUMNS, [])
    rows = [row for row in table.to_pylist() if row["shard"] in unsealed.values()]
    for path, index in unsealed.items():
        mine = [row for row in rows if row["shard"] == index]
        yield f"{path.name}: {_seal(path, index, mine)}"


def _seal(path: Path, index: int, rows: Rows) -> str:
    target = path.with_name(shard_name(index))
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.open(path, flags | getattr(os, "O_BINARY", 0))
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            return "left alone, it is not an ordinary file"
        if path != target and target.exists():
            return f"left alone, there is {target.name} already"
        size = facts.st_size
        room = _room(file, size)
        if not rows and size <= LENGTH_BYTES + room:
            path.unlink()
            return "removed, it was empty"
        if LENGTH_BYTES + room > size:
            return "left alone, it does not say where its data begins"
        entries = _entries(rows, LENGTH_BYTES + room, size)
        try:
            seal(file, room, entries)
        except ValueError as refused:
            return f"left alone: {refused}"
    finally:
        os.close(file)
    os.replace(path, target)
    found = sum(not name.startswith(PADDING) for name in entries)
    # Values with the same content have the same offset.
    lost = len({row["offset"] for row in rows}) - found
    return f"sealed with {found} values" + (f", {lost} are cut off" if lost > 0 else "")


def _room(file: int, size: int) -> int:
    """Return the room for the header, from the first bytes."""
    return int.from_bytes(read_at(file, 0, min(LENGTH_BYTES, size)), "little")


def _entries(rows: Rows, first: int, size: int) -> Entries:
    """Return the header of a shard: its values in order, and padding for what lies between."""
    entries: Entries = {}
    position = first
    for row in sorted(rows, key=lambda row: (row["offset"] or 0, row["value"] or 0)):
        start, length = row["offset"] or 0, row["length"] or 0
        if start < position or length < 0 or start + length > size:
            continue
        if start > position:
            entries[f"{PADDING}{len(entries)}"] = entry("", (), position - first, start - first)
        position = start + length
        shape = tuple(row["data_shape"] or ())
        name = value_name(row["value"])
        entries[name] = entry(str(row["data_dtype"]), shape, start - first, position - first)
    if position < size:
        entries[f"{PADDING}{len(entries)}"] = entry("", (), position - first, size - first)
    return entries


def _is_whole(path: Path) -> bool:
    """Return whether a sealed shard is as long as its header says."""
    try:
        with opened(path) as (file, size):
            length = _room(file, size)
            if not 0 < length <= min(size - LENGTH_BYTES, _LARGEST_HEADER):
                return False
            header = json.loads(read_at(file, LENGTH_BYTES, length))
            ends = [e["data_offsets"][1] for n, e in header.items() if n != "__metadata__"]
            return bool(LENGTH_BYTES + length + max(ends, default=0) == size)
    except Exception:
        # Reading untrusted bytes may raise anything.
        return False
