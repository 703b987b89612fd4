"""The parts of a table, read: sealed ones from Parquet, the live one from its stream.

In come a folder and the columns wanted, out come rows in the order in which they were written,
with where each stretch of them lies. A part, a row group or a batch that is damaged is left out
and said; the rest is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clew.events.model import Gap
from clew.store import live, pages
from clew.store.files import opened
from clew.store.schema import SCHEMAS

_TRIES = 5
# Text for each byte of the file it is in, and some to spare.
_TEXT_PER_BYTE = 1000
_SPARE_TEXT = 64 << 20
_TEXT = (pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows that lie together in one part, from `start` on, counted within the part."""

    stem: str
    start: int
    rows: pa.Table


class Replaced(Exception):
    """A live part was sealed while it was looked at."""


def read_table(
    folder: Path, table: str, columns: list[str], damage: list[Gap]
) -> tuple[pa.Table, list[Stretch]]:
    """Some columns of a table, and the stretches they are made of."""
    for attempt in range(_TRIES):
        found: list[Gap] = []
        try:
            stretches = [
                stretch
                for stem, kinds in sorted(parts_of(folder, table, found).items())
                for stretch in _part(folder, table, stem, kinds, columns, found)
            ]
            break
        except Replaced:
            if attempt == _TRIES - 1:
                stretches = []
                found.append(_gap(folder, table, "its files come and go", "load it once more"))
    damage += found
    schema = pa.schema([SCHEMAS[table].field(name) for name in columns])
    return pa.concat_tables([schema.empty_table(), *(s.rows for s in stretches)]), stretches


def parts_of(folder: Path, table: str, damage: list[Gap]) -> dict[str, list[str]]:
    """The parts of a table by name, each with the kinds of file it has, sealed before live."""
    pattern = re.compile(rf"({table}-(\d{{5,9}}))\.(parquet|arrows)")
    found: dict[str, list[str]] = {}
    numbers = set()
    try:
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    except OSError as refused:
        damage.append(_gap(folder, "everything", str(refused), "give the folder of a trace"))
        return {}
    for match in filter(None, map(pattern.fullmatch, names)):
        found.setdefault(match[1], []).append(match[3])
        numbers.add(int(match[2]))
    if numbers and len(numbers) <= max(numbers):
        damage.append(
            _gap(folder, table, f"{max(numbers) + 1 - len(numbers)} of its parts are missing",
                 "the others are shown")
        )  # fmt: skip
    return found


def read_group(
    folder: Path, table: str, column: str, stem: str, row: int
) -> tuple[int, pa.ChunkedArray]:
    """One column of the rows around a row of a part, and the first of them.

    Raises whatever Arrow or the system raise if it is not there.
    """
    start = 0
    try:
        with sealed(folder / f"{stem}.parquet", table, {column}) as file:
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if row < start + count:
                    return start, _group(file, table, group, [column])[column]
                start += count
    except FileNotFoundError:
        with opened(folder / f"{stem}.arrows") as (live_file, size):
            schema = SCHEMAS[table]
            for message in live.messages(live_file, size, schema):
                if isinstance(message, live.Damage):
                    continue
                if row < start + message.rows:
                    return start, live.read_batch(live_file, message, schema).column(column)
                start += message.rows
    raise ValueError(f"{stem} has no row {row}")


def _part(
    folder: Path, table: str, stem: str, kinds: list[str], columns: list[str], damage: list[Gap]
) -> list[Stretch]:
    """The rows of one part, from whichever of its files gives most."""
    best: list[Stretch] = []
    told: list[Gap] = []
    for kind in kinds:
        read = sealed_rows if kind == "parquet" else live_rows
        stretches: list[Stretch] = []
        found: list[Gap] = []
        try:
            for start, rows in read(folder / f"{stem}.{kind}", table, columns):
                if isinstance(rows, Exception):
                    found.append(_gap(folder, stem, _reason(rows), "the rest is shown"))
                else:
                    stretches.append(Stretch(stem, start, rows))
        except FileNotFoundError as gone:
            raise Replaced from gone
        except Exception as broken:
            # Whatever a reader of foreign bytes may raise.
            found.append(_gap(folder, stem, _reason(broken), "everything before is shown"))
        if not found:
            return stretches
        if not best or sum(s.rows.num_rows for s in stretches) > sum(s.rows.num_rows for s in best):
            best, told = stretches, found
    damage += told
    return best


Piece = tuple[int, "pa.Table | Exception"]


def sealed_rows(path: Path, table: str, columns: list[str]) -> Iterator[Piece]:
    """The row groups of a sealed part, each with its first row, damaged ones as the exception."""
    with sealed(path, table, set(columns)) as file:
        start = 0
        for group in range(file.num_row_groups):
            try:
                yield start, _group(file, table, group, columns)
            except Exception as broken:
                yield start, broken
            start += file.metadata.row_group(group).num_rows


def live_rows(path: Path, table: str, columns: list[str]) -> Iterator[Piece]:
    """The batches of a live part up to where it breaks off, damaged ones as the exception."""
    schema = SCHEMAS[table]
    with opened(path) as (file, size):
        start = 0
        for message in live.messages(file, size, schema):
            if isinstance(message, live.Damage):
                yield start, message
                continue
            try:
                batch = live.read_batch(file, message, schema)
                yield start, pa.Table.from_batches([batch]).select(columns)
            except Exception as broken:
                yield start, broken
            start += message.rows


@contextmanager
def sealed(path: Path, table: str, columns: set[str]) -> Iterator[pq.ParquetFile]:
    """A sealed part, opened with care."""
    with opened(path) as (file, size):
        texts = [f.name for f in SCHEMAS[table] if f.type in _TEXT and f.name in columns]
        # Text stays folded until its length is known.
        parquet = pq.ParquetFile(
            str(path), read_dictionary=texts, page_checksum_verification=True, pre_buffer=False
        )
        with parquet:
            pages.check(file, size, parquet.metadata, columns)
            yield parquet


def _group(file: pq.ParquetFile, table: str, group: int, columns: list[str]) -> pa.Table:
    rows = file.read_row_group(group, columns=columns, use_threads=False)
    rows.validate(full=True)
    wanted = pa.schema([SCHEMAS[table].field(name) for name in columns])
    if set(rows.column_names) != set(columns):
        raise ValueError(f"it lacks the column {', '.join(set(columns) - set(rows.column_names))}")
    text = sum(_unfolded(column) for column in rows.columns if pa.types.is_dictionary(column.type))
    if text > _TEXT_PER_BYTE * file.metadata.row_group(group).total_byte_size + _SPARE_TEXT:
        raise ValueError(f"its text would unfold to {text} bytes")
    return rows.select(columns).cast(wanted)


def _unfolded(column: pa.ChunkedArray) -> int:
    """The bytes that a column of repeated text takes when written out."""
    total = 0
    for chunk in column.chunks:
        lengths = pa.compute.binary_length(chunk.dictionary).take(chunk.indices)
        total += pa.compute.sum(pa.compute.cast(lengths, pa.int64())).as_py() or 0
    return total


def _reason(broken: Exception) -> str:
    text = str(broken).partition("\n")[0]
    return f"this part cannot be read ({text[:200] or type(broken).__name__})"


def _gap(folder: Path, what: str, why: str, remedy: str) -> Gap:
    return Gap(what, f"{folder.parent.name}/{folder.name}", why, remedy)
