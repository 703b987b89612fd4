"""Where the memory of a run went: bytes alive over time, the peak, and what was alive then.

Input: a `Run`. Output: a `Memory`. Storages are counted from the op that made them up to the op
before which they were seen to be freed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.file_names import file_names
from clew.analysis.memory.lifetimes import Lifetimes, lifetimes
from clew.analysis.memory.memory_advice import advice
from clew.analysis.memory.memory_groups import Grouping
from clew.analysis.memory.memory_growth import growth
from clew.analysis.memory.memory_kinds import SAVED, MemoryKinds, memory_kinds
from clew.analysis.memory.memory_model import DeviceMemory, Memory, MemoryMoment, StepMemory
from clew.errors import ClewError
from clew.events.columns import Flags, Ints
from clew.events.vocabulary import COMPOSITE, MODULE, OP
from clew.run.event import Event
from clew.run.run import Run

_POINTS = 60


@dataclass(frozen=True, slots=True)
class MemorySearch:
    """All that answers about memory share: storages, their kinds, how to group them."""

    run: Run
    lives: Lifetimes
    kinds: MemoryKinds
    grouping: Grouping

    def alive_bytes(self, rank: int, device: int) -> Ints:
        """Return the bytes alive right after each row of a rank."""
        first, end = self.lives.rows_of(rank)
        mine = self.on(rank, device)
        size = self.lives.size[mine]
        change = np.bincount(self.lives.born[mine] - first, size, end - first + 1)
        change -= np.bincount(self.lives.died[mine] - first, size, end - first + 1)
        return np.cumsum(change)[:-1].astype(np.int64)

    def on(self, rank: int, device: int) -> Flags:
        """Return which storages are on a device of a rank."""
        first, end = self.lives.rows_of(rank)
        born = self.lives.born
        mine: Flags = (born >= first) & (born < end) & (self.lives.device == device)
        return mine

    def moment(self, row: int, device: int) -> MemoryMoment:
        """Return what is alive on a device right after a row."""
        run, lives = self.run, self.lives
        mine = self.on(int(run.process[row]), device) & (lives.born <= row) & (lives.died > row)
        kind = self.kinds.at(row)
        saved = mine & (kind == SAVED)
        return MemoryMoment(
            run.event(row),
            int(lives.size[mine].sum()),
            self.grouping.by_kind(mine, kind),
            self.grouping.by_module(mine, kind),
            self.grouping.by_line(mine, kind),
            int(lives.size[saved & self.kinds.unproven(row)].sum()),
        )


def memory_search(run: Run) -> MemorySearch:
    """Follow the memory of a run, for all answers about it."""
    lives = lifetimes(run)
    kinds = memory_kinds(lives)
    return MemorySearch(run, lives, kinds, Grouping(lives, kinds, file_names(run)))


def memory_of(run: Run) -> Memory:
    """Say where the memory of a run went."""
    return answered(memory_search(run))


def answered(search: MemorySearch) -> Memory:
    """Say where the memory went, of a search that is done."""
    run = search.run
    found = []
    for rank in run.ranks:
        for device, name in enumerate(search.lives.devices):
            if search.on(rank, device).any():
                found.append(_device_memory(search, rank, device, name))
    found.sort(key=lambda one: -one.peak.bytes)

    def moment(asked: Event | int, rank: int, device: str) -> MemoryMoment:
        return _asked_moment(search, asked, rank, device)

    return Memory(tuple(found), _notes(search), moment)


def _device_memory(search: MemorySearch, rank: int, device: int, name: str) -> DeviceMemory:
    alive = search.alive_bytes(rank, device)
    first, _ = search.lives.rows_of(rank)
    peak = search.moment(first + int(alive.argmax()), device)
    mine = search.on(rank, device)
    steps = _steps(search.run, rank, first, alive)
    found = growth(search.kinds, search.grouping, mine, steps, peak.bytes)
    return DeviceMemory(
        rank,
        name,
        peak,
        steps,
        _timeline(alive),
        found,
        advice(search.kinds, mine, peak, found),
    )


def _steps(run: Run, rank: int, first: int, alive: Ints) -> tuple[StepMemory, ...]:
    """Return the peak and the end of each step of a rank."""
    rows = first + np.arange(len(alive))
    ran = np.isin(run.columns.kind[rows], (OP, COMPOSITE, MODULE))
    step, bytes_alive = run.step[rows][ran], alive[ran]
    starts = np.flatnonzero(np.diff(step, prepend=step[0] - 1)) if len(step) else step
    if not len(starts):
        return ()
    peaks = np.maximum.reduceat(bytes_alive, starts).tolist()
    ends = bytes_alive[np.append(starts[1:], len(step)) - 1].tolist()
    numbers = step[starts].tolist()
    return tuple(map(StepMemory, numbers, peaks, ends))


def _timeline(alive: Ints) -> tuple[int, ...]:
    """Return the most bytes alive in each of equal stretches."""
    count = min(_POINTS, len(alive))
    starts = np.arange(count) * len(alive) // count
    return tuple(np.maximum.reduceat(alive, starts).tolist())


def _asked_moment(search: MemorySearch, asked: Event | int, rank: int, device: str) -> MemoryMoment:
    run = search.run
    if not device:
        raise ClewError("no memory of tensors was seen in this trace")
    number = search.lives.devices.index(device)
    if isinstance(asked, Event):
        row = run.row_of(asked.id, int(asked.rank))
        if row < 0:
            raise ClewError(f"the trace has no event {asked.address}")
        return search.moment(row, number)
    if asked not in run.steps:
        listed = ", ".join(map(str, run.steps[:20]))
        raise ClewError(f"the trace has no step {asked!r}; it has {listed}")
    first, end = search.lives.rows_of(rank)
    rows = first + np.flatnonzero(run.step[first:end] == asked)
    if not len(rows):
        raise ClewError(f"rank {rank} has no step {asked!r}")
    alive = search.alive_bytes(rank, number)
    return search.moment(int(rows[alive[rows - first].argmax()]), number)


def _notes(search: MemorySearch) -> tuple[str, ...]:
    """Say what was not counted, and how exact the figures are."""
    run = search.run
    said = [
        "counted: the storages of tensors that recorded ops or calls took or gave, once each; a "
        "free is seen at the next op; what kernels take for themselves and what an allocator "
        "keeps for later are not seen"
    ]
    if run.level != "ops":
        said.append("ops were not recorded: only memory of what modules took and gave is counted")
    unused = _unused_parameters(search)
    if unused:
        said.append(unused)
    if search.lives.unknown:
        said.append(
            f"{search.lives.unknown:,} tensors without plain memory, such as sparse ones, are not "
            "counted by themselves; the indices and values in them are, where an op made them"
        )
    distributed = sum(meta.placements is not None for meta in run.metas)
    if distributed:
        said.append("of DTensors the local parts are counted that ops of this rank took or gave")
    before = int(((search.lives.made < 0) & (run.columns.producer[search.lives.first] >= 0)).sum())
    if before:
        said.append(
            f"{before:,} storages were made by ops that are not in this trace any more, or were "
            "left out; they count from the first event on, and the end of some is not known"
        )
    return tuple(said)


def _unused_parameters(search: MemorySearch) -> str:
    c = search.run.columns
    names = {c.value_names[number] for number in set(search.lives.name.tolist()) if number >= 0}
    unused = [size for path, _, size in c.parameters if path not in names]
    if not unused:
        return ""
    noun = "parameter" if len(unused) == 1 else "parameters"
    return (
        f"{len(unused):,} {noun} of the model ({sum(unused):,} elements) met no recorded op and "
        "are not counted"
    )
