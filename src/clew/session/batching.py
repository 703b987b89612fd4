"""From records to those who keep them: who makes the batches, when, and on which thread.

In come records of this process, out go batches to a `Writer`. In memory they are made when more
come or somebody reads, on disk by a thread of their own, in a worker at once.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from clew.events.model import Gap
from clew.record.recorder import WRITER
from clew.stream.batch import Writer
from clew.stream.records import Records

if TYPE_CHECKING:
    from clew.record.encoder import Encoder

# Batches that wait for the writer; more would only be memory that is not in the cache.
_QUEUE = 4
# How long to wait for a thread before looking whether it is still there, in seconds.
_PATIENCE = 1.0


class Direct:
    """Hands a batch over as soon as there are records."""

    def __init__(self, encoder: Encoder, writer: Writer) -> None:
        self._encoder = encoder
        self._writer = writer

    def take(self, records: Records) -> None:
        """Make a batch of records."""
        self._writer.extend(self._encoder.batch(records))


class Deferred(Direct):
    """Hands a batch over when more records come or somebody reads: many are never read."""

    def __init__(self, encoder: Encoder, writer: Writer) -> None:
        super().__init__(encoder, writer)
        self._waiting: Records | None = None
        self._lock = threading.Lock()

    def take(self, records: Records) -> None:
        """Keep records for later, and make a batch of those before."""
        with self._lock:
            before, self._waiting = self._waiting, records
            if before is not None:
                super().take(before)

    def settle(self) -> None:
        """Hand over everything so far, and what came to be known since."""
        with self._lock:
            records, self._waiting = self._waiting, None
            super().take(Records([], []) if records is None else records)


class Unkept(Deferred):
    """Lets records go, which were told as they happened."""

    # Handed over at a time: few, as they are only waiting to be forgotten.
    BATCH = 256

    def take(self, records: Records) -> None:
        """Let records go."""


class LastingWriter(Writer, Protocol):
    """A writer whose batches can be made to last; each call may fail."""

    def settle(self) -> None:
        """Make everything so far last."""

    def seal(self) -> None:
        """Finish what is written."""

    def let_go(self) -> None:
        """Leave what is written as it is."""


class WriterThread:
    """Makes batches and writes them on a thread of its own.

    At most `most` bytes wait, beyond which the program waits. `on_gap` is told, on the program's
    thread, of what could not be written, which is from `where`.
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
        # Bytes that wait to be written, those that are being written too, and how many may.
        self._waiting = 0
        self._most = most
        self._room = threading.Condition()
        self._thread: threading.Thread | None = None

    def take(self, records: Records) -> None:
        """Take over records; wait while more bytes than may would wait for the writer."""
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
        """Say something on the program's thread, when it comes by."""
        self._untold.append(gap)

    def is_behind(self) -> bool:
        """Whether records wait for the writer."""
        return not self._queue.empty()

    def flush(self) -> None:
        """Return when everything so far is written, or was told not to be."""
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
        """Write nothing more: the thread that would is in another process."""
        self._failed = True
        self._thread = None

    def _finish(self) -> None:
        self._write(Records([], []))
        self._writer.seal()

    def _put(self, item: Records | threading.Event | None) -> None:
        """Hand over to the writer, for as long as there is one to wait for."""
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
            # Not held while the next is waited for.
            del item

    def _write(self, records: Records) -> None:
        self._writer.extend(self._encoder.batch(records))

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as fault:
            self._failed = True
            self.tell_later(
                Gap(
                    "events from here on",
                    self._where,
                    f"writing failed ({type(fault).__name__}: {fault})",
                    "make room or choose another place for out=; what was written is readable",
                )
            )
