"""The memory store: keeps the parts of a trace in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import COLUMN_NAMES, EVENT_COLUMNS, VALUE_COLUMNS, Ints
from clew.events.records import Batch, Kept
from clew.store.write.build_columns import Compactor, Part
from clew.store.write.dedup import KeptContents

_SMALL = 1 << 14


class MemoryStore:
    """A sink that keeps everything, compacted."""

    def __init__(self) -> None:
        self.tables = Compactor()
        self.kept: dict[int, Kept] = {}
        self._contents = KeptContents()
        self._pending: Batch | None = None
        self._columns: dict[str, list[Ints]] = {name: [] for name in COLUMN_NAMES}

    def extend(self, batch: Batch) -> None:
        """Take over a batch of records, putting off the last one's work until it is asked for."""
        self._compact()
        self._pending = batch

    def arrays(self, open_calls: list[Any]) -> dict[str, Ints]:
        """Every column, events in order of their ids, with rows for calls that are still open."""
        self._compact()
        part = self.tables.compact_open(open_calls)
        self.add_values(part)
        for name in VALUE_COLUMNS:
            part.columns[name] = part.columns[name][:0]
        columns = in_order([self._whole(), part])
        if not open_calls:
            # In order is as good as any: one copy is enough.
            self._columns = {name: [column] for name, column in columns.items()}
        return columns

    def _compact(self) -> None:
        if self._pending is not None:
            batch, self._pending = self._pending, None
            self.add(batch)

    def add(self, batch: Batch) -> Part:
        """Take over a batch at once; what it adds."""
        part = self.tables.compact(batch)
        for number, kept in part.kept.items():
            self.kept[number] = self._shared(kept)
        for name, column in part.columns.items():
            _append(self._columns[name], column)
        return part

    def add_values(self, part: Part) -> None:
        """Keep the values of a part of open calls: they have numbers of their own."""
        for name in VALUE_COLUMNS:
            _append(self._columns[name], part.columns[name])

    def since(self, name: str, count: int) -> Ints:
        """A column of values from its row `count` on."""
        pieces: list[Ints] = []
        missing = self.tables.value_count - count
        for column in reversed(self._columns[name]):
            if missing <= 0:
                break
            pieces.insert(0, column[max(0, len(column) - missing) :])
            missing -= len(column)
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

    def _shared(self, kept: Kept) -> Kept:
        if kept.payload is None:
            return kept
        return kept._replace(payload=self._contents.shared(kept.payload))

    def _whole(self) -> Part:
        for columns in self._columns.values():
            columns[:] = [np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)]
        return Part({name: columns[0] for name, columns in self._columns.items()}, {})


class UnkeptStore(MemoryStore):
    """A sink that keeps nothing, for what is told as it happens and read by nobody."""

    # Handed over at a time: few, as they are only waiting to be forgotten.
    BATCH = 256

    def extend(self, batch: Batch) -> None:
        """Let a batch of records go."""

    def arrays(self, open_calls: list[Any]) -> dict[str, Ints]:
        """Every column, all of them empty."""
        return super().arrays([])


def _append(pieces: list[Ints], column: Ints) -> None:
    """Add a piece of a column; small ones become one, as an array of few rows is mostly itself."""
    while pieces and len(pieces[-1]) <= len(column) < _SMALL:
        column = np.concatenate([pieces.pop(), column])
    pieces.append(column)


def in_order(parts: list[Part]) -> dict[str, Ints]:
    """Join the columns of all parts, events in order of their ids."""
    columns = {name: np.concatenate([p.columns[name] for p in parts]) for name in COLUMN_NAMES}
    order = np.argsort(columns["id"], kind="stable")
    for name in EVENT_COLUMNS:
        columns[name] = columns[name][order]
    return columns
