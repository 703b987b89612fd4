"""Store of the records of one recording: in memory, or in a folder.

Input: records from the recorder. Output: a `Run` of everything so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError, warn
from clew.events.model import Gap
from clew.keep.budget import Budget
from clew.record.gaps import Gaps
from clew.request.request import Request
from clew.session.batching import Deferred, Direct, Unkept, WriterThread
from clew.session.environment import Environment

if TYPE_CHECKING:
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
        self._on_batch = on_batch
        self._environment = environment
        self._gaps = gaps
        self._process = os.getpid()
        self.disk: DiskSink | None = None
        # What was read last, and how many gaps there were then.
        self._run: Run | None = None
        self._gaps_read = 0
        self._identity = object()
        self._budget = budget
        self._context = context
        # Made when somebody reads: many traces are never read.
        self._memory: MemoryTrace | None = None
        self._deferred = (Unkept if request.out is False else Deferred)(self._begin_memory)
        self._writer: WriterThread | None = None
        if request.out is not None and request.out is not False:
            self._writer = self._open_writer(request.out, budget, facts)

    @property
    def taker(self) -> WriterThread | Deferred:
        """Return the object that gets the records."""
        return self._writer or self._deferred

    @property
    def path(self) -> Path | str | None:
        """Return the folder or URL that is written to, None if there is none."""
        return None if self.disk is None else self.disk.place

    @property
    def is_of_parent(self) -> bool:
        """Return whether a folder is written by another process, of which this one is a fork."""
        return self.disk is not None and self._process != os.getpid()

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
        from clew.session.memory_trace import run_with_gaps  # many traces are never read

        if self._run is None or self._gaps_read != len(self._gaps):
            if self.disk is not None:
                columns = self.disk.read()
            else:
                self._deferred.settle()
                assert self._memory is not None
                columns = self._memory.read(self._environment.rank)
            # What went wrong since, the writing itself too, is not in the files.
            run = run_with_gaps(columns, self._gaps, self._request, self._identity)
            self._run, self._gaps_read = run, len(self._gaps)
        return self._run

    def _begin_memory(self) -> Direct:
        from clew.session.memory_trace import MemoryTrace  # many traces are never read

        give_back = self._budget.give_back
        self._memory = MemoryTrace(self._request, self._context, give_back, self._on_batch)
        return self._memory.direct

    def _open_writer(
        self, out: str | os.PathLike[str], budget: Budget, facts: Callable[[], dict[str, Any]]
    ) -> WriterThread | None:
        """Open the trace on disk; None if that fails."""
        try:
            writer = self._open_disk(out, budget, facts())
        except ClewError as refused:
            if not isinstance(refused.__cause__, OSError):
                raise
            why = f"{refused}; the trace is kept in memory"
            self._gaps.tell(Gap("the trace on disk", "", why, "save it, or choose another out="))
            return None
        budget.is_behind = writer.is_behind
        return writer

    def _open_disk(
        self,
        out: str | os.PathLike[str],
        budget: Budget,
        facts: dict[str, Any],
    ) -> WriterThread:
        # Most traces are kept in memory, and load nothing that writes folders.
        from clew.run.writing import LiveEventRows
        from clew.session.memory_trace import encoder_of
        from clew.store.storage import is_url
        from clew.store.write.claim import claim
        from clew.store.write.disk_sink import DiskSink
        from clew.store.write.remote_sink import RemoteSink

        rank, limits = self._environment.rank, self._request.limits
        claimed = claim(out, rank, self._request.exist, facts, self._environment.size)
        if claimed.said is not None:
            warn(claimed.said)
        ring = limits.last, budget.give_back
        try:
            if is_url(out):
                self.disk = RemoteSink(claimed, rank, LiveEventRows(), *ring, self._tell_later)
            else:
                self.disk = DiskSink(claimed, rank, LiveEventRows(), *ring)
        except OSError as refused:
            raise ClewError(f"cannot write a trace to {claimed.storage}: {refused}") from refused
        where = str(claimed.folder)
        encoder = encoder_of(self._request, self._context)
        return WriterThread(encoder, self.disk, limits.queue, where, self._gaps.tell)

    def _tell_later(self, gap: Gap) -> None:
        assert self._writer is not None
        self._writer.tell_later(gap)
