"""Live parts: Arrow streams, written and read one message at a time.

Input: record batches. Output: a file that any Arrow reader opens while it grows. Each message is
one `write`, so a kill leaves complete messages and at most a torn one at the end. The reader checks
every length against the file before Arrow sees a message: a hostile file costs no more memory than
it has bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.program_errors import pass_on
from clew.store.safe_files import read_at, write_all

MOST_ROWS = 1 << 14
_MESSAGE_BYTES = 16 << 20
_LARGEST_MESSAGE = 1 << 28
_LARGEST_METADATA = 1 << 20
# Metadata of a batch is a few numbers for each column.
_LONGEST_METADATA = 1 << 14
# Bytes searched at a time for the next message, and in all after one message.
_FIRST_LOOK, _LARGEST_LOOK, _LARGEST_SEARCH = 1 << 12, 1 << 22, 1 << 28
_CONTINUATION = 0xFFFFFFFF
_MARK = b"\xff\xff\xff\xff"
_END = struct.pack("<Ii", _CONTINUATION, 0)
_SCHEMA, _RECORD_BATCH = 1, 3


class LiveFile:
    """A live part being written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self.size = 0
        # Unbuffered: written bytes are the kernel's, and survive the process.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._append(schema.serialize())

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; they are in the file when this returns."""
        whole = batch.serialize()
        if batch.num_rows <= MOST_ROWS and whole.size <= _MESSAGE_BYTES:
            self._append(whole)
        else:
            rows = max(1, min(MOST_ROWS, batch.num_rows * _MESSAGE_BYTES // whole.size))
            for start in range(0, batch.num_rows, rows):
                self._append(batch.slice(start, rows).serialize())
        self.rows += batch.num_rows

    def end(self) -> None:
        """Finish the stream."""
        self._append(_END)
        self.close()

    def close(self) -> None:
        """Close the file without finishing the stream."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def is_gone(self) -> bool:
        """Return whether the file was removed."""
        return os.fstat(self._file).st_nlink == 0

    def _append(self, message: Any) -> None:
        try:
            write_all(self._file, memoryview(message))
        except OSError:
            # The disk is full: a torn message at the end does no harm.
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(memoryview(message))


@dataclass(frozen=True, slots=True)
class Message:
    """Where a record batch lies in a file, and how many rows it declares."""

    offset: int
    size: int
    rows: int
    schema: pa.Schema | None = None


class Damage(ValueError):
    """Part of a stream that cannot be read."""


class BrokenOff(Damage):
    """The end of a stream that a kill, or a write under way, left incomplete."""


def messages(file: int, size: int, schemas: Sequence[pa.Schema]) -> Iterator[Message | Damage]:
    """Yield the record batches of a stream in order, with `Damage` instead of lost ones.

    The stream begins with one of the schemas, which every message refers to.
    """
    offset = 0
    schema = None
    while offset < size:
        try:
            message, kind = _message(file, offset, size)
            if kind is None:
                return
            if offset == 0:
                found = _read_schema(file, message) if kind == _SCHEMA else None
                schema = next((known for known in schemas if known.equals(found)), None)
                if found is None or schema is None:
                    yield Damage("it does not begin with the schema of this table")
                    return
            elif kind != _RECORD_BATCH:
                raise Damage(f"it holds something else than rows at byte {offset}")
            else:
                yield replace(message, schema=schema)
            offset += message.size
        except Damage as damage:
            further = _next(file, offset, size) if offset else size
            if further == size:
                yield damage
                return
            yield Damage(f"it goes astray at byte {offset}, up to byte {further}")
            offset = further


def read_batch(file: int, message: Message) -> pa.RecordBatch:
    """Read one record batch and check all of it; Arrow raises an exception if it is damaged."""
    data = read_at(file, message.offset, message.size)
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), message.schema)
    batch.validate(full=True)
    return batch


def _read_schema(file: int, message: Message) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(read_at(file, message.offset, message.size)))
    except Exception as broken:
        pass_on(broken)
        raise Damage(f"its schema cannot be read ({broken})") from None


def _next(file: int, offset: int, size: int) -> int:
    """Return where the next message after a damaged one begins, `size` if there is none.

    The search reads larger and larger blocks, and stops at the first message.
    """
    room = _FIRST_LOOK
    start = offset + 8
    while start < min(size, offset + _LARGEST_SEARCH):
        # Messages begin at multiples of 8, so none begins in two blocks.
        data = read_at(file, start, min(size - start, room))
        at = data.find(_MARK)
        while at >= 0:
            if at % 8 == 0 and _is_batch(file, start + at, size):
                return start + at
            at = data.find(_MARK, at + 1)
        start += room
        room = min(2 * room, _LARGEST_LOOK)
    return size


def _is_batch(file: int, offset: int, size: int) -> bool:
    """Return whether a whole record batch begins at an offset."""
    try:
        return _message(file, offset, size, _LONGEST_METADATA)[1] == _RECORD_BATCH
    except Damage:
        return False


def _message(
    file: int, offset: int, size: int, most: int = _LARGEST_METADATA
) -> tuple[Message, int | None]:
    """Return the message at an offset and its kind, None at the end marker."""
    if offset + 8 > size:
        raise BrokenOff(f"it breaks off at byte {size}")
    continuation, length = struct.unpack("<Ii", read_at(file, offset, 8))
    if continuation != _CONTINUATION or not 0 <= length <= most:
        raise Damage(f"it goes astray at byte {offset}")
    if length == 0:
        return Message(offset, 8, 0), None
    if offset + 8 + length > size:
        raise BrokenOff(f"it breaks off at byte {size}")
    kind, body, rows = _facts(read_at(file, offset + 8, length), offset)
    whole = 8 + length + body
    if offset + whole > size:
        raise BrokenOff(f"it breaks off at byte {size}")
    return Message(offset, whole, rows), kind


def _facts(metadata: bytes, offset: int) -> tuple[int, int, int]:
    """Return the kind, body length and number of rows that a message's metadata declare."""
    try:
        root = _read(metadata, "<I", 0)
        kind = _read(metadata, "<B", _field(metadata, root, 1))
        body = _read(metadata, "<q", _field(metadata, root, 3))
        rows = 0
        if kind == _RECORD_BATCH:
            header = _field(metadata, root, 2)
            header += _read(metadata, "<I", header)
            rows = _read(metadata, "<q", _field(metadata, header, 0))
            if _field(metadata, header, 3):
                raise Damage(f"it holds a compressed batch at byte {offset}: no part does")
    except struct.error:
        raise Damage(f"it goes astray at byte {offset}") from None
    if not 0 <= body <= _LARGEST_MESSAGE or not 0 <= rows <= _LARGEST_MESSAGE:
        raise Damage(f"it declares a batch of {body} bytes and {rows} rows at byte {offset}")
    return kind, body, rows


def _field(data: bytes, table: int, index: int) -> int:
    """Return the position of a field of a flatbuffer table, 0 if it is left out."""
    vtable = table - _read(data, "<i", table)
    slot = 4 + 2 * index
    if slot + 2 > _read(data, "<H", vtable):
        return 0
    offset = _read(data, "<H", vtable + slot)
    return table + offset if offset else 0


def _read(data: bytes, form: str, position: int) -> int:
    """Return the number at a position; at position 0, for a field that is left out, 0."""
    if position < 0:
        raise struct.error(position)
    if position == 0 and form != "<I":
        return 0
    (number,) = struct.unpack_from(form, data, position)
    return int(number)
