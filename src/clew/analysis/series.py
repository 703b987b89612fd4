"""A value over the run: one entry per event, with step, rank and source.

If callbacks or a gather made results from the values of an address, those results are its series;
the original values, if recorded, are in the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from clew import callbacks
from clew.address import Address, parse
from clew.analysis.selection import Selection, select
from clew.errors import ClewError, NoMatch, NotRecorded
from clew.events.labels import is_made_of
from clew.events.model import Source
from clew.events.notebook_port import Shown
from clew.events.vocabulary import COPIED, ENDED, GATHERED, MODES, REDUCED, SAVED, Label
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Series(Shown):
    """Values of one address rank by rank, with where each came from."""

    address: str
    values: list[Value]
    steps: list[int]
    # None for a value made from values of several ranks
    ranks: list[int | None]
    sources: list[Source | None]
    # "train" or "eval", None for a step in which no model ran, and the number of the step among
    # those of its mode
    modes: list[str | None]
    counts: list[int | None]

    def stack(self, pad: bool = False, by: str | None = None) -> Array:
        """Return all data in one array along a new first axis; `pad` fills ragged shapes with
        zeros.

        `by="rank"` adds an axis of ranks before it, `by="step"` one of steps.
        """
        if by is None:
            return self._joined([value.array() for value in self.values], pad)
        if by not in ("rank", "step"):
            raise ClewError(f"stack(by={by!r}): give 'rank', 'step' or None")
        groups = self.by_rank() if by == "rank" else self.by_step()
        sizes = {key: len(group) for key, group in groups.items()}
        if len(set(sizes.values())) > 1 and not pad:
            listed = ", ".join(f"{by} {key} has {count}" for key, count in list(sizes.items())[:5])
            raise ClewError(
                f"{self.address!r} has uneven numbers of values ({listed}); "
                "stack(pad=True) fills them up with zeros"
            )
        return self._joined([group.stack(pad) for group in groups.values()], pad)

    def by_rank(self) -> dict[int | None, Series]:
        """Return the values of each rank."""
        return self._grouped(self.ranks)

    def by_step(self) -> dict[int, Series]:
        """Return the values of each step."""
        return self._grouped(self.steps)

    def _grouped(self, keys: Iterable[Any]) -> dict[Any, Series]:
        rows: dict[object, list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        columns = [field.name for field in fields(self)][1:]
        return {
            key: Series(self.address, *([getattr(self, c)[n] for n in found] for c in columns))
            for key, found in rows.items()
        }

    def _joined(self, arrays: list[Array], pad: bool) -> Array:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the series as plain data; of the values their facts, not their elements."""
        sources = [None if source is None else source.to_dict() for source in self.sources]
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"values": [value.to_dict() for value in self.values], "sources": sources}

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Series {self.address!r}: {len(self)} value{'s' * (len(self) != 1)}>"


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a series, with the event it is from.

    `path` is where it is in the event's inputs or outputs.
    """

    path: str
    value: Value
    event: Event
    rank: int | None


def series_of(run: Run, text: str, mode: str | None) -> Series:
    """Return the values of an address as a series, only those of `mode` if one is given."""
    if mode not in (None, *MODES):
        raise ClewError(f"mode={mode!r} is not one of {', '.join(map(repr, MODES))}, None")
    counted = {
        rank: _counted(columns.modes)
        for rank, (columns, _) in zip(run.ranks, run.parts, strict=True)
    }
    found = entries(run, text)

    def step_of(entry: Entry) -> tuple[str | None, int | None]:
        # Of a copy from a rank that is not in this trace, the rank that gathered it knows the mode.
        of = counted.get(entry.event.rank, counted[int(run.process[entry.event.row])])
        return of.get(entry.event.step, (None, None))

    if mode is not None:
        found = _of_mode(found, text, mode, lambda entry: step_of(entry)[0])
    return Series(
        text,
        [entry.value for entry in found],
        [entry.event.step for entry in found],
        [entry.rank for entry in found],
        [entry.event.source for entry in found],
        [step_of(entry)[0] for entry in found],
        [step_of(entry)[1] for entry in found],
    )


def entries(run: Run, text: str) -> list[Entry]:
    """Return the values an address names, rank by rank."""
    address = parse(text)
    made = {stage: _made(run, address, stage) for stage in (ENDED, REDUCED, COPIED, SAVED)}
    found = made[ENDED] or made[REDUCED]
    if not found:
        found = made[SAVED]
        try:
            found = found or _selected(select(run, text))
        except (NoMatch, NotRecorded):
            if not made[COPIED]:
                raise
        here = {entry.rank for entry in found}
        found = found + [entry for entry in made[COPIED] if entry.rank not in here]
    return sorted(found, key=lambda entry: -1 if entry.rank is None else entry.rank)


def _selected(selection: Selection) -> list[Entry]:
    return [
        Entry(path, value, event, event.rank)
        for event in selection
        for path, value in selection.items_of(event)
    ]


def _made(run: Run, address: Address, stage: str) -> list[Entry]:
    """Return the results that callbacks or a gather made from the values of an address."""
    c = run.columns
    labels: dict[int, Label] = {
        n: label
        for n, label in enumerate(c.labels)
        if label.stage == stage and is_made_of(address, label)
    }
    kinds = {label.kind for label in labels.values()}
    rows = np.flatnonzero(np.isin(c.kind, list(kinds)) & np.isin(c.subject, list(labels)))
    found = []
    for row in rows.tolist():
        label = labels[int(c.subject[row])]
        event = run.event(row)
        rank = label.rank if label.kind == GATHERED else event.rank
        if address.call in (None, event.call) and address.rank in (None, rank):
            found += [Entry(path, value, event, rank) for path, value in event.outputs.items()]
    return found


def _of_mode(
    found: list[Entry], text: str, mode: str, mode_of: Callable[[Entry], str | None]
) -> list[Entry]:
    pairs = [(entry, mode_of(entry)) for entry in found]
    wanted = [entry for entry, of in pairs if of == mode]
    if not wanted:
        there = ", ".join(
            f"{count} of {f'{m} steps' if m else 'steps in which no model ran'}"
            for m, count in Counter(of for _, of in pairs).items()
        )
        raise ClewError(f"{text!r} has no values of {mode} steps, only {there}")
    return wanted


def _counted(modes: dict[int, str]) -> dict[int, tuple[str, int]]:
    """Return the mode of each step, and the number of the step among those of its mode."""
    counts: Counter[str] = Counter()
    found = {}
    for step, mode in sorted(modes.items()):
        found[step] = (mode, counts[mode])
        counts[mode] += 1
    return found
