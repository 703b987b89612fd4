"""What was derived of a trace that grows in memory: each event once, when it is first read.

In come the columns of everything so far, in order of their ids; out comes what follows from them.
"""

from __future__ import annotations

from dataclasses import replace

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
from clew.run.lookup import find

# Events derived at a time: what that takes besides is given back, large pieces of it are not.
_SLICE = 1 << 14


class LiveDerived:
    """Facts of the events read so far."""

    def __init__(self) -> None:
        self._state = State()
        self._ids: Ints = np.zeros(0, dtype=np.int64)
        self._facts: dict[str, Ints] = {n: np.zeros(0, dtype=np.int64) for n in DERIVED_COLUMNS}

    def of(self, columns: Columns) -> Derived:
        """Derive the facts of all events, of those that were derived before not again."""
        known = find(self._ids, columns.id)
        new = np.flatnonzero(known < 0)
        facts = {name: np.append(self._facts[name], -1)[known] for name in DERIVED_COLUMNS}
        for start in range(0, len(new), _SLICE):
            rows = new[start : start + _SLICE]
            found = self._derived(columns, rows)
            for name in DERIVED_COLUMNS:
                facts[name][rows] = getattr(found, name)
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
