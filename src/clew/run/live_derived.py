"""What was derived of a trace that grows in memory: each event once, when it is first read.

In come the columns of everything so far, in order of their ids; out comes what follows from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clew.events.columns import (
    DERIVED_COLUMNS,
    EVENT_COLUMNS,
    VALUE_COLUMNS,
    Columns,
    Derived,
    Ints,
)
from clew.run.derive import State, derive
from clew.run.lookup import Rows, find

# Events derived at a time: what that takes besides is given back, large pieces of it are not.
_SLICE = 1 << 14


# Ids of events; the others are rows of tables and counts, which half the width holds.
_IDS = ("owner", "forward")


class _AllValues(Rows):
    """The values of a trace in memory, which has them all: none need be remembered besides."""

    def __init__(self, columns: Columns | None) -> None:
        super().__init__(("number", "producer", "name", "meta"))
        if columns is not None:
            self._end = len(columns.meta)
            self._columns = {
                "number": np.arange(self._end),
                "producer": columns.producer,
                "name": columns.value_name,
                "meta": columns.meta,
            }

    def append(self, **columns: Ints) -> None:
        """Nothing: they are there."""


class LiveDerived:
    """Facts of the events read so far.

    With `forgets`, for a run of which the oldest events fall out, without what those say about
    events to come.
    """

    def __init__(self, forgets: bool = False) -> None:
        self._state = State()
        self._forgets = forgets
        self._ids: Ints = np.zeros(0, dtype=np.int64)
        self._facts: dict[str, Any] = {
            name: np.zeros(0, dtype=np.int64 if name in _IDS else np.int32)
            for name in DERIVED_COLUMNS
        }

    def of(self, columns: Columns) -> Derived:
        """Derive the facts of all events, of those that were derived before not again."""
        known = find(self._ids, columns.id)
        new = np.flatnonzero(known < 0)
        facts = {
            name: np.append(held, held.dtype.type(-1))[known] for name, held in self._facts.items()
        }
        self._state.values = _AllValues(columns)
        for start in range(0, len(new), _SLICE):
            rows = new[start : start + _SLICE]
            found = self._derived(columns, rows)
            for name in DERIVED_COLUMNS:
                facts[name][rows] = getattr(found, name)
        self._state.values = _AllValues(None)
        if self._forgets:
            self._state.forget(np.zeros(0, dtype=np.int64), columns.id[columns.end < 0])
        # The facts of a call that is open stay as they are when it ends.
        self._ids, self._facts = columns.id, facts
        return Derived(**facts, paths=self._state.paths.rows, prefixes=self._state.prefixes.rows)

    def _derived(self, columns: Columns, rows: Ints) -> Derived:
        """Derive the facts of some events; the values new since come with the first of them."""
        arrays = {name: getattr(columns, name)[rows] for name in EVENT_COLUMNS}
        arrays |= {
            name: getattr(columns, name)[self._state.value_count :] for name in VALUE_COLUMNS
        }
        return derive(replace(columns, **arrays), self._state)
