"""Store of the records of one recording: in memory, or in a folder.

Input: records from the recorder. Output: a `Run` of everything so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.deferred_signals import uninterrupted
from clew.errors import ClewError, warn
from clew.events.model import Gap
from clew.keep.budget import Budget
from clew.program_errors import pass_on
from clew.record.gaps import Gaps
from clew.request.request import Request
from clew.session import on_first_use
from clew.session.batching import Deferred, Direct, Unkept, WriterThread
from clew.session.environment import Environment

if TYPE_CHECKING:
    from clew.events.columns import Columns
    from clew.record.encoder import Surroundings
    from clew.run.run import Run
    from clew.session.memory_trace import MemoryTrace
    from clew.store.write.disk_sink import DiskSink
    from clew.stream.batch import Batch


class TraceStore:
    """Takes the records of one recording, in memory or on disk, and reads them.

    `context` gives what the encoder has to know besides records, `facts` what is written down about
    the whole recording. `on_batch` is given each batch that is kept in memory.
    """

    def __init__(
        self,
        request: Request,
        environment: Environment,
        budget: Budget,
        gaps: Gaps,
        context: Callable[[], Surroundings],
        facts: Callable[[], dict[str, Any]],
        on_batch: Callable[[Batch], None] | None = None,
    ) -> None:
        self._request = request
        self._environment = environment
        self._gaps = gaps
        self._process = os.getpid()
        # Whether this process is a fork of one that was recording then.
        self.is_abandoned = False
        self.disk: DiskSink | None = None
        # What was read last, and how many gaps there were then.
        self._run: Run | None = None
        self._gaps_read = 0
        self._identity = object()
        # Made when somebody reads: many traces are never read.
        self._memory: MemoryTrace | None = None

        def begin_memory() -> Direct:
            self._memory = on_first_use.MemoryTrace(request, context, budget.give_back, on_batch)
            return self._memory.direct

        self._deferred = (Unkept if request.out is False else Deferred)(begin_memory)
        self._writer: WriterThread | None = None
        if request.out is not None and request.out is not False:
            self._writer = self._open_writer(request.out, budget, context, facts)

    @property
    def taker(self) -> WriterThread | Deferred:
        """Return the object that gets the records."""
        return self._writer or self._deferred

    @property
    def path(self) -> Path | str | None:
        """Return the folder or URL that is written to, None if there is none."""
        return None if self.disk is None else self.disk.place

    @property
    def is_foreign(self) -> bool:
        """Return whether only another process, of which this one is a fork, records here.

        A trace in memory that was not recording when the fork was made may go on in either.
        """
        return self.is_abandoned or (self.disk is not None and self._process != os.getpid())

    def flush(self) -> None:
        """Return when everything that was handed over can be read."""
        self.changed()
        if self._writer is not None:
            self._writer.flush()

    def settle(self) -> None:
        """Make batches of everything that was handed over and is kept in memory."""
        self._deferred.settle()

    def close(self) -> None:
        """Finish what is written; more may follow."""
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        """Write nothing more: the process is a fork of the one that does."""
        self.is_abandoned = True
        if self._writer is not None:
            self._writer.abandon()

    def changed(self) -> None:
        """Drop what was read last: there is more to read."""
        self._run = None

    def rewritten(self) -> None:
        """Read the folder anew: the whole trace was saved onto it."""
        assert self.disk is not None
        self.disk.claim.check.renew()
        self.changed()

    def run(self) -> Run:
        """Return everything that was handed over, to be read."""
        if self._run is None or self._gaps_read != len(self._gaps):
            columns = uninterrupted(self._read)
            # What went wrong since, the writing itself too, is not in the files.
            run = on_first_use.run_with_gaps(columns, self._gaps, self._request, self._identity)
            self._run, self._gaps_read = run, len(self._gaps)
        return self._run

    def _read(self) -> Columns:
        if self.disk is not None:
            return self.disk.read()
        self._deferred.settle()
        assert self._memory is not None
        return self._memory.read(self._environment.rank)

    def _open_writer(
        self,
        out: str | os.PathLike[str],
        budget: Budget,
        context: Callable[[], Surroundings],
        facts: Callable[[], dict[str, Any]],
    ) -> WriterThread | None:
        """Open the trace on disk; None if that fails."""
        try:
            self.disk = self._open_disk(out, budget, facts())
        except ClewError as refused:
            pass_on(refused)
            if not isinstance(refused.__cause__, OSError):
                raise
            why = f"{refused}; the trace is kept in memory"
            self._gaps.tell(Gap("the trace on disk", "", why, "save it, or choose another out="))
            return None
        encoder = on_first_use.encoder_of(self._request, context)
        most, where = self._request.limits.queue, str(self.disk.claim.folder)
        writer = WriterThread(encoder, self.disk, most, where, self._gaps.tell)
        budget.is_behind = writer.is_behind
        return writer

    def _open_disk(
        self,
        out: str | os.PathLike[str],
        budget: Budget,
        facts: dict[str, Any],
    ) -> DiskSink:
        rank, limits = self._environment.rank, self._request.limits
        claimed = on_first_use.claim(out, rank, self._request.exist, facts, self._environment.size)
        if claimed.said is not None:
            warn(claimed.said)
        rows, ring = on_first_use.LiveEventRows(), (limits.last, budget.give_back)
        try:
            if on_first_use.is_url(out):
                return on_first_use.RemoteSink(claimed, rank, rows, *ring, self._tell_later)
            return on_first_use.DiskSink(claimed, rank, rows, *ring)
        except OSError as refused:
            raise ClewError(f"cannot write a trace to {claimed.storage}: {refused}") from refused

    def _tell_later(self, gap: Gap) -> None:
        assert self._writer is not None
        self._writer.tell_later(gap)
