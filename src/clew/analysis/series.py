"""A value over the run: one entry per event, with step, rank and source beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew import callbacks
from clew.analysis.select import Selection
from clew.errors import ClewError
from clew.events.model import Source, Value


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one address in order, with where each came from."""

    address: str
    values: list[Value]
    steps: list[int]
    ranks: list[int]
    sources: list[Source | None]

    def stack(self, pad: bool = False) -> np.ndarray[Any, Any]:
        """All data in one array along a new first axis; `pad` fills ragged shapes with zeros."""
        arrays = [value.array() for value in self.values]
        shapes = {a.shape for a in arrays}
        if len(shapes) == 1:
            return np.stack(arrays)
        if not pad:
            listed = ", ".join(str(list(shape)) for shape in sorted(shapes, key=str)[:5])
            raise ClewError(
                f"{self.address!r} has values of {len(shapes)} shapes ({listed}); "
                "stack(pad=True) fills them up with zeros"
            )
        return callbacks.stack_padded(arrays)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Series {self.address!r}: {len(self)} values>"


def series(selection: Selection) -> Series:
    """The values of a selection as a series."""
    pairs = [(value, event) for event in selection for value in selection._values_of(event)]
    return Series(
        selection.address,
        [value for value, _ in pairs],
        [event.step for _, event in pairs],
        [event.rank for _, event in pairs],
        [event.source for _, event in pairs],
    )
