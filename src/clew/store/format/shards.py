"""Tensor shards: payload bytes appended to files that the safetensors library opens once sealed.

A live shard is `.shard-00000.open`: room for a header, then bytes as they come. Sealing writes the
header and renames the file; offsets never change, so values can be read through them at any time.
Dtypes that safetensors lacks are stored as plain bytes; the value's row has the dtype.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any, Protocol

from clew.events.vocabulary import Payload
from clew.store.safe_files import write_all
from clew.store.storage import Storage

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}  # fmt: skip

LENGTH_BYTES = 8
# Room for the header: small at first, so that a run of five tensors does not take a megabyte. Its
# size is in the first bytes of a shard from the start.
_FIRST_ROOM = 64 << 10
_ROOM = 1 << 20
_LARGEST_SHARD = 256 << 20
_ALIGNMENT = 8
# Names with this prefix are padding between values.
PADDING = "__pad"

Entries = dict[str, dict[str, Any]]


def shard_name(index: int) -> str:
    """Return the name of a sealed shard."""
    return f"shard-{index:05d}.safetensors"


def open_name(index: int) -> str:
    """Return the name of a shard that is being written."""
    return f".shard-{index:05d}.open"


def value_name(number: int) -> str:
    """Return the name of a value's data in its shard."""
    return f"value.{number}"


def entry(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, Any]:
    """Return the header entry of a payload, as plain bytes if safetensors lacks its dtype."""
    known = _DTYPES.get(dtype)
    if known is None or prod(shape) * _size(known) != end - start:
        known, shape = "U8", (end - start,)
    return {"dtype": known, "shape": list(shape), "data_offsets": [start, end]}


def _size(dtype: str) -> int:
    if dtype in ("BOOL", "C64"):
        return 1 if dtype == "BOOL" else 8
    return 1 if dtype.startswith("F8") else int(dtype.lstrip("BFIU")) // 8


class ShardWriter:
    """Appends payloads to the shards of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = -1
        self._file: int | None = None
        self._entries: Entries = {}
        self._header_size = 0
        self._position = 0
        self._room = _FIRST_ROOM

    @property
    def index(self) -> int:
        """Return the number of the next shard, or of the one being written."""
        return self._index + (self._file is None)

    def append(self, name: str, payload: Payload) -> tuple[int, int]:
        """Write a payload; return its shard and offset."""
        data = memoryview(payload.data).cast("B")
        # Twice its line in the header, as padding may come with it.
        entry_size = 2 * len(name) + 200 + 24 * len(payload.shape)
        if self._file is not None and (
            self._header_size + entry_size > self._room
            or self._position + len(data) > _LARGEST_SHARD
        ):
            self.seal()
            self._room = _ROOM
        if self._file is None:
            self._open()
        padding = -self._position % _ALIGNMENT
        if padding:
            self._write(f"{PADDING}{len(self._entries)}", "uint8", (padding,), bytes(padding))
        offset = self._position
        self._write(name, payload.dtype, payload.shape, data)
        self._header_size += entry_size
        return self._index, offset

    def seal(self) -> None:
        """Finish the open shard, if there is one."""
        if self._file is None:
            return
        seal(self._file, self._room, self._entries)
        self.close()
        target = self._folder / shard_name(self._index)
        os.replace(self._folder / open_name(self._index), target)
        self._room = _FIRST_ROOM

    def close(self) -> None:
        """Close the open shard without sealing it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        self._index += 1
        self._entries = {}
        self._header_size = 0
        self._position = LENGTH_BYTES + self._room
        path = self._folder / open_name(self._index)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        write_all(self._file, self._room.to_bytes(LENGTH_BYTES, "little"))
        os.ftruncate(self._file, self._position)
        os.lseek(self._file, self._position, os.SEEK_SET)

    def _write(self, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> None:
        assert self._file is not None
        try:
            write_all(self._file, data)
        except OSError:
            # The disk is full: a torn payload at the end does no harm.
            os.ftruncate(self._file, self._position)
            raise
        start = self._position - LENGTH_BYTES - self._room
        self._entries[name] = entry(dtype, shape, start, start + len(data))
        self._position += len(data)


def seal(file: int, room: int, entries: Entries) -> None:
    """Write the header of a shard into the room left for it."""
    header = json.dumps(entries, separators=(",", ":")).encode()
    if len(header) > room:
        raise ValueError(f"a header of {len(header)} bytes does not fit into {room}")
    os.lseek(file, 0, os.SEEK_SET)
    write_all(file, room.to_bytes(LENGTH_BYTES, "little") + header.ljust(room))


class Shards(Protocol):
    """Source of the bytes of values."""

    def size(self, shard: int) -> int:
        """Return the size of a shard, 0 if there is none."""

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Return bytes of a shard; raise OSError if they are missing."""


class StoredShards:
    """The shards of one rank, local or remote."""

    def __init__(self, storage: Storage, rank: str) -> None:
        # A reference, because local copies of its tables are deleted with it.
        self._storage = storage
        self._rank = rank

    def size(self, shard: int) -> int:
        """Return the size of a sealed or open shard, 0 if there is none."""
        sizes = (self._storage.size(f"{self._rank}/{name}") for name in _names(shard))
        return next(filter(None, sizes), 0)

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Return bytes of a sealed or open shard; raise OSError if they are missing."""
        for name in _names(shard):
            path = f"{self._rank}/{name}"
            if 0 <= offset <= offset + length <= self._storage.size(path):
                try:
                    return self._storage.read(path, offset, offset + length) if length else b""
                except FileNotFoundError:
                    continue
        raise OSError(f"shard {shard} has no bytes {offset} to {offset + length}")


def _names(shard: int) -> tuple[str, str, str]:
    # Try the sealed name once more: it may have been sealed meanwhile.
    return shard_name(shard), open_name(shard), shard_name(shard)
