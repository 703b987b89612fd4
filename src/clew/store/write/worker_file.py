"""What another process records, as a file that it appends to: batches in, messages out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from clew.events.vocabulary import LABELLED
from clew.store.format.wire import to_bytes
from clew.stream.batch import Batch, Tables
from clew.stream.worker_faults import file_name

SUFFIX = ".part"
_KEPT_LINES = 20


class WorkerFile:
    """A writer whose batches another process can read as soon as they are written.

    `sample` is the sample this process works on; it goes with every batch. When the folder is gone,
    no one reads any more, and `closed` is set.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / f"{file_name(worker)}{SUFFIX}"
        self.worker = worker
        self._file: int | None = None
        self._tables = Tables()
        # New table rows of batches without events.
        self._unsent: dict[str, list[object]] = {}
        # value -> its meta, for values that later batches may refer to
        self._metas: dict[int, int] = {}
        self._values = 0
        self.sample: str | None = None
        # Addresses matched so far, and those already written.
        self.met: Callable[[], Iterable[str]] = tuple
        self._met: set[str] = set()
        # How many nested pieces of work are open.
        self.depth = 0
        self.closed = False
        # The last events as text, for the note on an exception.
        self.history: list[str] = []

    def extend(self, batch: Batch) -> None:
        """Write a batch; it can be read when this returns."""
        self._tables.extend(batch)
        metas = batch.columns["meta"].tolist()
        self._metas |= enumerate(metas, self._values)
        self._values += len(metas)
        batch.tables = {n: [*self._unsent.get(n, ()), *rows] for n, rows in batch.tables.items()}
        self._unsent = batch.tables
        if not self.closed and (metas or len(batch.columns["id"])):
            self._remember(batch)
            self._unsent = {}
            met = [text for text in self.met() if text not in self._met]
            self._met.update(met)
            facts = {"worker": self.worker, "sample": self.sample, "met": met}
            self._write(to_bytes(batch, facts))
        for number in batch.gone.tolist():
            self._metas.pop(number, None)

    def _remember(self, batch: Batch) -> None:
        """Keep the last events as text."""
        columns, rows = batch.columns, self._tables.rows
        refs = columns["refs"].tolist()
        firsts = [*columns["first_ref"].tolist(), len(refs)]
        labelled = np.flatnonzero(np.isin(columns["kind"], LABELLED)).tolist()
        for at in labelled[-_KEPT_LINES:]:
            place = rows["places"][columns["place"][at]]
            where = f"  {os.path.basename(place.file)}:{place.line}" if place.file else ""
            shown = ", ".join(
                self._words(number) for number in refs[firsts[at] : firsts[at + 1]][:4]
            )
            line = f"{rows['labels'][columns['subject'][at]].stem}  {shown}{where}"
            self.history = [*self.history[1 - _KEPT_LINES :], line]

    def _words(self, value: int) -> str:
        meta = self._tables.rows["metas"][self._metas[value]]
        sizes = "?" if meta.shape is None else ",".join(map(str, meta.shape))
        return f"{meta.dtype}[{sizes}]"

    def _write(self, data: bytes) -> None:
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = os.open(self._path, flags, 0o600)
            # A reader that has finished removes the folder; unlinked files would only fill the
            # disk.
            if not os.fstat(self._file).st_nlink:
                raise FileNotFoundError(str(self._path))
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self.closed = True
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
