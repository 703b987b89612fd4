"""The disk store: a trace written while the program runs, by a thread of its own.

In come raw batches, out go the files of DESIGN's layout under one rank's folder. Order matters:
tables, payloads and values before the events that point at them, so that whatever a kill leaves
behind is whole up to some event. A write that fails is said once, and the program runs on.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from clew.events.columns import COLUMN_NAMES, Columns, ModuleRow, Place
from clew.events.model import Gap
from clew.events.records import Batch, Kept, Payload
from clew.store.arrow import record_batch
from clew.store.compact import Compactor, Part, Tables
from clew.store.contents import Spot, WrittenContents, key_of, strong_digest
from clew.store.live import LiveFile
from clew.store.processes import this_process
from clew.store.rows import dump, to_json
from clew.store.schema import SCHEMAS, STAT_NAMES, part_name
from clew.store.sealing import seal_part
from clew.store.shards import ShardWriter, read_range, value_name

_INLINE = 8 << 10
_ROLL_ROWS = 200_000
_ROLL_BYTES = 64 << 20
# Batches that wait for the writer; more would only be memory that is not in the cache.
_QUEUE = 4
_PATIENCE = 1.0

# Columns of rows to write.
Rows: TypeAlias = dict[str, Any]
# Gives the rows of the event table of a batch, with the values that later batches may mention.
EventRows: TypeAlias = Callable[[Columns, Collection[int]], Rows]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a recording knows besides its records, as of now."""

    places: list[Place]
    modules: list[ModuleRow]
    parameters: list[tuple[str, int, int]]
    threads: list[str]
    modes: dict[int, str]
    gaps: list[Gap]
    source: Callable[[str], str | None]
    environment: dict[str, Any]


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

    def __init__(self, folder: Path, tables: Tables) -> None:
        self._tables = tables
        self._files = {table: TableFile(folder, table) for table in SCHEMAS}
        self._shards = ShardWriter(folder)
        self._contents = WrittenContents(functools.partial(read_range, folder))
        self._known: dict[str, int] = {}
        self._sources: set[str] = set()
        self._environment = ""
        self._values = 0
        self._events = 0
        self._signed = False

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

    def write_tables(self, around: Surroundings) -> None:
        """Write what the tables have gained."""
        c, places = self._tables, around.places
        tables: dict[str, list[Any]] = {
            "op": c.ops.rows, "note": c.notes.rows, "label": c.labels.rows,
            "error": c.errors.rows, "meta": c.metas.rows,
            "template": c.templates.rows, "value_name": c.value_names.rows, "place": places,
            "module": around.modules, "parameter": around.parameters,
            "thread": around.threads, "mode": list(around.modes.items()), "gap": around.gaps,
        }  # fmt: skip
        rows = _no_rows()
        if not self._signed:
            _append(rows, "writer", 0, to_json(this_process()))
        known = {table: len(all_rows) for table, all_rows in tables.items()}
        for table, count in known.items():
            for number in range(self._known.get(table, 0), count):
                _append(rows, table, number, dump(tables[table][number]))
        new = places[self._known.get("place", 0) :]
        files = {p.file for p in new if not p.library and p.line > 0} - self._sources
        for number, file in enumerate(sorted(files), len(self._sources)):
            text = around.source(file)
            if text is not None:
                _append(rows, "source", number, to_json([file, text]))
        environment = to_json(around.environment)
        if environment != self._environment:
            _append(rows, "environment", 0, environment)
        if rows["row"]:
            self._files["tables"].write(rows)
        self._known, self._environment, self._signed = known, environment, True
        self._sources |= files

    def write_values(self, part: Part) -> None:
        """Append the values of a part, their payloads before them."""
        columns = part.columns
        count = len(columns["meta"])
        if not count and not part.kept:
            return
        metas, names = self._tables.metas.rows, self._tables.value_names.rows
        first = self._values
        rows: Rows = {name: [None] * count for name in SCHEMAS["values"].names}
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

    def _write_content(self, number: int, payload: Payload, data: memoryview) -> Spot:
        if len(data) <= _INLINE:
            return Spot(number, None, None, strong_digest(data))
        whole = Payload(payload.dtype, payload.shape, data)
        return Spot(number, *self._shards.append(value_name(number), whole), b"")


class DiskStore:
    """A sink that writes one rank's part of a trace, on a thread of its own.

    `on_gap` is told, on the program's thread, of what could not be written.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        around: Callable[[list[Any]], Surroundings],
        on_gap: Callable[[Gap], Any],
        event_rows: EventRows,
    ) -> None:
        self.folder = folder
        self._rank = rank
        self._event_rows = event_rows
        self._around = around
        self._on_gap = on_gap
        self._compactor = Compactor()
        self._files = TraceFiles(folder, self._compactor)
        self._failed = False
        self._untold: Gap | None = None
        self._queue: queue.Queue[Batch | threading.Event | None] = queue.Queue(_QUEUE)
        self._thread: threading.Thread | None = None

    def extend(self, batch: Batch) -> None:
        """Take over a batch; waits while the writer is too far behind."""
        self._tell()
        if self._failed:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="clew-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down and starts no more threads.
                self._guarded(functools.partial(self._write, batch))
                return
            self._thread = thread
        self._put(batch)

    def is_behind(self) -> bool:
        """Whether batches wait for the writer."""
        return not self._queue.empty()

    def flush(self) -> None:
        """Return when everything so far is in the files, or was told not to be."""
        if self._thread is not None:
            done = threading.Event()
            self._put(done)
            while not done.wait(_PATIENCE) and self._thread.is_alive():
                pass
        self._tell()

    def close(self) -> None:
        """Write the rest and seal every file; more may follow, into new ones."""
        if self._thread is not None:
            self._put(None)
            self._thread.join()
            self._thread = None
        self._seal()
        self._tell()

    @property
    def place(self) -> Path | str:
        """The trace that is written."""
        return self.folder.parent

    def read(self) -> Columns:
        """What was written, as far as it was."""
        from clew.store.folder import read_rank

        return read_rank(self.folder)

    def abandon(self) -> None:
        """Write nothing more: the thread that would is in another process."""
        self._failed = True
        self._thread = None

    def _put(self, item: Batch | threading.Event | None) -> None:
        """Hand over to the writer, for as long as there is one to wait for."""
        while self._thread is not None and self._thread.is_alive():
            try:
                self._queue.put(item, timeout=_PATIENCE)
                return
            except queue.Full:
                continue

    def _tell(self) -> None:
        gap, self._untold = self._untold, None
        if gap is not None:
            self._on_gap(gap)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                self._guarded(self._settle)
                item.set()
            elif item is None:
                return
            else:
                self._guarded(functools.partial(self._write, item))
            # Not held while the next is waited for.
            del item

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as fault:
            self._failed = True
            self._untold = Gap(
                "events from here on",
                str(self.folder),
                f"writing failed ({type(fault).__name__}: {fault})",
                "make room or choose another place for out=; what was written is readable",
            )

    def _write(self, batch: Batch) -> None:
        part = self._compactor.compact(batch)
        open_part = self._compactor.compact_open(batch.open_calls)
        around = self._around(self._compactor.nodes.rows)
        self._files.write_tables(around)
        for values in (part, open_part):
            self._files.write_values(values)
        columns = batch_columns([part, open_part], self._compactor, around, self._rank)
        rows = self._event_rows(columns, self._compactor.alive)
        self._files.write_events(rows, to_come_again=len(open_part.columns["id"]))

    def _settle(self) -> None:
        """Make what was written last, on the writer's thread: in local files it does."""

    def _seal(self) -> None:
        if self._failed:
            # What is there is readable as it is.
            self._files.close()
        else:
            self._guarded(self._write_rest)

    def _write_rest(self) -> None:
        self._files.write_tables(self._around(self._compactor.nodes.rows))
        self._files.seal()


def batch_columns(parts: list[Part], tables: Tables, around: Surroundings, rank: int) -> Columns:
    """Join parts to columns of their own, with the tables known by now."""
    arrays: dict[str, Any] = {
        name: np.concatenate([p.columns[name] for p in parts]) for name in COLUMN_NAMES
    }
    arrays["first_ref"] = arrays["first_ref"] - min(arrays["first_ref"].tolist(), default=0)
    return Columns(
        **arrays,
        ops=tables.ops.rows,
        modules=around.modules,
        notes=tables.notes.rows,
        labels=tables.labels.rows,
        places=around.places,
        templates=tables.templates.rows,
        metas=tables.metas.rows,
        errors=tables.errors.rows,
        value_names=tables.value_names.rows,
        threads=around.threads,
        kept={number: kept for part in parts for number, kept in part.kept.items()},
        rank=rank,
    )


def _no_rows() -> Rows:
    return {"table": [], "number": [], "row": []}


def _append(rows: Rows, table: str, number: int, row: str) -> None:
    rows["table"].append(table)
    rows["number"].append(number)
    rows["row"].append(row)
