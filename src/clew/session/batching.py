"""Make batches of records and hand them to a `Writer`: when, and on which thread.

In memory a batch is made when more records come or someone reads; on disk by a separate thread; in
a worker at once.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from clew.deferred_signals import uninterrupted
from clew.events.model import Gap
from clew.program_errors import pass_on
from clew.record.recorder import WRITER
from clew.stream.records import Records

if TYPE_CHECKING:
    from clew.record.encoder import Encoder
    from clew.stream.batch import Batch, LastingWriter, Writer

# Batches that wait for the writer; more would only fill memory that is no longer in the cache.
_QUEUE = 4
# Seconds to wait for a thread before checking whether it is still alive.
_PATIENCE = 1.0


class Direct:
    """Writes a batch as soon as there are records; `on_batch` is given each before."""

    def __init__(
        self, encoder: Encoder, writer: Writer, on_batch: Callable[[Batch], None] | None = None
    ) -> None:
        self._encoder = encoder
        self._writer = writer
        self._on_batch = on_batch

    def take(self, records: Records) -> None:
        """Write a batch of records."""
        batch = self._encoder.batch(records)
        if self._on_batch is not None:
            self._on_batch(batch)
        self._writer.extend(batch)


class Deferred:
    """Writes a batch when more records come or someone reads: many traces are never read.

    `begin` makes the encoder and the writer when the first batch is written.
    """

    def __init__(self, begin: Callable[[], Direct]) -> None:
        self._begin = begin
        self._direct: Direct | None = None
        self._waiting: Records | None = None
        self._lock = threading.Lock()

    def take(self, records: Records) -> None:
        """Keep records for later, and write a batch of the earlier ones."""
        with self._lock:
            before, self._waiting = self._waiting, records
            if before is not None:
                self._write(before)

    def settle(self) -> None:
        """Write everything so far, and what changed in its surroundings since."""
        uninterrupted(self._settle)

    def _settle(self) -> None:
        with self._lock:
            records, self._waiting = self._waiting, None
            self._write(Records([], []) if records is None else records)

    def _write(self, records: Records) -> None:
        if self._direct is None:
            self._direct = self._begin()
        self._direct.take(records)


class Unkept(Deferred):
    """Drops records: for `out=False`, where listeners and callbacks saw them already."""

    # Events handed over at a time: few, as they only wait to be dropped.
    BATCH = 256

    def take(self, records: Records) -> None:
        """Drop records."""


class WriterThread:
    """Makes batches and writes them on a separate thread.

    The program waits while more than `most` bytes are queued. `on_gap` is called on the program's
    thread when something could not be written; `where` names the place that is written to.
    """

    def __init__(
        self,
        encoder: Encoder,
        writer: LastingWriter,
        most: int,
        where: str,
        on_gap: Callable[[Gap], object],
    ) -> None:
        self._encoder = encoder
        self._writer = writer
        self._where = where
        self._on_gap = on_gap
        self._failed = False
        self._untold: list[Gap] = []
        self._queue: queue.Queue[Records | threading.Event | None] = queue.Queue(_QUEUE)
        # Bytes that are queued or being written, and how many may be.
        self._waiting = 0
        self._most = most
        self._room = threading.Condition()
        self._thread: threading.Thread | None = None

    def take(self, records: Records) -> None:
        """Queue records; wait while the queue would hold more bytes than `most`."""
        self._tell()
        if self._failed:
            return
        thread = self._thread
        if thread is None:
            thread = threading.Thread(target=self._run, name=WRITER, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down and starts no more threads.
                self._guarded(functools.partial(self._write, records))
                return
            self._thread = thread
        with self._room:
            while self._waiting and self._waiting + records.size > self._most and thread.is_alive():
                self._room.wait(_PATIENCE)
            self._waiting += records.size
        self._put(records)

    def tell_later(self, gap: Gap) -> None:
        """Report a gap on the program's thread, at its next call."""
        self._untold.append(gap)

    def is_behind(self) -> bool:
        """Return whether records wait for the writer."""
        return not self._queue.empty()

    def flush(self) -> None:
        """Return when everything so far is written, or writing has failed."""
        if self._thread is not None:
            done = threading.Event()
            self._put(done)
            while not done.wait(_PATIENCE) and self._thread.is_alive():
                pass
        self._tell()

    def close(self) -> None:
        """Write the rest and finish what is written; more may follow."""
        if self._thread is not None:
            self._put(None)
            self._thread.join()
            self._thread = None
        if self._failed:
            self._writer.let_go()
        else:
            self._guarded(self._finish)
        self._tell()

    def abandon(self) -> None:
        """Write nothing more: after a fork, the thread is in another process."""
        self._failed = True
        self._thread = None

    def _finish(self) -> None:
        self._write(Records([], []))
        self._writer.seal()

    def _put(self, item: Records | threading.Event | None) -> None:
        """Queue an item for the writer's thread, as long as that is alive."""
        while self._thread is not None and self._thread.is_alive():
            try:
                self._queue.put(item, timeout=_PATIENCE)
                return
            except queue.Full:
                continue

    def _tell(self) -> None:
        while self._untold:
            self._on_gap(self._untold.pop(0))

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                self._guarded(self._writer.settle)
                item.set()
            elif item is None:
                return
            else:
                self._guarded(functools.partial(self._write, item))
                with self._room:
                    self._waiting -= item.size
                    self._room.notify_all()
            # Drop the reference, so that waiting for the next item keeps nothing alive.
            del item

    def _write(self, records: Records) -> None:
        self._writer.extend(self._encoder.batch(records))

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as fault:
            pass_on(fault)
            self._failed = True
            self.tell_later(
                Gap(
                    "events from here on",
                    self._where,
                    f"writing failed ({type(fault).__name__}: {fault})",
                    "make room or choose another place for out=; what was written is readable",
                )
            )
