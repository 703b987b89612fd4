"""A batch: what was observed in a while, as arrays of integers and rows of the tables they refer
to.

Anything that can make one can add to a trace: the observers of this process, a DataLoader worker,
another rank, a native recorder. Stores take nothing else. A batch holds no live object of the
program: only arrays, texts, numbers, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from clew.events.columns import COLUMN_NAMES, EVENT_COLUMNS, Attributes, Columns, Ints
from clew.events.vocabulary import Kept

# Rows are only ever added to these; columns refer to them by number.
TABLES = (
    "ops", "modules", "notes", "labels", "places", "templates", "metas", "errors", "value_names",
    "parameters", "threads", "generators", "gaps",
)  # fmt: skip


def _nothing() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Batch:
    """What was observed since the batch before.

    `columns` has one array for each of COLUMN_NAMES. Values are numbered across batches, and
    `first_ref` counts within this one. The last `open_calls` events are calls that have not ended:
    they come again. `tables` holds the new rows of each of TABLES, `kept` statistics and data of
    values, `gone` the values and `gone_templates` the template rows that no later batch refers to.
    `freed` has two rows: values whose memory was freed, and the first op after that. `attributes`,
    `modes` and `sources` are added to those known; `environment` replaces the one before.
    """

    columns: dict[str, Ints]
    open_calls: int = 0
    tables: dict[str, list[Any]] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    gone: Ints = field(default_factory=_nothing)
    freed: Ints = field(default_factory=lambda: _nothing().reshape(2, 0))
    gone_templates: list[int] = field(default_factory=list)
    attributes: list[Attributes] = field(default_factory=list)
    modes: dict[int, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    """Anything that observes a running program, between `start` and `stop`."""

    def start(self) -> None:
        """Begin to observe."""

    def stop(self) -> None:
        """Stop observing, and leave nothing behind in the program."""


class Writer(Protocol):
    """Anything that stores what was observed."""

    def extend(self, batch: Batch) -> None:
        """Take over a batch."""


class LastingWriter(Writer, Protocol):
    """A writer whose batches can be made durable; each call may fail."""

    def settle(self) -> None:
        """Make everything so far durable."""

    def seal(self) -> None:
        """Finish what is written."""

    def let_go(self) -> None:
        """Leave what is written as it is."""


class NumberedRows(Sequence[Any]):
    """Rows of a table by their numbers; rows that are not used any more can be dropped."""

    def __init__(self) -> None:
        self._count = 0
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        return self._held[number]

    def __iadd__(self, rows: list[Any]) -> NumberedRows:
        self._held |= enumerate(rows, self._count)
        self._count += len(rows)
        return self

    def forget(self, numbers: list[int]) -> None:
        """Drop some rows."""
        for number in numbers:
            self._held.pop(number, None)


class Tables:
    """The tables that the integers of all batches so far refer to.

    With `forgets`, for a writer that writes rows as they come, rows that no later batch refers to
    are dropped.
    """

    def __init__(self, forgets: bool = False) -> None:
        self.rows: dict[str, Any] = {name: [] for name in TABLES}
        if forgets:
            self.rows["templates"] = NumberedRows()
        self.sources: dict[str, str] = {}
        self.environment: dict[str, Any] = {}

    def extend(self, batch: Batch) -> None:
        """Add the new rows of a batch."""
        for name, rows in batch.tables.items():
            self.rows[name] += rows
        self.sources |= batch.sources
        self.environment = batch.environment

    def forget(self, batch: Batch) -> None:
        """Drop rows that no later batch refers to."""
        self.rows["templates"].forget(batch.gone_templates)

    def columns(
        self,
        arrays: dict[str, Ints],
        kept: Any,
        attributes: list[Attributes],
        modes: dict[int, str],
        rank: int,
    ) -> Columns:
        """Return arrays together with the tables they refer to."""
        given: dict[str, Any] = {**arrays, **self.rows, "gaps": list(self.rows["gaps"])}
        return Columns(
            **given,
            modes=modes,
            sources=self.sources,
            environment=self.environment,
            kept=kept,
            attributes=attributes,
            rank=rank,
        )


def without_open_calls(batch: Batch) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Return the columns of ended events, and those of open calls."""
    columns, count = batch.columns, len(batch.columns["id"]) - batch.open_calls
    first = columns["first_ref"]
    refs = int(first[count]) if batch.open_calls else len(columns["refs"])
    over = {**columns, "refs": columns["refs"][:refs]}
    still_open = dict.fromkeys(COLUMN_NAMES, _nothing())
    still_open["refs"] = columns["refs"][refs:]
    for name in EVENT_COLUMNS:
        over[name], still_open[name] = columns[name][:count], columns[name][count:]
    still_open["first_ref"] = still_open["first_ref"] - refs
    return over, still_open
