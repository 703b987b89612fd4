"""A trace of the corpus, how exits of it are read, and the one form that facts have.

An exit is read by a function from a `Case` to `Seen`, registered by `reads`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import clew
from clew.address import with_rank
from clew.errors import ClewError
from clew.events.tensor_text import short_dtype

# Smallest and largest number, NaN and Inf count; None where no statistics were taken.
Numbers = tuple[float | None, float | None, int, int] | None


@dataclass
class Seen:
    """What one exit says of a trace: facts by row, and facts of the whole."""

    events: dict[int, dict[str, Any]]
    whole: dict[str, Any] = field(default_factory=dict)
    # Whether numbers have lost digits on the way.
    single: bool = False


class Case:
    """One trace of the corpus, and a folder to write to."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.name = path.stem
        self.folder = folder
        self.trace = clew.load(path)
        self._seen: dict[str, Seen] = {}

    def seen(self, exit: str) -> Seen:
        """Read the trace through an exit, once."""
        if exit not in self._seen:
            self._seen[exit] = EXITS[exit](self)
        return self._seen[exit]

    def keep(self, exit: str, seen: Seen) -> None:
        """Take what was read together with other traces."""
        self._seen[exit] = seen

    @property
    def objects(self) -> Seen:
        """Give what Python's objects say: what all else is compared with."""
        return self.seen("objects")

    @cached_property
    def processes(self) -> dict[tuple[int, int], int]:
        """Give the row of each event by the rank that recorded it, and its id there."""
        run = self.trace._current_run()
        pairs = zip(run.process.tolist(), run.columns.id.tolist(), strict=True)
        return {pair: row for row, pair in enumerate(pairs)}

    @cached_property
    def is_gathered(self) -> bool:
        """Tell whether callbacks or a gather made something of values: that is their series."""
        return any(event.kind == "gathered" for event in self.trace.events)

    @cached_property
    def addressed(self) -> list[int]:
        """Give the rows of events that their address and rank find, and nothing else."""
        return [event.row for event in self.trace.events if self.found_by(event) == [event.row]]

    def found_by(self, event: Any) -> list[int]:
        """Give the rows that the address and the rank of an event find."""
        try:
            return [one.row for one in self.trace[with_rank(event.address, event.rank)]]
        except ClewError:
            return []

    @cached_property
    def files(self) -> set[str]:
        found = (facts["line"] for facts in self.objects.events.values())
        return {line[0] for line in found if line is not None}

    def full_path(self, short: str) -> str:
        """Give the one file that a short name stands for."""
        matching = [file for file in self.files if f"/{file}".endswith(f"/{short}")]
        return matching[0] if len(matching) == 1 else f"{short} stands for {matching}"

    def exported(self, fmt: str) -> Path:
        return self.trace.export(fmt, self.folder / f"{self.name}.{fmt}").path


Read = Callable[[Case], Seen]
EXITS: dict[str, Read] = {}


def reads(name: str) -> Callable[[Read], Read]:
    """Register how the exit of this name is read."""

    def register(read: Read) -> Read:
        EXITS[name] = read
        return read

    return register


# Facts in their one form


def look(dtype: str, shape: Iterable[int] | None) -> str:
    return f"{short_dtype(dtype)}[{'?' if shape is None else ','.join(map(str, shape))}]"


def plain(number: Any) -> float | None:
    """Give a statistic as a number, None where there is none."""
    return None if number is None or math.isnan(float(number)) else float(number)


def joined(values: Iterable[Numbers]) -> Numbers:
    """Give the statistics over several values."""
    taken = [numbers for numbers in values if numbers is not None]
    if not taken:
        return None
    smallest = [low for low, _, _, _ in taken if low is not None]
    largest = [high for _, high, _, _ in taken if high is not None]
    nan, inf = sum(n for _, _, n, _ in taken), sum(n for _, _, _, n in taken)
    return min(smallest, default=None), max(largest, default=None), nan, inf


def of_values(
    inputs: list[tuple[str, Numbers]], outputs: list[tuple[str, Numbers]], address: str
) -> Any:
    """Give the facts that follow from the looks and the statistics of an event's tensors."""
    # What lies in memory that nobody has written is no result.
    is_unwritten = re.match(r"op:aten\.(new_)?empty(_like|_strided|_permuted)?\.", address)
    return {
        "looks": ([text for text, _ in inputs], [text for text, _ in outputs]),
        "results": None if is_unwritten else joined(numbers for _, numbers in outputs),
        "values": ([numbers for _, numbers in inputs], [numbers for _, numbers in outputs]),
    }


def call_number(number: Any) -> int | None:
    return None if number is None or number < 0 or math.isnan(number) else int(number)


def counts(kinds: Iterable[str]) -> dict[str, int]:
    found = Counter(kinds)
    return {kind: found[kind] for kind in ("module", "op")}
