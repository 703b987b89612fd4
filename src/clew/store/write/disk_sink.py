"""The disk sink: a trace written while the program runs, by a thread of its own.

In come raw batches, out go the files of one rank's folder. A write that fails is said once, and the
program runs on.
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

from clew.events.columns import COLUMN_NAMES, Columns, ModuleRow, Place
from clew.events.model import Gap
from clew.events.records import Batch
from clew.store.read.open_trace import read_files
from clew.store.write.build_columns import Compactor, Part, Tables
from clew.store.write.claim import Claim
from clew.store.write.trace_writer import Rows, TraceFiles
from clew.store.write.value_rows import kept_rows

# Batches that wait for the writer; more would only be memory that is not in the cache.
_QUEUE = 4
_PATIENCE = 1.0

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


class DiskSink:
    """A sink that writes one rank's part of a trace, on a thread of its own.

    `on_gap` is told, on the program's thread, of what could not be written.
    """

    def __init__(
        self,
        claim: Claim,
        rank: int,
        queue_bytes: int,
        around: Callable[[list[Any]], Surroundings],
        on_gap: Callable[[Gap], Any],
        event_rows: EventRows,
    ) -> None:
        self.claim = claim
        self.folder = claim.folder
        self._rank = rank
        self._event_rows = event_rows
        self._around = around
        self._on_gap = on_gap
        self._compactor = Compactor()
        self._files = TraceFiles(self.folder)
        self._files.sign()
        self._failed = False
        self._untold: Gap | None = None
        self._queue: queue.Queue[Batch | threading.Event | None] = queue.Queue(_QUEUE)
        # Bytes that wait to be written, those that are being written too, and how many may.
        self._waiting = 0
        self._most = queue_bytes
        self._room = threading.Condition()
        self._thread: threading.Thread | None = None

    def extend(self, batch: Batch) -> None:
        """Take over a batch; wait while more bytes than may would wait for the writer."""
        self._tell()
        if self._failed:
            return
        thread = self._thread
        if thread is None:
            thread = threading.Thread(target=self._run, name="clew-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down and starts no more threads.
                self._guarded(functools.partial(self._write, batch))
                return
            self._thread = thread
        with self._room:
            while self._waiting and self._waiting + batch.size > self._most and thread.is_alive():
                self._room.wait(_PATIENCE)
            self._waiting += batch.size
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
        return self.claim.storage.place

    def read(self) -> Columns:
        """Read what was written, as far as it was; BadTrace if another run has its place."""
        self.claim.check()
        columns = read_files(self.folder, check=self.claim.check)[0]
        self.claim.check()
        return columns

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
                with self._room:
                    self._waiting -= item.size
                    self._room.notify_all()
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

    def _check_place(self) -> None:
        """Raise if the folder holds another run by now, which is not to be written into."""
        self.claim.check()

    def _write(self, batch: Batch) -> None:
        self._check_place()
        part = self._compactor.compact(batch)
        open_part = self._compactor.compact_open(batch.open_calls)
        columns = self._write_tables([part, open_part])
        self._files.write_values(columns, slice(None), kept_rows(columns.kept))
        rows = self._event_rows(columns, self._compactor.alive)
        self._files.write_events(rows, to_come_again=len(open_part.columns["id"]))

    def _write_tables(self, parts: list[Part]) -> Columns:
        """Write what the tables have gained; the columns of the parts, which refer to them."""
        around = self._around(self._compactor.nodes.rows)
        columns = batch_columns(parts, self._compactor, around, self._rank)
        self._files.write_tables(columns, around.source)
        return columns

    def _settle(self) -> None:
        """Make what was written last, on the writer's thread: in local files it does."""

    def _seal(self) -> None:
        if self._failed:
            # What is there is readable as it is.
            self._files.close()
        else:
            self._guarded(self._write_rest)

    def _write_rest(self) -> None:
        self._check_place()
        self._write_tables([self._compactor.compact_open([])])
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
        parameters=around.parameters,
        threads=around.threads,
        modes=around.modes,
        gaps=around.gaps,
        environment=around.environment,
        kept={number: kept for part in parts for number, kept in part.kept.items()},
        rank=rank,
    )
