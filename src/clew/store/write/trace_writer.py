"""Write the parts of a trace into one rank's folder: tables, payloads and values before events.

In come columns and tables, out go live parts that are rolled to Parquet, and tensor shards. In this
order whatever a kill leaves behind is whole up to some event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from clew.events.columns import VALUE_COLUMNS, Columns, Place
from clew.events.records import Kept, Payload
from clew.store.format.arrow import record_batch
from clew.store.format.json_rows import dump, to_json
from clew.store.format.live_stream import LiveFile
from clew.store.format.processes import this_process
from clew.store.format.schema import SCHEMAS, STAT_NAMES, part_name
from clew.store.format.shards import ShardWriter, StoredShards, value_name
from clew.store.format.tables import TABLES
from clew.store.storage import LocalStorage
from clew.store.write.dedup import StoredAt, WrittenContents, key_of, strong_digest
from clew.store.write.seal_part import seal_part

_INLINE = 8 << 10
_ROLL_ROWS = 200_000
_ROLL_BYTES = 64 << 20


# Columns of rows to write.
Rows: TypeAlias = dict[str, Any]


class TableFile:
    """One table of the trace: a live Arrow stream, rolled to Parquet when it is full or done."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self._index = 0
        self._live: LiveFile | None = None

    def write(self, columns: Rows, to_come_again: int = 0) -> None:
        """Append rows; they are in the file when this returns.

        The last ones, `to_come_again`, are of calls that are open: newer ones will replace them.
        """
        schema = SCHEMAS[self._table]
        batch = record_batch(columns, schema)
        live = self._append(batch)
        if live.rows >= _ROLL_ROWS or live.size >= _ROLL_BYTES:
            self._live = None
            self._index += 1
            open_rows = batch.slice(len(batch) - to_come_again)
            if len(open_rows):
                # First into the next part, so that they are never in none.
                self._append(open_rows)
            live.end()
            seal_part(live.path, self._table, moved=open_rows)

    def seal(self) -> None:
        """Turn the live part into Parquet; the next rows begin another."""
        if self._live is not None:
            live, self._live = self._live, None
            self._index += 1
            live.end()
            seal_part(live.path, self._table)

    def _append(self, batch: pa.RecordBatch) -> LiveFile:
        if self._live is None:
            path = self._folder / part_name(self._table, self._index, live=True)
            self._live = LiveFile(path, SCHEMAS[self._table])
        self._live.write(batch)
        if self._live.is_gone:
            raise FileNotFoundError(f"{self._live.path} was removed while it was written")
        return self._live

    def close(self) -> None:
        """Let go of the live part as it is."""
        if self._live is not None:
            self._live.close()


class TraceFiles:
    """Writes parts of a trace into one rank's folder."""

    def __init__(self, folder: Path) -> None:
        self._files = {table: TableFile(folder, table) for table in SCHEMAS}
        self._shards = ShardWriter(folder)
        self._contents = WrittenContents(
            StoredShards(LocalStorage(folder.parent), folder.name).read
        )
        self._known: dict[str, int] = {}
        self._sources: set[str] = set()
        self._environment = ""
        self._values = 0
        self._events = 0

    def sign(self) -> None:
        """Say which process writes these files."""
        rows = _no_rows()
        _append(rows, "writer", 0, to_json(this_process()))
        self._files["tables"].write(rows)

    def write_events(self, rows: Rows, to_come_again: int = 0) -> None:
        """Append rows of the event table, whose values are there.

        The last ones, `to_come_again`, are of calls that are open.
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
        """Seal what there is; more may follow, into new files."""
        self._shards.seal()
        for file in self._files.values():
            file.seal()

    def close(self) -> None:
        """Let go of every file as it is."""
        self._shards.close()
        for file in self._files.values():
            file.close()

    def write_tables(self, columns: Columns, source: Callable[[str], str | None]) -> None:
        """Write what the tables have gained; `source` gives the text of a file."""
        rows = _no_rows()
        for table, kind in TABLES.items():
            held = getattr(columns, kind.attribute)
            listed: list[Any] = list(held.items()) if isinstance(held, dict) else held
            for number in range(self._known.get(table, 0), len(listed)):
                _append(rows, table, number, dump(listed[number]))
            if table == "place":
                self._write_sources(rows, listed[self._known.get(table, 0) :], source)
            self._known[table] = len(listed)
        environment = to_json(columns.environment)
        if environment != self._environment:
            _append(rows, "environment", 0, environment)
        if rows["row"]:
            self._files["tables"].write(rows)
        self._environment = environment

    def _write_sources(
        self, rows: Rows, places: list[Place], source: Callable[[str], str | None]
    ) -> None:
        files = {p.file for p in places if not p.library and p.line > 0} - self._sources
        for number, file in enumerate(sorted(files), len(self._sources)):
            text = source(file)
            if text is not None:
                _append(rows, "source", number, to_json([file, text]))
        self._sources |= files

    def write_values(self, columns: Columns, taken: slice, kept: Mapping[int, Kept]) -> None:
        """Append some rows of the values in `columns`, their payloads before them."""
        numbers = {name: getattr(columns, name)[taken] for name in VALUE_COLUMNS}
        count = len(numbers["meta"])
        if not count and not kept:
            return
        metas, names = columns.metas, columns.value_names
        first = self._values
        rows: Rows = {name: [None] * count for name in SCHEMAS["values"].names}
        rows["value"] = list(range(first, first + count))
        rows |= {name: column.tolist() for name, column in numbers.items()}
        rows["dtype"] = [metas[m].dtype for m in rows["meta"]]
        rows["shape"] = [metas[m].shape for m in rows["meta"]]
        rows["device"] = [metas[m].device for m in rows["meta"]]
        rows["name"] = [names[n] if n >= 0 else None for n in rows["value_name"]]
        for number, found in kept.items():
            at = number - first
            if at < 0:
                # Kept later than it was met: a row that adds to the one already written.
                at = len(rows["value"])
                for name, column in rows.items():
                    column.append({"value": number, "meta": -1}.get(name))
            self._write_kept(rows, at, number, found)
        self._files["values"].write(rows)
        self._values += count

    def _write_kept(self, rows: Rows, at: int, number: int, kept: Kept) -> None:
        if kept.stats is not None:
            for name in STAT_NAMES:
                rows[name][at] = kept.stats.get(name)
        payload = kept.payload
        if payload is None:
            return
        # Once: it may be read from another trace's file.
        data = memoryview(payload.data).cast("B")
        key = key_of(payload, data)
        spot = self._contents.find(key, data)
        if spot is None:
            spot = self._write_content(number, payload, data)
            self._contents.add(key, spot)
            if spot.shard is None:
                rows["data"][at] = bytes(data)
        elif spot.shard is None:
            rows["data_of"][at] = spot.value
        rows["shard"][at], rows["offset"][at] = spot.shard, spot.offset
        rows["data_dtype"][at] = payload.dtype
        rows["data_shape"][at] = list(payload.shape)
        rows["length"][at], rows["checksum"][at] = key[1:]

    def _write_content(self, number: int, payload: Payload, data: memoryview) -> StoredAt:
        if len(data) <= _INLINE:
            return StoredAt(number, None, None, strong_digest(data))
        whole = Payload(payload.dtype, payload.shape, data)
        return StoredAt(number, *self._shards.append(value_name(number), whole), b"")


def _no_rows() -> Rows:
    return {"table": [], "number": [], "row": []}


def _append(rows: Rows, table: str, number: int, row: str) -> None:
    rows["table"].append(table)
    rows["number"].append(number)
    rows["row"].append(row)
