"""Derived facts of a trace that grows in memory: each event once, when it is first read.

Input: the columns of everything so far, in order of ids. Output: the derived facts.
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
from clew.run.derive import derive
from clew.run.derive_state import State
from clew.run.lookup import Rows, find

# Events derived at a time, so that temporary arrays stay small and are freed.
_SLICE = 1 << 14


# Ids of events need 64 bits; the other columns are table rows and counts, which fit in 32.
_IDS = ("owner", "forward")


class _AllValues(Rows):
    """The values of a trace in memory, which has them all, so that none need be stored again."""

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
        """Do nothing: the values are there."""


class LiveDerived:
    """Facts of the events read so far.

    With `forgets`, for a run whose oldest events are dropped, the state of dropped events is
    dropped too.
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
        """Derive the facts of all events; those derived before are reused."""
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
        # The facts of an open call do not change when it ends.
        self._ids, self._facts = columns.id, facts
        return Derived(**facts, paths=self._state.paths.rows, prefixes=self._state.prefixes.rows)

    def _derived(self, columns: Columns, rows: Ints) -> Derived:
        """Derive the facts of some events; values that are new come with the first of them."""
        arrays = {name: getattr(columns, name)[rows] for name in EVENT_COLUMNS}
        arrays |= {
            name: getattr(columns, name)[self._state.value_count :] for name in VALUE_COLUMNS
        }
        return derive(replace(columns, **arrays), self._state)
