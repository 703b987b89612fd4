"""The sink on disk: batches in, files of one rank's folder out.

Every batch is in the files when `extend` returns, so that a kill loses nothing that was written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from clew.events.columns import Columns, Ints
from clew.store.read.open_trace import read_files
from clew.store.write.claim import Claim
from clew.store.write.disk_ring import DiskRing
from clew.store.write.trace_writer import Rows, TraceFiles
from clew.store.write.value_rows import kept_rows
from clew.stream.batch import Batch, Tables

# Returns the event table rows of a batch, and the values that later batches do not refer to.
EventRows: TypeAlias = Callable[[Columns, Ints], Rows]


class DiskSink:
    """Writes one rank's part of a trace. Each call may raise what the disk raises.

    With `last`, about that many events are kept, the newest; `on_fallen` gets the bytes of data
    that were dropped.
    """

    def __init__(
        self,
        claim: Claim,
        rank: int,
        event_rows: EventRows,
        last: int | None = None,
        on_fallen: Callable[[int], object] = lambda size: None,
    ) -> None:
        self.claim = claim
        self.folder = claim.folder
        self._rank = rank
        self._event_rows = event_rows
        self._tables = Tables(forgets=True)
        self._files = TraceFiles(self.folder)
        self._files.sign()
        self._ring = None if last is None else DiskRing(last, self._files, self._remove, on_fallen)

    def extend(self, batch: Batch) -> None:
        """Write a batch."""
        self._check_place()
        if self._ring is not None:
            self._ring.begin(batch)
        self._tables.extend(batch)
        columns = self._tables.columns(
            batch.columns, batch.kept, batch.attributes, batch.modes, self._rank
        )
        self._files.write_tables(columns)
        kept = kept_rows(columns.kept)
        values = self._files.write_values(columns, slice(None), kept, batch.freed)
        self._files.write_events(self._event_rows(columns, batch.gone), batch.open_calls)
        if self._ring is not None:
            self._ring.wrote(batch, values)
        self._tables.forget(batch)

    def settle(self) -> None:
        """Make what was written durable; local files already are."""

    def seal(self) -> None:
        """Finish every file; more may follow, into new ones."""
        self._files.seal()

    def let_go(self) -> None:
        """Close every file as it is: readable as far as it was written."""
        self._files.close()

    @property
    def place(self) -> Path | str:
        """Return the path of the trace."""
        return self.claim.storage.place

    def read(self) -> Columns:
        """Read what was written so far; raise BadTrace if another run has its place."""
        self.claim.check()
        columns = read_files(self.folder, check=self.claim.check)[0]
        self.claim.check()
        return columns

    def _remove(self, names: list[str]) -> None:
        """Remove files that were dropped from the ring."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _check_place(self) -> None:
        """Raise if the folder holds another run by now, which must not be written into."""
        self.claim.check()
