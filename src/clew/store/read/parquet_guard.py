"""Guard in front of the Parquet reader: checks what a file declares before Arrow reads it.

Some damage to a footer ends the process instead of raising, and a page may declare any number of
rows. So footers and page headers, which are Thrift, are parsed here first. Input: a file. Output:
its row groups and columns, and the memory they take of the allowance, or ValueError if they declare
more than the file could hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.store.format.schema import UNFOLDED
from clew.store.read.allowance import Allowance
from clew.store.safe_files import opened, read_at

_LARGEST_PAGE = 256 << 20
_LARGEST_FOOTER = 64 << 20
# The most items of any list in a footer except the row groups: columns, encodings, parts of a path.
# Arrow allocates a thousand bytes for each before it reads the first.
_LONGEST_LIST = 256
_MAGIC = b"PAR1"
# Headers hold a few numbers, and the least and greatest value of text columns.
_HEADER_SIZES = (128, 1 << 16, 1 << 22)
_DEEPEST = 8

# Fields of a page header
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
# of a footer, a row group, a column chunk and its metadata
_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _GROUP_ROWS = 1, 3
_META_DATA = 3
_PATH, _CHUNK_SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 3, 7, 9, 11


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a column of a row group lies, and whether it holds lists."""

    column: str
    is_list: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: how many rows, and its columns."""

    rows: int
    chunks: tuple[Chunk, ...]


def read_groups(path: Path) -> list[RowGroup]:
    """Return the row groups that a Parquet footer declares; raise ValueError if invalid."""
    with opened(path) as (file, size):
        tail = read_at(file, size - 8, 8) if size >= 12 else b""
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or not 0 < length <= min(size - 12, _LARGEST_FOOTER):
            raise ValueError("it has no footer")
        data = read_at(file, size - 8 - length, length)
    try:
        footer, _ = _struct(data, 0, 0, endless=_ROW_GROUPS)
        groups = [_group(group) for group in footer.get(_ROW_GROUPS, [])]
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("its footer cannot be read") from None
    if sum(group.rows for group in groups) != footer.get(_ROWS):
        raise ValueError("its row groups do not add up")
    return groups


def _group(group: dict[int, Any]) -> RowGroup:
    chunks = []
    for column in group[_COLUMNS]:
        facts = column[_META_DATA]
        start = facts[_DATA_PAGE]
        if facts.get(_DICTIONARY_PAGE):
            start = min(start, facts[_DICTIONARY_PAGE])
        name, *inside = facts[_PATH]
        chunks.append(
            Chunk(
                name.decode("utf-8", "replace"),
                bool(inside),
                start,
                start + facts[_CHUNK_SIZE],
            )
        )
    if group[_GROUP_ROWS] < 0:
        raise ValueError("a row group has less than no rows")
    return RowGroup(group[_GROUP_ROWS], tuple(chunks))


def spend(
    allowance: Allowance, file: int, size: int, table: str, group: RowGroup, columns: set[str]
) -> None:
    """Subtract from an allowance what reading some columns of a row group will take.

    Raises ValueError if that is more than is left.
    """
    items = unfolded = 0
    for chunk in group.chunks:
        if chunk.column not in columns:
            continue
        values = 0
        for kind, count, length in _pages(file, size, chunk):
            if kind == _DICTIONARY and chunk.column == UNFOLDED:
                raise ValueError("its data is folded, as no part's is")
            values += count if kind != _DICTIONARY else 0
            unfolded += length
        if chunk.is_list:
            items += values
        elif values > group.rows:
            raise ValueError(f"{values} values are in {group.rows} rows")
    allowance.rows(table, group.rows, items, unfolded)


def _pages(file: int, size: int, chunk: Chunk) -> Iterator[tuple[int | None, int, int]]:
    """Yield kind, number of values and decoded bytes of each page of a column chunk."""
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


def _struct(
    data: bytes, at: int, depth: int, endless: int | None = None
) -> tuple[dict[int, Any], int]:
    """Return a struct of Thrift's compact protocol by its fields.

    Only the list in the field `endless` may have any number of items.
    """
    if depth > _DEEPEST:
        raise ValueError("a header is nested too deep")
    fields: dict[int, object] = {}
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
            most = None if number == endless else _LONGEST_LIST
            fields[number], at = _value(data, at, kind, depth, most)
    return fields, at + 1


def _value(
    data: bytes, at: int, kind: int, depth: int, most: int | None = _LONGEST_LIST
) -> tuple[object, int]:
    """Return a number, a text, a list of at most `most` items or a struct; None if skipped."""
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == 9:
        return _list(data, at, depth, most)
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind == 3:
        return None, at + 1
    if kind == 7:
        return None, at + 8
    raise ValueError("a header holds what no header holds")


def _list(data: bytes, at: int, depth: int, most: int | None) -> tuple[list[object], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if most is not None and count > most:
        raise ValueError(f"a header lists {count} things")
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
