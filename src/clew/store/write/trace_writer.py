"""Write the parts of a trace into one rank's folder: tables, payloads and values before events.

Input: columns and tables. Output: live parts that are rolled to Parquet, and tensor shards. Because
of this order, the files that a kill leaves are complete up to some event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from clew.events.columns import Columns, Ints
from clew.events.vocabulary import Payload
from clew.store.format.arrow import listed_array, record_batch
from clew.store.format.json_rows import dump, to_json
from clew.store.format.live_stream import LiveFile
from clew.store.format.processes import this_process
from clew.store.format.schema import SCHEMAS, part_name
from clew.store.format.shards import ShardWriter, StoredShards, value_name
from clew.store.format.table_list import TABLES
from clew.store.storage import LocalStorage
from clew.store.write.dedup import StoredAt, WrittenContents, key_of, strong_digest
from clew.store.write.seal_part import seal_part
from clew.store.write.value_rows import KeptRows, row_of, scattered, value_rows

# Tables for which a batch has only the new rows.
_APPENDED = ("attribute", "mode")
NOTHING_FREED: Ints = np.zeros((2, 0), dtype=np.int64)
_INLINE = 8 << 10
_DATA_COLUMNS = (
    "data", "data_of", "data_dtype", "data_shape", "shard", "offset", "length", "checksum",
)  # fmt: skip
_ROLL_ROWS = 200_000
_ROLL_BYTES = 64 << 20


# Columns of rows to write.
Rows: TypeAlias = dict[str, Any]


class Table(Protocol):
    """One table of a trace, written part by part."""

    def __init__(self, folder: Path, table: str) -> None: ...

    def write(self, columns: Rows, to_come_again: int = 0) -> None:
        """Append rows; newer rows may replace the last `to_come_again`."""

    def seal(self) -> None:
        """Finish the part; the next rows begin another."""

    def roll(self) -> None:
        """Finish the part; the next begins with the rows that newer ones may replace."""

    @property
    def index(self) -> int:
        """Return the number of the next part, or of the one being written."""

    def close(self) -> None:
        """Close the part without sealing it."""


class LiveTable:
    """One table of the trace: a live Arrow stream, rolled to Parquet when it is full or done."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self.index = 0
        self._live: LiveFile | None = None
        # The last rows, which are of open calls.
        self._open_rows: pa.RecordBatch | None = None

    def write(self, columns: Rows, to_come_again: int = 0) -> None:
        """Append rows; they are in the file when this returns.

        The last `to_come_again` are of open calls: newer ones will replace them.
        """
        schema = SCHEMAS[self._table]
        batch = record_batch(columns, schema)
        live = self._append(batch)
        self._open_rows = batch.slice(len(batch) - to_come_again) if to_come_again else None
        if live.rows >= _ROLL_ROWS or live.size >= _ROLL_BYTES:
            self.roll()

    def roll(self) -> None:
        """Turn the live part into Parquet; the next begins with the rows of open calls."""
        moved = self._open_rows
        live = self._end()
        if moved is not None:
            # Write them into the next part first, so that they are always in one.
            self._append(moved)
        if live is not None:
            seal_part(live.path, self._table, moved=moved)

    def seal(self) -> None:
        """Turn the live part into Parquet; the next rows begin another."""
        live = self._end()
        if live is not None:
            seal_part(live.path, self._table)

    def _end(self) -> LiveFile | None:
        """End the live part, if there is one; the next rows begin another."""
        live, self._live = self._live, None
        if live is not None:
            self.index += 1
            live.end()
        return live

    def _append(self, batch: pa.RecordBatch) -> LiveFile:
        if self._live is None:
            path = self._folder / part_name(self._table, self.index, live=True)
            self._live = LiveFile(path, SCHEMAS[self._table])
        self._live.write(batch)
        if self._live.is_gone:
            raise FileNotFoundError(f"{self._live.path} was removed while it was written")
        return self._live

    def close(self) -> None:
        """Close the live part without sealing it."""
        if self._live is not None:
            self._live.close()


@dataclass(frozen=True, slots=True)
class Ends:
    """First parts of events and values, and first shard, that come after a stretch."""

    events: int
    values: int
    shard: int


class TraceFiles:
    """Writes parts of a trace into one rank's folder."""

    def __init__(self, folder: Path, kind: type[Table] = LiveTable) -> None:
        self._folder = folder
        self._files: dict[str, Table] = {table: kind(folder, table) for table in SCHEMAS}
        self._shards = ShardWriter(folder)
        self._contents = self._no_contents()
        self._known: dict[str, int] = {}
        self._sources: set[str] = set()
        self._environment = ""
        self._values = 0
        # Events that are there, and events that a ring dropped.
        self._events = self._fallen = 0

    def sign(self) -> None:
        """Record which process writes these files."""
        rows = _no_rows()
        _append(rows, "writer", 0, to_json(this_process()))
        self._files["tables"].write(rows)

    def write_events(self, rows: Rows, to_come_again: int = 0) -> None:
        """Append rows of the event table, whose values are written already.

        The last `to_come_again` are of open calls.
        """
        count = len(rows["id"])
        if count:
            self._files["events"].write(rows, to_come_again=to_come_again)
        self._events += count - to_come_again

    def seal(self) -> None:
        """Finish every file."""
        rows = _no_rows()
        _append(rows, "end", 0, to_json({"events": self._events, "values": self._values}))
        self._files["tables"].write(rows)
        self.roll()

    def roll(self) -> None:
        """Seal all files; more may follow, into new ones."""
        self._shards.seal()
        for file in self._files.values():
            file.seal()

    def next_stretch(self, carried: pa.Table) -> Ends:
        """Begin parts that can be read without those before: with some rows of earlier values.

        Returns where the stretch before ends.
        """
        self._shards.seal()
        self._contents = self._no_contents()
        self._files["values"].seal()
        values = self._files["values"].index
        if len(carried):
            columns = zip(carried.column_names, carried.combine_chunks().columns, strict=True)
            self._files["values"].write({name: column.chunk(0) for name, column in columns})
        self._files["events"].roll()
        return Ends(self._files["events"].index, values, self._shards.index)

    def let_fall(self, events: int, last: int, ends: Ends) -> None:
        """Record that more events were dropped from a ring, with all parts before `ends`."""
        self._events -= events
        self._fallen += events
        rows = _no_rows()
        fallen = {"events": self._fallen, "last": last, "parts": [ends.events, ends.values]}
        _append(rows, "fallen", 0, to_json(fallen))
        self._files["tables"].write(rows)

    def _no_contents(self) -> WrittenContents:
        folder = self._folder
        return WrittenContents(StoredShards(LocalStorage(folder.parent), folder.name).read)

    def close(self) -> None:
        """Close every file without sealing it."""
        self._shards.close()
        for file in self._files.values():
            file.close()

    def write_tables(self, columns: Columns) -> None:
        """Write the new rows of the tables."""
        rows = _no_rows()
        for table, kind in TABLES.items():
            if table in _APPENDED:
                continue
            listed: list[object] = getattr(columns, kind.attribute)
            for number in range(self._known.get(table, 0), len(listed)):
                _append(rows, table, number, dump(listed[number]))
            self._known[table] = len(listed)
        for file, text in columns.sources.items():
            if file not in self._sources:
                _append(rows, "source", len(self._sources), to_json([file, text]))
                self._sources.add(file)
        for table, appended in {
            "attribute": columns.attributes,
            "mode": columns.modes.items(),
        }.items():
            for number, row in enumerate(appended, self._known.get(table, 0)):
                _append(rows, table, number, dump(row))
            self._known[table] = self._known.get(table, 0) + len(appended)
        environment = to_json(columns.environment)
        if environment != self._environment:
            _append(rows, "environment", 0, environment)
        if rows["row"]:
            self._files["tables"].write(rows)
        self._environment = environment

    def write_values(
        self, columns: Columns, taken: slice, kept: KeptRows, freed: Ints = NOTHING_FREED
    ) -> Rows:
        """Append some rows of the values in `columns`, their payloads before them; return the rows.

        Facts that became known later than their value are rows that add to the one already written:
        statistics, data, and when its memory was `freed`.
        """
        first, count = self._values, len(columns.meta[taken])
        known_later = np.append(kept.numbers, freed[0])
        late = np.unique(known_later[known_later < first])
        numbers = np.append(np.arange(first, first + count), late)
        if not len(numbers):
            return {}
        rows: Rows = dict.fromkeys(SCHEMAS["values"].names, pa.nulls(len(numbers)))
        rows |= value_rows(columns, taken, numbers, kept)
        rows["freed"] = _freed(columns.freed[taken], numbers, freed)
        rows |= self._write_payloads(kept.payloads, numbers, count)
        self._files["values"].write(rows)
        self._values += count
        return rows

    def _write_payloads(
        self, payloads: Mapping[int, Payload], numbers: Ints, met: int
    ) -> dict[str, pa.Array]:
        """Write data; return the columns of the values that say where it is."""
        if not payloads:
            return {}
        cells: dict[str, list[object]] = {name: [] for name in _DATA_COLUMNS}
        for number, payload in payloads.items():
            for column, cell in zip(cells.values(), self._placed(number, payload), strict=True):
                column.append(cell)
        with_data = np.fromiter(payloads, np.int64, len(payloads))
        at = scattered(len(numbers), row_of(numbers, met, with_data))
        schema = SCHEMAS["values"]
        return {
            name: listed_array(column, schema.field(name).type).take(at)
            for name, column in cells.items()
        }

    def _placed(self, number: int, payload: Payload) -> tuple[object, ...]:
        """Write the data of a value unless it was written before; return its `_DATA_COLUMNS`."""
        # Read it once: it may come from another trace's file.
        data = memoryview(payload.data).cast("B")
        key = key_of(payload, data)
        spot = self._contents.find(key, data)
        inline = owner = None
        if spot is None:
            spot = self._write_content(number, payload, data)
            self._contents.add(key, spot)
            inline = bytes(data) if spot.shard is None else None
        elif spot.shard is None:
            owner = spot.value
        shape = list(payload.shape)
        return inline, owner, payload.dtype, shape, spot.shard, spot.offset, *key[1:]

    def _write_content(self, number: int, payload: Payload, data: memoryview) -> StoredAt:
        if len(data) <= _INLINE:
            return StoredAt(number, None, None, strong_digest(data))
        whole = Payload(payload.dtype, payload.shape, data)
        return StoredAt(number, *self._shards.append(value_name(number), whole), b"")


def _freed(known: Ints, numbers: Ints, freed: Ints) -> Ints:
    """Return the column of the first ops after the memory of values was freed."""
    column = np.full(len(numbers), -1)
    column[: len(known)] = known
    column[row_of(numbers, len(known), freed[0])] = freed[1]
    return column


def _no_rows() -> Rows:
    return {"table": [], "number": [], "row": []}


def _append(rows: Rows, table: str, number: int, row: str) -> None:
    rows["table"].append(table)
    rows["number"].append(number)
    rows["row"].append(row)
