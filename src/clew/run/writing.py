"""Rows of the event table for writers of a trace: live, batch by batch, or a whole rank.

Input: columns. Output: the columns of `store.format.schema.EVENTS`, with every derived fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from clew.events.columns import EVENT_COLUMNS, Columns, Ints
from clew.events.vocabulary import Kept
from clew.run.derive import derive
from clew.run.derive_state import State
from clew.run.event_table import event_table, event_tensors, numbers_of_tables, output_stats, ranks
from clew.run.lookup import find
from clew.run.value_stats import stat_columns

# Rows made at a time of a whole rank: enough to be quick, few enough to stay small.
_SLICE = 1 << 16


class LiveEventRows:
    """Derives the facts of a run as it is written, and makes rows of them."""

    def __init__(self) -> None:
        self._state = State()
        # Statistics of values that later events may refer to; their data stays in the files.
        self._kept: dict[int, Kept] = {}

    def __call__(self, batch: Columns, gone: Ints) -> dict[str, Any]:
        """Return the rows of a batch; `gone` are the values that later events do not mention."""
        derived = derive(batch, self._state)
        self._kept |= {n: Kept(k.stats, None) for n, k in batch.kept.items() if k.stats is not None}
        tensors = event_tensors(batch)
        numbers, at = np.unique(tensors.value, return_inverse=True)
        metas = self._state.values["meta"][find(self._state.values["number"], numbers)]
        known = self._kept
        kept = {i: known[n] for i, n in enumerate(numbers.tolist()) if n in known} if known else {}
        stats = output_stats(batch, stat_columns(kept, len(numbers)), tensors, at)
        self._state.forget(gone, batch.id[batch.end < 0])
        if self._kept:
            for number in gone.tolist():
                self._kept.pop(number, None)
        return {
            **event_table(batch, derived, ranks(batch, batch.rank), tensors, metas[at]),
            **numbers_of_tables(batch, tensors),
            **stats,
        }


def rows_of_rank(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of a whole rank, a slice at a time."""
    derived = columns.derived
    assert derived is not None
    stats = stat_columns(columns.kept, len(columns.meta))
    for start in range(0, len(columns.id), _SLICE):
        rows = slice(start, start + _SLICE)
        part = replace(columns, **{name: getattr(columns, name)[rows] for name in EVENT_COLUMNS})
        tensors = event_tensors(part)
        meta = part.meta[tensors.value]
        yield {
            **event_table(part, derived.take(rows), ranks(part, part.rank), tensors, meta),
            **numbers_of_tables(part, tensors),
            **output_stats(part, stats, tensors, tensors.value),
        }
