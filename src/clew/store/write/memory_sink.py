"""The memory store: keeps the batches of a trace, joined into columns."""

from __future__ import annotations

import threading

import numpy as np

from clew.events.columns import COLUMN_NAMES, EVENT_COLUMNS, Attributes, Columns, Ints, Template
from clew.events.vocabulary import Kept
from clew.store.write.dedup import KeptContents
from clew.stream.batch import Batch, Tables, without_open_calls
from clew.stream.modes import Modes

_SMALL = 1 << 14


class MemoryStore:
    """A writer that keeps everything in arrays."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._kept: dict[int, Kept] = {}
        self._attributes: list[Attributes] = []
        self._modes = Modes()
        self._freed: list[Ints] = []
        self._contents = KeptContents()
        self._columns: dict[str, list[Ints]] = {name: [] for name in COLUMN_NAMES}
        self._refs = 0
        # Events of the calls that were open when the last batch was made.
        self._open: dict[str, Ints] | None = None
        # Any thread of the program may hand a batch over while another one reads.
        self._lock = threading.RLock()

    def extend(self, batch: Batch) -> None:
        """Take over a batch."""
        with self._lock:
            self._extend(batch)

    def _extend(self, batch: Batch) -> None:
        self._tables.extend(batch)
        for number, kept in batch.kept.items():
            self._kept[number] = self._shared(kept)
        self._attributes += batch.attributes
        for step, mode in batch.modes.items():
            self._modes.settle(step, mode)
        if batch.freed.size:
            self._freed.append(batch.freed)
        over, self._open = batch.columns, None
        if batch.open_calls:
            over, self._open = without_open_calls(batch)
        over = {**over, "first_ref": over["first_ref"] + self._refs}
        self._refs += len(over["refs"])
        for name, column in over.items():
            _append(self._columns[name], column)

    @property
    def count(self) -> int:
        """Return how many events have ended."""
        return sum(map(len, self._columns["id"]))

    @property
    def open_calls(self) -> Ints:
        """Return the ids of open calls, which come again."""
        return np.zeros(0, dtype=np.int64) if self._open is None else self._open["id"]

    def hold(
        self,
        columns: dict[str, Ints],
        kept: dict[int, Kept],
        templates: list[Template],
        attributes: list[Attributes],
    ) -> None:
        """Replace columns, kept data, templates and attributes; the other tables stay."""
        self._columns = {name: [column] for name, column in columns.items()}
        self._refs = len(columns["refs"])
        self._open = None
        self._kept = kept
        self._contents = KeptContents()
        self._tables.rows["templates"] = templates
        self._attributes = attributes

    def read(self, rank: int) -> Columns:
        """Return everything so far, events in order of their ids, including open calls."""
        with self._lock:
            return self._read(rank)

    def _read(self, rank: int) -> Columns:
        whole = {name: _joined(pieces) for name, pieces in self._columns.items()}
        for values, events in self._freed:
            whole["freed"][values] = events
        self._freed.clear()
        columns = dict(whole)
        if self._open is not None:
            still_open = {**self._open, "first_ref": self._open["first_ref"] + self._refs}
            columns = {n: np.concatenate([c, still_open[n]]) for n, c in whole.items()}
        order = np.argsort(columns["id"], kind="stable")
        for name in EVENT_COLUMNS:
            columns[name] = columns[name][order]
        if self._open is None:
            # If they are in order, one copy is enough.
            whole = columns
        self._columns = {name: [column] for name, column in whole.items()}
        return self._tables.columns(
            columns, self._kept, list(self._attributes), dict(self._modes), rank
        )

    def _shared(self, kept: Kept) -> Kept:
        if kept.payload is None:
            return kept
        return kept._replace(payload=self._contents.shared(kept.payload))


def _append(pieces: list[Ints], column: Ints) -> None:
    """Add a piece of a column; small pieces are joined, as a small array is mostly overhead."""
    while pieces and len(pieces[-1]) <= len(column) < _SMALL:
        column = np.concatenate([pieces.pop(), column])
    pieces.append(column)


def _joined(pieces: list[Ints]) -> Ints:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
