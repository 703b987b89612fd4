"""Read the parts of a table: sealed ones from Parquet, the live one from its stream.

Input: a folder and the columns wanted. Output: rows in the order in which they were written, and
where each run of them lies. A damaged part, row group or batch is left out and reported; the rest
is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.events.model import Gap
from clew.program_errors import pass_on
from clew.store.format import live_stream
from clew.store.format.schema import SCHEMAS, footer_name
from clew.store.format.upgrade import added_columns, known_schemas
from clew.store.read import parquet_guard
from clew.store.read.allowance import Allowance
from clew.store.safe_files import opened

_TEXT = pa.string()
_FOLDED = pa.dictionary(pa.int32(), _TEXT)
# The column whose text is JSON, which takes more memory as objects than as text.
_JSON = "row"
# The most gaps listed one by one.
_MOST_TOLD = 20
# How often to read a table whose parts are sealed meanwhile.
_MOST_TRIES = 50


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that lie together in one part, from `start` on, counted within the part."""

    stem: str
    start: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Query:
    """What to read of a table: some columns, in how much memory.

    If `folded`, text stays dictionary-encoded. Without an allowance each file gets a separate one.
    """

    table: str
    columns: list[str]
    folded: bool = False
    allowance: Allowance | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the columns."""
        fields = [SCHEMAS[self.table].field(name) for name in self.columns]
        return pa.schema(
            [f.with_type(_FOLDED) if self.folded and f.type == _TEXT else f for f in fields]
        )


def read_table(
    folder: Path, table: str, columns: list[str], damage: list[Gap]
) -> tuple[pa.Table, list[RowRun]]:
    """Return some columns of a table, and the runs of rows they consist of."""
    return read_query(folder, Query(table, columns), damage)


def read_query(folder: Path, query: Query, damage: list[Gap]) -> tuple[pa.Table, list[RowRun]]:
    """Return the rows of a query, and the runs they consist of.

    Parts that are added meanwhile are ignored. If a part is sealed meanwhile, which moves rows of
    open calls to the next part, the table is read again.
    """
    # Sealed parts do not change, and need not be read again.
    sealed: dict[str, tuple[list[RowRun], list[Gap]]] = {}
    spent: dict[str, int] = {}
    for _ in range(_MOST_TRIES):
        told: list[Gap] = []
        stretches: list[RowRun] = []
        parts = sorted(parts_of(folder, query.table, told).items())
        for stem, kinds in parts:
            if stem not in sealed:
                gaps: list[Gap] = []
                with _spent_once(query.allowance, stem, spent):
                    read = list(_part(folder, stem, kinds, query, gaps)), gaps
                if kinds != ["arrows"]:
                    sealed[stem] = read
            else:
                read = sealed[stem]
            stretches += read[0]
            told += read[1]
        live_ones = [stem for stem, kinds in parts if kinds == ["arrows"]]
        if all((folder / f"{stem}.arrows").exists() for stem in live_ones):
            break
    damage += _shortened(told)
    empty = query.schema.empty_table()
    return pa.concat_tables([empty, *(s.rows for s in stretches)]), stretches


@contextmanager
def _spent_once(allowance: Allowance | None, stem: str, spent: dict[str, int]) -> Iterator[None]:
    """Yield back what an earlier reading of a part took from the allowance."""
    if allowance is None:
        yield
        return
    allowance.left += spent.pop(stem, 0)
    before = allowance.left
    yield
    spent[stem] = before - allowance.left


def size_of_parts(folder: Path) -> int:
    """Return the bytes of all parts of all tables; 0 if the folder is gone."""
    named = re.compile(rf"({'|'.join(SCHEMAS)})-\d{{5,9}}\.(parquet|arrows)")
    found = [path for path in folder.glob("*") if named.fullmatch(path.name)]
    total = 0
    for path in found:
        with suppress(OSError):  # sealed or removed meanwhile
            total += path.lstat().st_size
    return total


def parts_of(folder: Path, table: str, damage: list[Gap]) -> dict[str, list[str]]:
    """Return the parts of a table by name, each with its kinds of file, sealed before live."""
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
    missing = max(numbers) - min(numbers) + 1 - len(numbers) if numbers else 0
    damage += missing_parts(folder, table, missing)
    return found


def first_part(folder: Path, table: str) -> int:
    """Return the number of the first existing part of a table."""
    names = parts_of(folder, table, [])
    return min((int(stem.rpartition("-")[2]) for stem in names), default=0)


def missing_parts(folder: Path, table: str, count: int) -> list[Gap]:
    """Return a gap for missing parts of a table."""
    if count <= 0:
        return []
    return [_gap(folder, table, f"{count} of its parts are missing", "the others are shown")]


def read_group(
    folder: Path, table: str, column: str, stem: str, row: int, footers: dict[str, Footer]
) -> tuple[int, pa.ChunkedArray]:
    """Return one column of the row group that has a row of a part, and the group's first row.

    `footers` caches those of sealed parts, which take longer to read than a few rows. Raises what
    Arrow or the system raise if it is missing.
    """
    start = 0
    try:
        with sealed(folder / f"{stem}.parquet", table, footers.get(stem)) as part:
            footers[stem] = part.footer
            for group, count in enumerate(part.rows):
                if row < start + count:
                    return start, part.read(group, Query(table, [column]))[column]
                start += count
    except FileNotFoundError:
        with opened(folder / f"{stem}.arrows") as (live_file, size):
            for message in live_stream.messages(live_file, size, known_schemas(table)):
                if isinstance(message, live_stream.Damage):
                    continue
                if row < start + message.rows:
                    return start, live_stream.read_batch(live_file, message).column(column)
                start += message.rows
    raise ValueError(f"{stem} has no row {row}")


def _part(
    folder: Path, stem: str, kinds: list[str], query: Query, damage: list[Gap]
) -> list[RowRun]:
    """Return the rows of one part, from whichever of its files has most."""
    best: list[RowRun] = []
    told: list[Gap] | None = None
    # A live part that is gone was sealed since the folder was listed.
    for kind in kinds if "parquet" in kinds else [*kinds, "parquet"]:
        if told == []:
            break
        try:
            stretches, found = _file(folder / f"{stem}.{kind}", query)
        except FileNotFoundError as gone:
            stretches, found = [], [_gap(folder, stem, _reason(gone), "the rest is shown")]
            if kind not in kinds:
                continue
        if told is None or _count(stretches) > _count(best) or not found:
            best, told = stretches, found
    damage += told or []
    return best


def _file(path: Path, query: Query) -> tuple[list[RowRun], list[Gap]]:
    """Return the rows of one file of a part, and gaps for what is lost."""
    stretches: list[RowRun] = []
    lost: list[Gap] = []
    read = _sealed_pieces if path.suffix == ".parquet" else _live_pieces
    try:
        for start, rows in read(path, query):
            if isinstance(rows, Exception):
                lost.append(_gap(path.parent, path.stem, _reason(rows), "the rest is shown"))
            else:
                stretches.append(RowRun(path.stem, start, rows))
    except FileNotFoundError:
        raise
    except Exception as broken:
        pass_on(broken)
        # Reading untrusted bytes may raise anything.
        lost.append(_gap(path.parent, path.stem, _reason(broken), "everything before is shown"))
    return stretches, lost


def _count(stretches: list[RowRun]) -> int:
    return sum(stretch.rows.num_rows for stretch in stretches)


Piece = tuple[int, "pa.Table | Exception"]


def sealed_rows(path: Path, table: str, columns: list[str]) -> Iterator[Piece]:
    """Yield the row groups of a sealed part, each with its first row; an exception if damaged."""
    return _sealed_pieces(path, Query(table, columns))


def live_rows(path: Path, table: str, columns: list[str]) -> Iterator[Piece]:
    """Yield the batches of a live part up to where it breaks off; an exception if damaged."""
    return _live_pieces(path, Query(table, columns))


def _sealed_pieces(path: Path, query: Query) -> Iterator[Piece]:
    with sealed(path, query.table) as part:
        start = 0
        if part.cut_short is not None:
            yield start, part.cut_short
        for group, count in enumerate(part.rows):
            try:
                yield start, part.read(group, query)
            except Exception as broken:
                pass_on(broken)
                yield start, broken
            start += count


def _live_pieces(path: Path, query: Query) -> Iterator[Piece]:
    with opened(path) as (file, size):
        start = 0
        allowance = query.allowance or Allowance(size)
        schema = query.schema
        for message in live_stream.messages(file, size, known_schemas(query.table)):
            if isinstance(message, live_stream.Damage):
                yield start, message
                continue
            try:
                batch = live_stream.read_batch(file, message)
                rows = _completed(pa.Table.from_batches([batch]), query)
                allowance.rows(query.table, len(rows), _items(rows), message.size)
                if _JSON in query.columns:
                    _spend_text(allowance, rows)
                yield start, rows if rows.schema.equals(schema) else rows.cast(schema)
            except Exception as broken:
                pass_on(broken)
                yield start, broken
            start += message.rows


@dataclass(frozen=True, slots=True)
class Footer:
    """Footer of a sealed part: as Arrow has it, and as it was checked before."""

    metadata: pq.FileMetaData
    groups: list[parquet_guard.RowGroup]


class SealedPart:
    """A sealed part, opened with care."""

    def __init__(self, path: Path, table: str, file: int, size: int, footer: Footer | None) -> None:
        self.cut_short: Exception | None = None
        if footer is None:
            footer, self.cut_short = _footer(path)
        self.footer = footer
        names = footer.metadata.schema.to_arrow_schema().names
        # Columns that a later version than this part's added.
        self._unwritten = added_columns(table) - set(names)
        texts = [
            f.name for f in SCHEMAS[table] if f.type == _TEXT and f.name not in self._unwritten
        ]
        # Text stays dictionary-encoded until its length is known.
        self.parquet = pq.ParquetFile(
            str(path),
            metadata=footer.metadata,
            read_dictionary=texts,
            page_checksum_verification=True,
            pre_buffer=False,
        )
        self._file, self._size = file, size
        self._allowance = Allowance(size)
        self.rows = [group.rows for group in footer.groups]

    def read(self, group: int, query: Query) -> pa.Table:
        """Return some columns of a row group; raise what Arrow raises if it is damaged."""
        written = [name for name in query.columns if name not in self._unwritten]
        allowance = query.allowance or self._allowance
        parquet_guard.spend(
            allowance, self._file, self._size, query.table, self.footer.groups[group], set(written)
        )
        rows = self.parquet.read_row_group(group, columns=written, use_threads=False)
        missing = set(written) - set(rows.column_names)
        if missing:
            raise ValueError(f"it lacks the column {', '.join(sorted(missing))}")
        rows.validate(full=True)
        if not query.folded or _JSON in written:
            _spend_text(allowance, rows)
        return _completed(rows, query).cast(query.schema)


def _completed(rows: pa.Table, query: Query) -> pa.Table:
    """Select columns; one that an earlier version did not write is null."""
    written = rows.column_names
    if written == query.columns:
        return rows
    for name in set(query.columns).difference(written):
        kind = SCHEMAS[query.table].field(name).type
        rows = rows.append_column(name, pa.nulls(len(rows), kind))
    return rows.select(query.columns)


@contextmanager
def sealed(path: Path, table: str, footer: Footer | None = None) -> Iterator[SealedPart]:
    """Open a sealed part, with its footer if that is known.

    A part that is cut short is opened with the copy of its footer.
    """
    with opened(path) as (file, size):
        part = SealedPart(path, table, file, size, footer)
        with part.parquet:
            yield part


def _footer(path: Path) -> tuple[Footer, Exception | None]:
    """Return the footer of a part, and why it came from its copy, if it did."""
    try:
        return _read_footer(path), None
    except Exception as broken:
        pass_on(broken)
        copy = path.with_name(footer_name(path.stem))
        if not copy.is_file():
            raise
        return _read_footer(copy), broken


def _read_footer(path: Path) -> Footer:
    groups = parquet_guard.read_groups(path)
    return Footer(pq.read_metadata(str(path)), groups)


def _items(rows: pa.Table) -> int:
    """Return the number of items of all lists."""
    lists = (column for column in rows.columns if pa.types.is_list(column.type))
    return sum(len(chunk.values) for column in lists for chunk in column.chunks)


def _spend_text(allowance: Allowance, rows: pa.Table) -> None:
    """Subtract from an allowance what decoded text takes in every row, and JSON as objects."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_dictionary(column.type) or column.type == _TEXT:
            length = _summed(column, pc.binary_length)
            if name != _JSON:
                allowance.spend(length, f"{length} bytes of text")
            else:
                # Each element of JSON except the first comes after one of these characters.
                marks = (partial(pc.count_substring, pattern=mark) for mark in ",[{")
                allowance.json(length, sum(_summed(column, count) for count in marks))


def _summed(column: pa.ChunkedArray, measure: Callable[[Any], Any]) -> int:
    """Sum a measure of texts over all rows, computing it once per text."""
    total = 0
    for chunk in column.chunks:
        folded = pa.types.is_dictionary(chunk.type)
        found = measure(chunk.dictionary if folded else chunk)
        found = pc.cast(found.take(chunk.indices) if folded else found, pa.int64())
        total += pc.sum(found).as_py() or 0
    return total


def _shortened(gaps: list[Gap]) -> list[Gap]:
    """Keep the first of very many gaps, and add one with the number of the others."""
    more = len(gaps) - _MOST_TOLD
    if more <= 0:
        return gaps
    last = Gap(f"{more} more parts", gaps[0].where, "they cannot be read", "the rest is shown")
    return [*gaps[:_MOST_TOLD], last]


def _reason(broken: Exception) -> str:
    text = str(broken).partition("\n")[0]
    return f"this part cannot be read ({text[:200] or type(broken).__name__})"


def _gap(folder: Path, what: str, why: str, remedy: str) -> Gap:
    return Gap(what, f"{folder.parent.name}/{folder.name}", why, remedy)
