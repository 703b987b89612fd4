"""The answer to where the memory went, as frozen data.

`analysis.memory.memory_answer` makes it from a run; `memory_lines` writes it as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clew.analysis.memory.memory_lines import ROWS, memory_lines, moment_lines
from clew.events.model import Data, Source
from clew.plain_text import plain
from clew.run.event import Event

# The ways in which what is alive is grouped.
GROUPINGS = ("kind", "module", "line")


@dataclass(frozen=True, slots=True)
class MemoryGroup(Data):
    """Memory of one kind, of one module, or made by one line: bytes and number of storages.

    `kinds` has the bytes of each kind in it. `source` is the line for a group by line, else None.
    """

    name: str
    bytes: int
    count: int
    kinds: dict[str, int]
    source: Source | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain data."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "count": self.count,
            "kinds": dict(self.kinds),
            "source": None if self.source is None else self.source.to_dict(),
        }


@dataclass(frozen=True, slots=True, repr=False)
class MemoryMoment(Data):
    """What is alive right after an event, the largest groups first.

    `unproven` are the bytes of "saved for backward" that no backward op was seen to take: no
    backward pass followed, so the graph or the program holds them.
    """

    event: Event
    bytes: int
    kinds: tuple[MemoryGroup, ...]
    modules: tuple[MemoryGroup, ...]
    lines: tuple[MemoryGroup, ...]
    unproven: int

    def by(self, grouping: str) -> tuple[MemoryGroup, ...]:
        """Return the groups by `"kind"`, `"module"` or `"line"`."""
        return {"kind": self.kinds, "module": self.modules, "line": self.lines}[grouping]

    def __str__(self) -> str:
        return "\n".join(moment_lines(self, ROWS))

    def __repr__(self) -> str:
        return plain(f"<MemoryMoment {self.bytes:,} bytes after {self.event.address}>")

    def to_dict(
        self, rows: int | None = None, groupings: tuple[str, ...] = GROUPINGS
    ) -> dict[str, Any]:
        """Return the moment as plain data, with at most so many rows of each grouping."""
        event, source = self.event, self.event.source
        return {
            "bytes": self.bytes,
            "event": event.id,
            "address": event.address,
            "step": event.step,
            "phase": event.phase,
            "module": event.module,
            "source": None if source is None else source.to_dict(),
            "unproven": self.unproven,
            **{
                f"by_{name}": [group.to_dict() for group in self.by(name)[:rows]]
                for name in groupings
            },
        }


@dataclass(frozen=True, slots=True)
class StepMemory(Data):
    """The most bytes alive in a step, and those alive at its end."""

    step: int
    peak: int
    end: int


@dataclass(frozen=True, slots=True, repr=False)
class MemoryGrowth(Data):
    """Memory that stays from step to step: bytes alive at step ends that keep growing.

    `first` and `last` are the steps between which it grew, by `bytes` in all. `lines` are the lines
    that made what stayed, the largest first; `has_graph` says whether autograd follows it; `event`
    made the last of what stayed in a step.
    """

    first: int
    last: int
    bytes: int
    lines: tuple[MemoryGroup, ...]
    has_graph: bool
    event: Event

    @property
    def per_step(self) -> int:
        """Return the bytes that stay in a step, on average."""
        return self.bytes // max(self.last - self.first, 1)

    def __repr__(self) -> str:
        return f"<MemoryGrowth {self.per_step:,} bytes per step>"

    def to_dict(self) -> dict[str, Any]:
        """Return the growth as plain data."""
        source = self.event.source
        return {
            "first": self.first,
            "last": self.last,
            "bytes": self.bytes,
            "per_step": self.per_step,
            "has_graph": self.has_graph,
            "lines": [group.to_dict() for group in self.lines],
            "event": self.event.id,
            "source": None if source is None else source.to_dict(),
        }


@dataclass(frozen=True, slots=True, repr=False)
class DeviceMemory(Data):
    """The memory of one device on one rank: the peak, the steps, the way there."""

    rank: int
    device: str
    peak: MemoryMoment
    steps: tuple[StepMemory, ...]
    # the most bytes alive in each of equal stretches of the run
    timeline: tuple[int, ...]
    growth: MemoryGrowth | None
    advice: tuple[str, ...]

    def __repr__(self) -> str:
        where = f"{self.device} of rank {self.rank}"
        return plain(f"<DeviceMemory {where}: peak {self.peak.bytes:,} bytes>")

    def to_dict(
        self, rows: int | None = None, groupings: tuple[str, ...] = GROUPINGS
    ) -> dict[str, Any]:
        """Return the memory as plain data, with at most so many rows of each list."""
        return {
            "rank": self.rank,
            "device": self.device,
            "peak": self.peak.to_dict(rows, groupings),
            "steps": [step.to_dict() for step in self.steps[:rows]],
            "timeline": list(self.timeline),
            "growth": None if self.growth is None else self.growth.to_dict(),
            "advice": list(self.advice),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Memory(Data):
    """Where the memory of a run went; `print` shows it.

    `devices` has an entry per rank and device, the one with the highest peak first. `notes` say
    what was not counted. `at` gives what was alive at another moment.
    """

    devices: tuple[DeviceMemory, ...]
    notes: tuple[str, ...]
    _moment: Callable[[Event | int, int, str], MemoryMoment] = field(repr=False, compare=False)

    @property
    def peak(self) -> MemoryMoment | None:
        """Return the moment of the highest peak, None if no memory was seen."""
        return self.devices[0].peak if self.devices else None

    @property
    def growth(self) -> MemoryGrowth | None:
        """Return the first growth over steps that was found, None if there is none."""
        return next((one.growth for one in self.devices if one.growth is not None), None)

    def at(self, moment: Event | int) -> MemoryMoment:
        """Return what was alive right after an event, or at the peak of a step.

        It is of the rank and device with the highest peak, or of the event's rank.
        """
        first = self.devices[0] if self.devices else None
        rank, device = (0, "") if first is None else (first.rank, first.device)
        return self._moment(moment, rank, device)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        peak = self.peak
        return "<Memory: none seen>" if peak is None else f"<Memory: peak {peak.bytes:,} bytes>"

    def text(self, rows: int = ROWS, by: str | None = None, more: str = "") -> str:
        """Write it, with at most so many rows in each table; `by` names the only table to show."""
        return "\n".join(memory_lines(self, rows, by, more))

    def to_dict(self, rows: int | None = None, by: str | None = None) -> dict[str, Any]:
        """Return it as plain data, with at most so many rows of each list, or of one grouping."""
        groupings = GROUPINGS if by is None else (by,)
        return {
            "devices": [device.to_dict(rows, groupings) for device in self.devices],
            "notes": list(self.notes),
        }
