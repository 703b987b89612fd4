"""The disk store: a trace written while the program runs, by a thread of its own.

In come raw batches, out go the files of DESIGN's layout under one rank's folder. Order matters:
tables, payloads and values before the events that point at them, so that whatever a kill leaves
behind is whole up to some event. A write that fails is said once, and the program runs on.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clew.events.columns import ModuleRow, Place
from clew.events.digest import checksum
from clew.events.model import Gap
from clew.events.records import Batch, Kept
from clew.store.compact import Compactor, Part, Tables
from clew.store.rows import dump
from clew.store.schema import SCHEMAS, STAT_NAMES, part_name
from clew.store.shards import ShardWriter
from clew.store.words import Words

_INLINE = 8 << 10
_ROLL_ROWS = 200_000
_QUEUE = 8


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a recording knows besides its records, as of now."""

    places: list[Place]
    modules: list[ModuleRow]
    parameters: list[tuple[str, int, int]]
    threads: list[str]
    gaps: list[Gap]
    source: Callable[[str], str | None]
    environment: dict[str, Any]


class TableFile:
    """One table of the trace: a live Arrow stream, rolled to Parquet when it is full or done."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self._schema = SCHEMAS[table]
        self._index = 0
        self._rows = 0
        self._stream: Any = None
        self._file: Any = None

    def write(self, columns: dict[str, list[Any]]) -> None:
        """Append rows; they are in the file when this returns."""
        batch = pa.record_batch(
            [pa.array(columns[f.name], type=f.type) for f in self._schema], schema=self._schema
        )
        if self._stream is None:
            path = self._folder / part_name(self._table, self._index, live=True)
            # Unbuffered: what was written is the kernel's, and outlives the process.
            self._file = path.open("xb", buffering=0)
            self._stream = pa.ipc.new_stream(self._file, self._schema)
        self._stream.write_batch(batch)
        self._rows += batch.num_rows
        if self._rows >= _ROLL_ROWS:
            self.roll()

    def roll(self) -> None:
        """Turn the live part into Parquet and begin another."""
        if self._stream is None:
            return
        self._stream.close()
        self._file.close()
        self._stream = None
        live = self._folder / part_name(self._table, self._index, live=True)
        roll(live, self._folder / part_name(self._table, self._index, live=False))
        self._index += 1
        self._rows = 0


def roll(live: Path, target: Path) -> None:
    """Write a live part as Parquet, aside and then in one move."""
    with open(live, "rb") as file:
        table = pa.ipc.open_stream(file).read_all()
    aside = target.with_suffix(".tmp")
    pq.write_table(table, aside, compression="zstd")
    os.replace(aside, target)
    live.unlink()


class TraceFiles:
    """Writes parts of a trace into one rank's folder."""

    def __init__(self, folder: Path, rank: int, tables: Tables) -> None:
        folder.mkdir(parents=True)
        self._rank = rank
        self._tables = tables
        self._files = {table: TableFile(folder, table) for table in SCHEMAS}
        self._shards = ShardWriter(folder)
        self._known: dict[str, int] = {}
        self._sources: set[str] = set()
        self._words = Words(tables)
        self._values = 0

    def write(self, part: Part, open_part: Part | None, around: Surroundings) -> None:
        """Append a part, and the calls that are open after it."""
        parts = [part] if open_part is None else [open_part, part]
        self._words.learn(*parts)
        self.write_tables(around)
        self._write_values(part)
        for events in parts:
            if len(events.columns["id"]):
                self._files["events"].write(self._words.events(events, self._rank))

    def seal(self) -> None:
        """Finish every file."""
        self._shards.seal()
        for file in self._files.values():
            file.roll()

    def write_tables(self, around: Surroundings) -> None:
        """Write what the tables have gained."""
        c, places = self._tables, around.places
        self._words.around(places, around.modules, around.threads)
        tables: dict[str, list[Any]] = {
            "op": c.ops.rows, "note": c.notes.rows, "error": c.errors.rows, "meta": c.metas.rows,
            "template": c.templates.rows, "value_name": c.value_names.rows, "place": places,
            "module": around.modules, "parameter": around.parameters,
            "thread": around.threads, "gap": around.gaps,
        }  # fmt: skip
        rows: dict[str, list[Any]] = {"table": [], "number": [], "row": []}
        for table, all_rows in tables.items():
            for number in range(self._known.get(table, 0), len(all_rows)):
                _append(rows, table, number, dump(all_rows[number]))
            self._known[table] = len(all_rows)
        for file in {p.file for p in places if not p.library and p.line > 0} - self._sources:
            self._sources.add(file)
            text = around.source(file)
            if text is not None:
                _append(rows, "source", len(self._sources), json.dumps([file, text]))
        _append(rows, "environment", 0, json.dumps(around.environment))
        self._files["tables"].write(rows)

    def _write_values(self, part: Part) -> None:
        columns = part.columns
        count = len(columns["meta"])
        if not count and not part.kept:
            return
        metas, names = self._tables.metas.rows, self._tables.value_names.rows
        first = self._values
        self._values += count
        rows: dict[str, list[Any]] = {name: [None] * count for name in SCHEMAS["values"].names}
        rows["value"] = list(range(first, first + count))
        for name in ("producer", "version", "storage", "meta", "grad", "value_name"):
            rows[name] = columns[name].tolist()
        rows["dtype"] = [metas[m].dtype for m in rows["meta"]]
        rows["shape"] = [metas[m].shape for m in rows["meta"]]
        rows["device"] = [metas[m].device for m in rows["meta"]]
        rows["name"] = [names[n] if n >= 0 else None for n in rows["value_name"]]
        for number, kept in part.kept.items():
            at = number - first
            if at < 0:
                # Kept later than it was met: a row that adds to the one already written.
                at = len(rows["value"])
                for name, column in rows.items():
                    column.append({"value": number, "meta": -1}.get(name))
            self._write_kept(rows, at, number, kept)
        self._files["values"].write(rows)

    def _write_kept(self, rows: dict[str, list[Any]], at: int, number: int, kept: Kept) -> None:
        if kept.stats is not None:
            for name in STAT_NAMES:
                rows[name][at] = kept.stats.get(name)
        payload = kept.payload
        if payload is None:
            return
        data = memoryview(payload.data).cast("B")
        rows["data_dtype"][at] = payload.dtype
        rows["data_shape"][at] = list(payload.shape)
        rows["length"][at] = len(data)
        rows["checksum"][at] = checksum(data)
        if len(data) <= _INLINE:
            rows["data"][at] = bytes(data)
        else:
            shard, offset, _ = self._shards.append(f"value.{number}", payload)
            rows["shard"][at], rows["offset"][at] = shard, offset


class DiskStore:
    """A sink that writes one rank's part of a trace, on a thread of its own."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        around: Callable[[list[Any]], Surroundings],
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self.folder = folder
        self._around = around
        self._on_gap = on_gap
        self._compactor = Compactor()
        self._files = TraceFiles(folder, rank, self._compactor)
        self._failed = False
        self._queue: queue.Queue[Batch | threading.Event | None] = queue.Queue(_QUEUE)
        self._thread: threading.Thread | None = None

    def extend(self, batch: Batch) -> None:
        """Take over a batch; waits while the writer is too far behind."""
        if self._failed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="clew-writer", daemon=True)
            self._thread.start()
        self._queue.put(batch)

    def flush(self) -> None:
        """Return when everything so far is in the files."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait()

    def close(self) -> None:
        """Write the rest and seal every file; more may follow, into new ones."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """Write nothing more: the thread that would is in another process."""
        self._failed = True
        self._thread = None

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            elif item is None:
                self._guarded(self._seal)
                return
            else:
                self._guarded(functools.partial(self._write, item))

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as fault:
            self._failed = True
            self._on_gap(
                Gap(
                    "events from here on",
                    str(self.folder),
                    f"writing failed ({type(fault).__name__}: {fault})",
                    "make room or choose another place for out=; what was written is readable",
                )
            )

    def _write(self, batch: Batch) -> None:
        part = self._compactor.compact(batch)
        open_part = self._compactor.compact_open(batch.open_calls)
        self._files.write(part, open_part, self._around(self._compactor.nodes.rows))

    def _seal(self) -> None:
        self._files.write_tables(self._around(self._compactor.nodes.rows))
        self._files.seal()


def _append(rows: dict[str, list[Any]], table: str, number: int, row: str) -> None:
    rows["table"].append(table)
    rows["number"].append(number)
    rows["row"].append(row)
