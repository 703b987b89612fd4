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
        arrays = {name: getattr(columns, name)[new] for name in EVENT_COLUMNS}
        arrays |= {
            name: getattr(columns, name)[self._state.value_count :] for name in VALUE_COLUMNS
        }
        found = derive(replace(columns, **arrays), self._state)
        facts = {}
        for name in DERIVED_COLUMNS:
            facts[name] = np.append(self._facts[name], -1)[known]
            facts[name][new] = getattr(found, name)
        # The facts of a call that is open stay as they are when it ends.
        self._ids, self._facts = columns.id, facts
        return Derived(**facts, paths=found.paths, prefixes=found.prefixes)
