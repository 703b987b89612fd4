"""A value over the run: one entry per event, with step, rank and source beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew import callbacks
from clew.analysis.select import Selection
from clew.errors import ClewError
from clew.events.model import Source, Value
from clew.events.records import MODES
from clew.store.reader import Reader


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one address in order, with where each came from."""

    address: str
    values: list[Value]
    steps: list[int]
    ranks: list[int]
    sources: list[Source | None]
    # "train" or "eval", None for a step in which no model ran, and the number of the step among
    # those of its mode
    modes: list[str | None]
    counts: list[int | None]

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


def series(readers: list[Reader], selection: Selection, mode: str | None) -> Series:
    """The values of a selection as a series, only those of `mode` if one is given."""
    if mode not in (None, *MODES):
        raise ClewError(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}, None")
    counted = {reader.columns.rank: _counted(reader.columns.modes) for reader in readers}
    pairs = [
        (value, event, *counted[event.rank].get(event.step, (None, None)))
        for event in selection
        for value in selection._values_of(event)
    ]
    if mode is not None:
        found = Counter(pair[2] for pair in pairs)
        pairs = [pair for pair in pairs if pair[2] == mode]
        if not pairs:
            there = ", ".join(
                f"{count} of {f'{m} steps' if m else 'steps in which no model ran'}"
                for m, count in found.items()
            )
            raise ClewError(f"{selection.address!r} has no values of {mode} steps, only {there}")
    return Series(
        selection.address,
        [value for value, *_ in pairs],
        [event.step for _, event, *_ in pairs],
        [event.rank for _, event, *_ in pairs],
        [event.source for _, event, *_ in pairs],
        [of for *_, of, _ in pairs],
        [count for *_, count in pairs],
    )


def _counted(modes: dict[int, str]) -> dict[int, tuple[str, int]]:
    """The mode of each step, and the number of the step among those of its mode."""
    counts: Counter[str] = Counter()
    found = {}
    for step, mode in sorted(modes.items()):
        found[step] = (mode, counts[mode])
        counts[mode] += 1
    return found
