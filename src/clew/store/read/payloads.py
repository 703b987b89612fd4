"""Statistics and data of values, read on access: statistics at once, data one by one.

Input: the rows of the values table without their data. Output: `Kept`s whose payloads read only
their own bytes, and check them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clew.errors import BadTrace
from clew.events.columns import Ints
from clew.events.model import Gap
from clew.events.vocabulary import Kept, Payload
from clew.program_errors import pass_on
from clew.store.format.checksums import Checksum
from clew.store.format.schema import STAT_NAMES
from clew.store.format.shards import Shards
from clew.store.read.table_parts import Footer, RowRun, read_group

_COUNTS = ("nan", "inf", "zeros", "count")
# More elements than any tensor has, few enough that sums over a million tensors do not overflow.
_MOST_ELEMENTS = 1 << 42
_PLACE = ("data_dtype", "data_shape", "data_of", "shard", "offset", "length", "checksum")
# Bytes of inline data kept in memory.
_MOST_CACHED = 32 << 20
KEPT_COLUMNS = [*STAT_NAMES, *_PLACE]


class StoredPayload(Payload):
    """A payload whose bytes are read on access."""

    @property
    def data(self) -> Any:
        fetch: Callable[[], bytes] = self[2][0]
        return fetch()

    @property
    def nbytes(self) -> int:
        """Return how many bytes there are, according to the table."""
        length: int = self[2][1]
        return length


class Column:
    """A column read one row at a time, without converting numbers through Arrow."""

    def __init__(self, cells: pa.ChunkedArray) -> None:
        whole = cells.combine_chunks()
        self.valid: NDArray[np.bool_] = whole.is_valid().to_numpy(zero_copy_only=False)
        is_number = pa.types.is_integer(whole.type) or pa.types.is_floating(whole.type)
        self._numbers = _filled(whole) if is_number else None
        self._cells: Any = None if is_number else whole

    def __getitem__(self, row: int) -> Any:
        if not self.valid[row]:
            return None
        return self._cells[row].as_py() if self._numbers is None else self._numbers[row].item()

    def take(self, rows: Ints) -> pa.Array:
        """Return some rows as Arrow."""
        if self._numbers is None:
            return self._cells.take(pa.array(rows))
        return pa.array(self._numbers[rows], mask=~self.valid[rows])

    def limit(self, most: int) -> None:
        """Clip numbers to the range from 0 to `most`."""
        self._numbers = np.clip(self.numbers(), 0, most)

    def numbers(self) -> NDArray[Any]:
        """Return all numbers, 0 where there is none."""
        assert self._numbers is not None
        return self._numbers


def _filled(cells: pa.Array) -> NDArray[Any]:
    filled: NDArray[Any] = pc.fill_null(cells, 0).to_numpy(zero_copy_only=False)
    return filled


class KeptOnDisk(Mapping[int, Kept]):
    """Statistics and data of values, by their rows in the columns.

    `numbers` are the value numbers in the rows of the values table, and `value_rows` maps them to
    rows in the columns.
    """

    def __init__(
        self,
        folder: Path,
        numbers: Ints,
        value_rows: Callable[[Ints], Ints],
        rows: pa.Table,
        stretches: list[RowRun],
        checksum: Checksum,
        shards: Shards,
        check: Callable[[], None],
        damage: list[Gap],
    ) -> None:
        self._folder = folder
        self._damage = damage
        self._checksum = checksum
        self._shards = shards
        self._check = check
        self._columns = {
            name: Column(rows[name]) for name in KEPT_COLUMNS if rows[name].null_count < len(rows)
        }
        for name in _COUNTS:
            if name in self._columns:
                self._columns[name].limit(_MOST_ELEMENTS)
        self._stretches = [(stretch.stem, stretch.start) for stretch in stretches]
        self._starts = np.cumsum([0, *(s.rows.num_rows for s in stretches)]).tolist()
        has_data = self._has("length", len(rows))
        kept = np.flatnonzero(has_data | self._has("count", len(rows)))
        known = value_rows(numbers[kept])
        # In order of their numbers; of several rows of one value the last counts.
        order = np.argsort(known, kind="stable")[np.count_nonzero(known < 0) :]
        last = np.append(np.diff(known[order]) != 0, True)[: len(order)]
        self._kept_numbers: Ints = known[order][last]
        self._kept_rows: Ints = kept[order][last]
        # Rows that hold data themselves, for the values that refer to it.
        elsewhere = self._has("shard", len(rows)) | self._has("data_of", len(rows))
        inline = np.flatnonzero(has_data & ~elsewhere) if "data_of" in self._columns else kept[:0]
        self._inline_rows = dict(zip(numbers[inline].tolist(), inline.tolist(), strict=True))
        # The blocks of data and fingerprints read last, as neighbours are often read in sequence.
        self._cached: dict[tuple[str, str, int], Any] = {}
        self._footers: dict[str, Footer] = {}

    @cached_property
    def _rows(self) -> dict[int, int]:
        pairs = zip(self._kept_numbers.tolist(), self._kept_rows.tolist(), strict=True)
        return dict(pairs)

    def __len__(self) -> int:
        return len(self._kept_numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept_numbers.tolist())

    def __contains__(self, number: object) -> bool:
        return number in self._rows

    def __getitem__(self, number: int) -> Kept:
        row = self._rows[number]
        stats = None
        if self._field("count", row) is not None:
            found = ((name, self._field(name, row)) for name in STAT_NAMES)
            stats = {name: value for name, value in found if value is not None}
        has_data = self._field("length", row) is not None
        payload = self._payload(number, row) if has_data else None
        return Kept(stats, payload, partial(self._fingerprint, row))

    def _payload(self, number: int, row: int) -> StoredPayload:
        dtype, shape = self._field("data_dtype", row), self._field("data_shape", row)
        fetch = partial(self._fetch, number, row), self._field("length", row)
        return StoredPayload(str(dtype), tuple(shape or ()), fetch)

    def arrays(
        self, wanted: range | None = None
    ) -> tuple[Ints, dict[str, pa.Array], dict[int, Payload]]:
        """Return the values that have statistics or data, in order; the statistics as columns; the
        data.
        """
        first, end = (
            (0, len(self))
            if wanted is None
            else np.searchsorted(self._kept_numbers, [wanted.start, wanted.stop]).tolist()
        )
        numbers, rows = self._kept_numbers[first:end], self._kept_rows[first:end]
        stats = {
            name: self._columns[name].take(rows) for name in STAT_NAMES if name in self._columns
        }
        marks = self._fingerprints(rows)
        stats |= {} if marks is None else {"fingerprint": marks}
        has_data = self._has("length", self._starts[-1])[rows]
        pairs = zip(numbers[has_data].tolist(), rows[has_data].tolist(), strict=True)
        return numbers, stats, {number: self._payload(number, row) for number, row in pairs}

    def with_data(self) -> Ints:
        """Return the values that have data, in order."""
        if "length" not in self._columns:
            return self._kept_numbers[:0]
        return self._kept_numbers[self._columns["length"].valid[self._kept_rows]]

    def stat_columns(self) -> tuple[Ints, dict[str, NDArray[Any]]]:
        """Return the values that have statistics, and those as columns; NaN for missing ones."""
        if "count" not in self._columns:
            return np.zeros(0, dtype=np.int64), {}
        taken = self._columns["count"].valid[self._kept_rows]
        numbers, rows = self._kept_numbers[taken], self._kept_rows[taken]
        # If all are wanted in order, nothing need be gathered.
        every = len(rows) == self._starts[-1] and np.array_equal(rows, np.arange(len(rows)))
        found = {}
        for name in set(STAT_NAMES) - {"digest"}:
            column = self._columns.get(name)
            if column is not None:
                taken, valid = column.numbers(), column.valid
                if not every:
                    taken, valid = taken[rows], valid[rows]
                is_float = taken.dtype.kind == "f"
                found[name] = np.where(valid, taken, np.nan) if is_float else taken
        return numbers, found

    def digests(self) -> Iterator[tuple[int, str]]:
        """Give the values that have a digest, with it."""
        column = self._columns.get("digest")
        if column is None:
            return iter(())
        taken = (column.valid & self._has("count", self._starts[-1]))[self._kept_rows]
        texts: list[str] = column.take(self._kept_rows[taken]).to_pylist()
        return zip(self._kept_numbers[taken].tolist(), texts, strict=True)

    def fingerprints(self, numbers: Sequence[int]) -> dict[int, NDArray[np.float64]]:
        """Return the packed fingerprints of those of some values that have one."""
        wanted = [number for number in numbers if number in self._rows]
        rows: Ints = np.array([self._rows[number] for number in wanted], dtype=np.int64)
        marks = self._fingerprints(rows) if len(rows) else None
        if marks is None:
            return {}
        flat, ends = marks.values.to_numpy(), marks.offsets.to_numpy().tolist()
        known = marks.is_valid().to_numpy(zero_copy_only=False).tolist()
        return {
            number: flat[ends[at] : ends[at + 1]] for at, number in enumerate(wanted) if known[at]
        }

    def gaps(self) -> list[Gap]:
        """Return gaps for data that lies beyond the end of its shard."""
        if "shard" not in self._columns:
            return []
        in_shard = self._columns["shard"].valid
        shards, offsets, lengths = (
            self._columns[name].numbers()[in_shard] for name in ("shard", "offset", "length")
        )
        lost = 0
        for shard in np.unique(shards).tolist():
            mine = shards == shard
            size = self._shards.size(shard)
            lost += int(((offsets[mine] > size) | (lengths[mine] > size - offsets[mine])).sum())
        if not lost:
            return []
        where = f"{self._folder.parent.name}/{self._folder.name}"
        return [
            Gap(f"the data of {lost} values", where, "a shard is cut short or missing",
                "their facts and statistics are shown")
        ]  # fmt: skip

    def _has(self, name: str, count: int) -> NDArray[np.bool_]:
        column = self._columns.get(name)
        return np.zeros(count, dtype=bool) if column is None else column.valid

    def _field(self, name: str, row: int) -> Any:
        column = self._columns.get(name)
        return None if column is None else column[row]

    def _fetch(self, number: int, row: int) -> bytes:
        shard, length = self._field("shard", row), self._field("length", row)
        try:
            if shard is None:
                data = self._inline(row)
            else:
                data = self._shards.read(shard, self._field("offset", row), length)
            sound = len(data) == length and self._checksum(data) == self._field("checksum", row)
        except Exception as broken:
            pass_on(broken)
            # Reading untrusted bytes may raise anything.
            sound = False
        if not sound:
            self._check()
            raise BadTrace(
                f"the data of value {number} in {self._folder} is damaged or missing; "
                "its facts and statistics are still readable"
            )
        return data

    def _inline(self, row: int) -> bytes:
        owner = self._field("data_of", row)
        return bytes(self._read("data", row if owner is None else self._inline_rows[owner]).as_py())

    def _fingerprint(self, row: int) -> bytes | None:
        """Return the packed fingerprint of a row, None if there is none that can be read."""
        try:
            numbers = self._read("fingerprint", row)
            return None if not numbers.is_valid else numbers.values.to_numpy().tobytes()
        except Exception as broken:
            self._unread(broken)
            return None

    def _fingerprints(self, rows: Ints) -> pa.Array | None:
        """Return the packed fingerprints of some rows, None if there is none."""
        stretch = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(stretch, kind="stable")
        pieces = [pa.array([], pa.list_(pa.float64()))]
        for at in np.unique(stretch).tolist():
            mine = rows[order][stretch[order] == at]
            try:
                column, start = self._block("fingerprint", int(mine[0]))
                place = mine - self._starts[at] + self._stretches[at][1] - start
                cells = column.take(pa.array(place))
            except Exception as broken:
                self._unread(broken)
                cells = pa.nulls(len(mine), pieces[0].type)
            pieces += cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]
        found = pa.concat_arrays(pieces)
        whole = found.null_count < len(found)
        return found.take(pa.array(np.argsort(order, kind="stable"))) if whole else None

    def _unread(self, broken: Exception) -> None:
        """Report that a block of fingerprints is damaged: reading one may raise anything."""
        pass_on(broken)
        self._check()
        where = f"{self._folder.parent.name}/{self._folder.name}"
        gap = Gap("fingerprints of values", where, "a part of the values is damaged",
                  "their statistics are shown")  # fmt: skip
        if gap not in self._damage:
            self._damage.append(gap)

    def _read(self, name: str, row: int) -> pa.Scalar:
        """Return the cell of a column that is read in blocks of rows."""
        column, start = self._block(name, row)
        at = bisect.bisect_right(self._starts, row) - 1
        return column[row - self._starts[at] + self._stretches[at][1] - start]

    def _block(self, name: str, row: int) -> tuple[Any, int]:
        """Return the block of a column that has a row, and the block's first row in its part."""
        at = bisect.bisect_right(self._starts, row) - 1
        stem, first = self._stretches[at]
        inside = first + row - self._starts[at]
        column = self._cached.pop((name, stem, first), None)
        if column is None:
            start, column = read_group(self._folder, "values", name, stem, inside, self._footers)
            if start != first:
                # The part was sealed since its rows were read, with other row groups.
                return column, start
            while sum(c.nbytes for c in self._cached.values()) + column.nbytes > _MOST_CACHED:
                if not self._cached:
                    break
                del self._cached[next(iter(self._cached))]
        self._cached[name, stem, first] = column
        return column, first
