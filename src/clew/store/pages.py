"""A guard in front of the Parquet reader: what the pages of a column will unfold to.

A few bytes of Parquet can stand for gigabytes: runs of one value, tightly packed zeros. In come
the columns that are about to be read, out comes ValueError if their pages declare more than the
file could honestly hold. Page headers are Thrift, of which a dozen lines suffice here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.store.files import read_at

# What honest files stay far below: values and bytes for each byte of the file.
_VALUES_PER_BYTE = 64
_BYTES_PER_BYTE = 1000
_SPARE_VALUES = 1 << 20
_SPARE_BYTES = 64 << 20
_LARGEST_PAGE = 256 << 20
# Headers hold a few numbers, and the least and greatest value of text columns.
_HEADER_SIZES = (128, 1 << 16, 1 << 22)

_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8


class Budget:
    """What one file may still unfold to."""

    def __init__(self, file: int, size: int, metadata: Any) -> None:
        if not 0 <= metadata.num_rows <= size * _VALUES_PER_BYTE:
            raise ValueError(f"it declares {metadata.num_rows} rows in {size} bytes")
        groups = range(metadata.num_row_groups)
        if sum(metadata.row_group(group).num_rows for group in groups) != metadata.num_rows:
            raise ValueError("its row groups do not add up")
        self._file = file
        self._size = size
        self._metadata = metadata
        self._values = size * _VALUES_PER_BYTE * metadata.num_columns + _SPARE_VALUES
        self._bytes = size * _BYTES_PER_BYTE + _SPARE_BYTES

    def spend(self, group: int, columns: set[str]) -> None:
        """ValueError if reading these columns of a row group would take more than is left."""
        chunks = self._metadata.row_group(group)
        for column in map(chunks.column, range(chunks.num_columns)):
            if column.path_in_schema.partition(".")[0] in columns:
                for values, unfolded in _pages(self._file, self._size, column):
                    self._values -= values
                    self._bytes -= unfolded
        if self._values < 0 or self._bytes < 0:
            raise ValueError(f"its {self._size} bytes would unfold to far too much")


def _pages(file: int, size: int, column: Any) -> Iterator[tuple[int, int]]:
    """Values and unfolded bytes of each page of a column chunk."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    end = start + column.total_compressed_size
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
        yield values, unfolded
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
    """A struct of Thrift's compact protocol: numbers and structs by field, the rest skipped."""
    if depth > 4:
        raise ValueError("a page header is nested too deep")
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
        elif kind == 3:
            at += 1
        elif kind in (4, 5, 6):
            fields[number], at = _integer(data, at)
        elif kind == 7:
            at += 8
        elif kind == 8:
            length, at = _varint(data, at)
            at += length
        elif kind == 12:
            fields[number], at = _struct(data, at, depth + 1)
        else:
            raise ValueError("a page header holds what no page header holds")
    return fields, at + 1


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
            raise ValueError("a page header holds a number without end")
