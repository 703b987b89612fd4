"""A guard in front of the Parquet reader: what a file declares, and what it will unfold to.

A few bytes of Parquet can stand for gigabytes: runs of one value, tightly packed zeros. And some
damage to a footer ends the process instead of raising. So footers and page headers, which are
Thrift, are read here first: in comes a file, out comes what its row groups and columns are, or
ValueError if they declare more than the file could honestly hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.store.format.schema import UNFOLDED
from clew.store.safe_files import opened, read_at

# What honest files stay far below: values and bytes for each byte of the file.
_VALUES_PER_BYTE = 64
_BYTES_PER_BYTE = 1000
_SPARE_VALUES = 1 << 20
_SPARE_BYTES = 64 << 20
_LARGEST_PAGE = 256 << 20
_LARGEST_FOOTER = 64 << 20
_MAGIC = b"PAR1"
# Headers hold a few numbers, and the least and greatest value of text columns.
_HEADER_SIZES = (128, 1 << 16, 1 << 22)
_DEEPEST = 8

# Fields of a page header
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
# of a footer, a row group, a column chunk and its metadata
_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_META_DATA = 3
_PATH, _CHUNK_SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 3, 7, 9, 11


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a column of a row group lies."""

    column: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: how many rows, how many bytes, and its columns."""

    rows: int
    size: int
    chunks: tuple[Chunk, ...]


def read_groups(path: Path) -> list[Group]:
    """The row groups that the footer of a Parquet file declares; ValueError if they are odd."""
    with opened(path) as (file, size):
        tail = read_at(file, size - 8, 8) if size >= 12 else b""
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or not 0 < length <= min(size - 12, _LARGEST_FOOTER):
            raise ValueError("it has no footer")
        data = read_at(file, size - 8 - length, length)
    try:
        footer, _ = _struct(data, 0, 0)
        groups = [_group(group) for group in footer.get(_ROW_GROUPS, [])]
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("its footer cannot be read") from None
    if sum(group.rows for group in groups) != footer.get(_ROWS):
        raise ValueError("its row groups do not add up")
    return groups


def _group(group: dict[int, Any]) -> Group:
    chunks = []
    for column in group[_COLUMNS]:
        facts = column[_META_DATA]
        start = facts[_DATA_PAGE]
        if facts.get(_DICTIONARY_PAGE):
            start = min(start, facts[_DICTIONARY_PAGE])
        name = facts[_PATH][0].decode("utf-8", "replace")
        chunks.append(Chunk(name, start, start + facts[_CHUNK_SIZE]))
    if group[_GROUP_ROWS] < 0:
        raise ValueError("a row group has less than no rows")
    return Group(group[_GROUP_ROWS], group[_GROUP_BYTES], tuple(chunks))


class Budget:
    """What one file may still unfold to."""

    def __init__(self, file: int, size: int, groups: list[Group]) -> None:
        rows = sum(group.rows for group in groups)
        if rows > size * _VALUES_PER_BYTE:
            raise ValueError(f"it declares {rows} rows in {size} bytes")
        columns = max((len(group.chunks) for group in groups), default=0)
        self._file = file
        self._size = size
        self._groups = groups
        self._values = size * _VALUES_PER_BYTE * columns + _SPARE_VALUES
        self._bytes = size * _BYTES_PER_BYTE + _SPARE_BYTES

    def spend(self, group: int, columns: set[str]) -> None:
        """ValueError if reading these columns of a row group would take more than is left."""
        for chunk in self._groups[group].chunks:
            if chunk.column in columns:
                for kind, values, unfolded in _pages(self._file, self._size, chunk):
                    if kind == _DICTIONARY and chunk.column == UNFOLDED:
                        raise ValueError("its data is folded, as no part's is")
                    self._values -= values
                    self._bytes -= unfolded
        if self._values < 0 or self._bytes < 0:
            raise ValueError(f"its {self._size} bytes would unfold to far too much")


def _pages(file: int, size: int, chunk: Chunk) -> Iterator[tuple[int | None, int, int]]:
    """Kind, values and unfolded bytes of each page of a column chunk."""
    start, end = chunk.start, chunk.end
    if not 0 < start <= end <= size:
        raise ValueError("a column lies outside the file")
    while start < end:
        header, length = _header(file, start, end)
        compressed = header.get(_COMPRESSED_SIZE, -1)
        unfolded = header.get(_UNCOMPRESSED_SIZE, -1)
        if compressed < 0 or not 0 <= unfolded <= _LARGEST_PAGE:
            raise ValueError(f"a page declares {unfolded} bytes")
        kind = next((k for k in (_DATA, _DATA_V2, _DICTIONARY) if k in header), None)
        values = header[kind].get(1, 0) if kind is not None else 0
        if values < 0:
            raise ValueError(f"a page declares {values} values")
        yield kind, values, unfolded
        start += length + compressed


def _header(file: int, start: int, end: int) -> tuple[dict[int, Any], int]:
    for room in _HEADER_SIZES:
        data = read_at(file, start, min(room, end - start))
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < room:
                break
    raise ValueError("a page header cannot be read")


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol by its fields."""
    if depth > _DEEPEST:
        raise ValueError("a header is nested too deep")
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        delta, kind = data[at] >> 4, data[at] & 15
        at += 1
        if delta:
            number += delta
        else:
            number, at = _integer(data, at)
        if kind in (1, 2):
            fields[number] = kind == 1
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """A number, a text, a list or a struct; None for what is skipped."""
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == 9:
        return _list(data, at, depth)
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind == 3:
        return None, at + 1
    if kind == 7:
        return None, at + 8
    raise ValueError("a header holds what no header holds")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    items = []
    for _ in range(count):
        if at >= len(data):
            raise IndexError(at)
        # True and false take a byte each.
        item, at = (None, at + 1) if kind in (1, 2) else _value(data, at, kind, depth)
        items.append(item)
    return items, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a header holds a number without end")
