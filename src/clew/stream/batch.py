"""A batch: what was observed in a while, as arrays of integers and rows of the tables they mean.

Whoever can make one can take part: the observers of this process, a DataLoader's worker, another
rank, a native recorder. Whoever keeps a trace takes nothing else. No live object of the program is
in it: arrays, texts, numbers, bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from clew.events.columns import COLUMN_NAMES, EVENT_COLUMNS, Attributes, Columns, Ints
from clew.events.records import Kept

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

    `columns` has one array for each of COLUMN_NAMES. Values are numbered from batch to batch, and
    `first_ref` counts within this one. The last `open_calls` events are calls that are not over:
    they come again. `tables` holds the rows that each of TABLES has gained, `kept` what was kept
    of values beyond their facts, `gone` the values that no later batch mentions, `freed` in two
    rows the values whose memory was seen to be gone, and the ops before which. `attributes`,
    `modes` and `sources` are added to those known, `environment` takes the place of the one before.
    """

    columns: dict[str, Ints]
    open_calls: int = 0
    tables: dict[str, list[Any]] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    gone: Ints = field(default_factory=_nothing)
    freed: Ints = field(default_factory=lambda: _nothing().reshape(2, 0))
    attributes: list[Attributes] = field(default_factory=list)
    modes: dict[int, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


class Writer(Protocol):
    """Whoever keeps what was observed."""

    def extend(self, batch: Batch) -> None:
        """Take over a batch."""


class Tables:
    """What the integers of all batches so far mean."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {name: [] for name in TABLES}
        self.modes: dict[int, str] = {}
        self.sources: dict[str, str] = {}
        self.environment: dict[str, Any] = {}

    def extend(self, batch: Batch) -> None:
        """Learn what a batch adds."""
        for name, rows in batch.tables.items():
            self.rows[name] += rows
        self.modes |= batch.modes
        self.sources |= batch.sources
        self.environment = batch.environment

    def columns(
        self, arrays: dict[str, Ints], kept: Any, attributes: list[Attributes], rank: int
    ) -> Columns:
        """Give arrays together with what they mean."""
        given: dict[str, Any] = {**arrays, **self.rows, "gaps": list(self.rows["gaps"])}
        return Columns(
            **given,
            modes=dict(self.modes),
            sources=self.sources,
            environment=self.environment,
            kept=kept,
            attributes=attributes,
            rank=rank,
        )


def without_open_calls(batch: Batch) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Give the columns of what is over, and those of the events of open calls."""
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
