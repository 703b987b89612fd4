"""Gradients that a `GradScaler` looks after: it skips the step and lowers its scale.

Input: a `Run`. Output: the scales of its losses, and whether one of them explains an overflow. NaN
is none of it, as no scale makes NaN of finite numbers, nor is an overflow with a scale of 1 or
less, which the scaler cannot help.
"""

from __future__ import annotations

import bisect

import numpy as np

from clew.analysis.nonfinite_hints import NARROW, size_of
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

_SCALER = "amp/grad_scaler.py"


class LossScales:
    """The scale of each loss that a `GradScaler` scaled, in order of rows."""

    def __init__(self, run: Run) -> None:
        places = run.columns.places
        inside = [
            place.function.rpartition(".")[2] == "scale" and place.file.endswith(_SCALER)
            for place in places
        ]
        rows = np.flatnonzero(np.array([*inside, False])[run.columns.place]).tolist()
        events = (run.event(row) for row in rows) if any(inside) else ()
        scaling = [event for event in events if event.name.startswith("aten.mul")]
        self._rows = [event.row for event in scaling]
        self._scales = [
            min((size_of(value.stats) for value in list(event.inputs.values())[1:]), default=0)
            for event in scaling
        ]

    def at(self, row: int) -> float:
        """Return the scale of the last loss up to a row, 0 if there was none."""
        position = bisect.bisect_right(self._rows, row)
        return self._scales[position - 1] if position else 0.0

    def handle(self, event: Event, value: Value, hint: str) -> bool:
        """Return whether the scaler deals with what an event made of finite numbers."""
        stats = value.stats
        is_overflow = stats is not None and not stats.nan and "overflow" in hint
        if not is_overflow or self.at(event.row) <= 1:
            return False
        in_gradient = event.phase == "backward" and value.dtype in NARROW
        return in_gradient or any(_SCALER in place.file for place in event.stack)
