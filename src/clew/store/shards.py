"""Tensor shards: payload bytes appended to files that stock safetensors opens once sealed.

A live shard is `.shard-00000.open`: room for a header, then bytes as they come. Sealing writes
the header and renames the file; offsets never change, so values can be read through them at any
time. dtypes that safetensors lacks are stored as plain bytes; the value's own row knows better.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from clew.events.records import Payload

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}  # fmt: skip

_LENGTH_BYTES = 8
# Room for the header: small at first, so that a run of five tensors is not a megabyte.
_FIRST_ROOM = 64 << 10
_ROOM = 1 << 20
_LARGEST_SHARD = 256 << 20
_ALIGNMENT = 8


def shard_name(index: int) -> str:
    """The name of a sealed shard."""
    return f"shard-{index:05d}.safetensors"


def open_name(index: int) -> str:
    """The name of a shard that is being written."""
    return f".shard-{index:05d}.open"


class ShardWriter:
    """Appends payloads to the shards of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = -1
        self._file: int | None = None
        self._entries: dict[str, Any] = {}
        self._room = 0
        self._header_size = 0
        self._position = 0

    def append(self, name: str, payload: Payload) -> tuple[int, int, int]:
        """Write a payload; the shard, offset and length it has there."""
        data = memoryview(payload.data).cast("B")
        entry_size = 2 * len(name) + 200 + 12 * len(payload.shape)
        if self._file is not None and (
            self._header_size + entry_size > self._room
            or self._position + len(data) > _LARGEST_SHARD
        ):
            self.seal()
        if self._file is None:
            self._open()
        padding = -self._position % _ALIGNMENT
        if padding:
            self._enter(f"__pad{len(self._entries)}", "U8", [padding], padding)
            self._write(b"\0" * padding)
        offset = self._position
        dtype = _DTYPES.get(payload.dtype)
        shape = list(payload.shape) if dtype else [len(data)]
        self._enter(name, dtype or "U8", shape, len(data))
        self._write(data)
        self._header_size += entry_size
        return self._index, offset, len(data)

    def seal(self) -> None:
        """Finish the open shard, if there is one."""
        if self._file is None:
            return
        seal(self._file, self._room, self._entries)
        os.close(self._file)
        self._file = None
        target = self._folder / shard_name(self._index)
        os.replace(self._folder / open_name(self._index), target)

    def _open(self) -> None:
        self._index += 1
        self._room = _FIRST_ROOM if self._index == 0 else _ROOM
        self._entries = {}
        self._header_size = 0
        self._position = _LENGTH_BYTES + self._room
        path = self._folder / open_name(self._index)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(self._file, self._position)
        os.lseek(self._file, self._position, os.SEEK_SET)

    def _enter(self, name: str, dtype: str, shape: list[int], size: int) -> None:
        start = self._position - _LENGTH_BYTES - self._room
        self._entries[name] = {
            "dtype": dtype, "shape": shape, "data_offsets": [start, start + size],
        }  # fmt: skip

    def _write(self, data: Any) -> None:
        assert self._file is not None
        view = memoryview(data)
        while len(view):
            written = os.write(self._file, view)
            view = view[written:]
            self._position += written


def seal(file: int, room: int, entries: dict[str, Any]) -> None:
    """Write the header of a shard into the room left for it."""
    header = json.dumps(entries, separators=(",", ":")).encode()
    if len(header) > room:
        raise ValueError(f"a header of {len(header)} bytes does not fit into {room}")
    os.pwrite(file, room.to_bytes(_LENGTH_BYTES, "little") + header.ljust(room), 0)


def read_range(folder: Path, shard: int, offset: int, length: int) -> bytes | None:
    """Bytes of a sealed or open shard, None where they are not there."""
    for name in (shard_name(shard), open_name(shard)):
        try:
            with open(folder / name, "rb") as file:
                file.seek(offset)
                data = file.read(length)
        except OSError:
            continue
        if len(data) == length:
            return data
    return None
