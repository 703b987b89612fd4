"""Store of the records of one recording: in memory, or in a folder.

Input: records from the recorder. Output: a `Run` of everything so far.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError, warn
from clew.events.columns import Columns, Derived
from clew.events.model import Gap
from clew.keep.budget import Budget
from clew.record.encoder import Encoder, Surroundings
from clew.record.gaps import Gaps
from clew.request.request import Request
from clew.run.live_derived import LiveDerived
from clew.run.run import Run, run_of
from clew.run.writing import LiveEventRows
from clew.session.batching import Deferred, Unkept, WriterThread
from clew.session.environment import Environment
from clew.store.storage import is_url
from clew.store.write.memory_ring import MemoryRing
from clew.store.write.memory_sink import MemoryStore
from clew.stream.redact import redacted_gap

if TYPE_CHECKING:
    from clew.store.write.disk_sink import DiskSink

# Templates at hand to be used again while a trace is written: those with a number that changes at
# each step never are.
_TEMPLATES = 1024

_NOTHING_KEPT = Gap(
    "events",
    "",
    "out=False keeps none of them",
    "leave out= away to keep them in memory, or name a folder",
)


class TraceStore:
    """Takes the records of one recording, in memory or on disk, and reads them.

    `context` gives what the encoder has to know besides records, `facts` what is written down about
    the whole recording.
    """

    def __init__(
        self,
        request: Request,
        environment: Environment,
        budget: Budget,
        gaps: Gaps,
        context: Callable[[], Surroundings],
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._request = request
        self._environment = environment
        self._gaps = gaps
        self._process = os.getpid()
        self.disk: DiskSink | None = None
        # What was read last, and how many gaps there were then.
        self._run: Run | None = None
        self._gaps_read = 0
        self._identity = object()
        last = request.limits.last
        grows = request.out is None and last is None
        encoder = Encoder(context, request.redact, math.inf if grows else _TEMPLATES)
        # Made when somebody reads: many traces are never read.
        self._derived: LiveDerived | None = None
        self._memory: MemoryStore | MemoryRing = (
            MemoryStore() if last is None else MemoryRing(last, self._derive, budget.give_back)
        )
        deferred = Unkept if request.out is False else Deferred
        self._deferred = deferred(encoder, self._memory)
        self._writer = self._open_writer(encoder, budget, facts)

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
        if self._run is None or self._gaps_read != len(self._gaps):
            columns = self._columns()
            # What went wrong since, the writing itself too, is not in the files.
            gaps = map(redacted_gap, self._gaps) if self._request.redact else self._gaps
            columns.gaps += [gap for gap in gaps if gap not in columns.gaps]
            if self._request.out is False:
                columns.gaps.append(_NOTHING_KEPT)
            run = run_of(columns, self._identity)
            self._run, self._gaps_read = run, len(self._gaps)
        return self._run

    def _columns(self) -> Columns:
        if self.disk is not None:
            return self.disk.read()
        self._deferred.settle()
        columns = self._memory.read(self._environment.rank)
        columns.derived = self._derive(columns)
        return columns

    def _derive(self, columns: Columns) -> Derived:
        if self._derived is None:
            self._derived = LiveDerived(forgets=self._request.limits.last is not None)
        return self._derived.of(columns)

    def _open_writer(
        self, encoder: Encoder, budget: Budget, facts: Callable[[], dict[str, Any]]
    ) -> WriterThread | None:
        """Open the trace on disk; None if there is none to be."""
        out = self._request.out
        if out is None or out is False:
            return None
        try:
            writer = self._open_disk(out, encoder, budget, facts())
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
        encoder: Encoder,
        budget: Budget,
        facts: dict[str, Any],
    ) -> WriterThread:
        # Most traces are kept in memory, and load nothing that writes folders.
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
        return WriterThread(encoder, self.disk, limits.queue, where, self._gaps.tell)

    def _tell_later(self, gap: Gap) -> None:
        assert self._writer is not None
        self._writer.tell_later(gap)
