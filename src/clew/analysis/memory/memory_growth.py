"""Find memory that stays from step to step: a list of losses with their graphs, a growing cache.

Input: kinds of storages, the steps. Output: a `MemoryGrowth`, or None where nothing grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from clew.analysis.memory.lifetimes import Lifetimes
from clew.analysis.memory.memory_groups import Grouping
from clew.analysis.memory.memory_kinds import KEPT, TEMPORARY, MemoryKinds
from clew.analysis.memory.memory_model import MemoryGrowth, StepMemory
from clew.events.columns import Flags
from clew.events.op_names import bare_op
from clew.events.vocabulary import FORWARD, OP

# The first step makes gradients and optimizer state, and the last may not be over.
_FIRST = 1
_FEWEST = 3
# Growth below this part of the peak, or fewer bytes a step, is no finding: a list of numbers, a
# counter, the states that an agent has met.
_PART, _BYTES = 0.01, 1024


def growth(
    kinds: MemoryKinds,
    grouping: Grouping,
    mine: Flags,
    steps: Sequence[StepMemory],
    peak: int,
) -> MemoryGrowth | None:
    """Return what stays of each step until the last one, if that is much.

    What a function of the program collects is freed when it returns, which may be before the end.
    Something must have stayed of nearly every step, and the bytes alive at the ends of steps must
    have grown with it.
    """
    looked_at = [one.step for one in steps[_FIRST:-1]]
    if len(looked_at) < _FEWEST:
        return None
    lives, run = kinds.lives, kinds.lives.run
    step = run.step[lives.born]
    stays = _stays(kinds, mine, looked_at)
    if not (stays & (step == looked_at[-1])).any():
        looked_at = looked_at[:-1]
    size = int(lives.size[stays].sum())
    ends = [one.end for one in steps if one.step in looked_at]
    if len(set(step[stays].tolist())) < 0.9 * len(looked_at) or size < _PART * peak:
        return None
    if size < _BYTES * len(looked_at):
        return None
    if ends[-1] - ends[0] < size / 2 or any(b < a for a, b in pairwise(ends)):
        return None
    kind = np.full(len(lives), KEPT, dtype=np.int64)
    held = stays & kinds.is_followed & ~_detached(kinds)
    is_most = int(lives.size[held].sum()) * 2 > size
    return MemoryGrowth(
        looked_at[0] - 1,
        looked_at[-1],
        size,
        grouping.by_line(stays, kind),
        is_most and _is_chained(kinds, held & (step == looked_at[0])),
        run.event(_last_made(kinds, stays, step == looked_at[0])),
    )


def _stays(kinds: MemoryKinds, mine: Flags, looked_at: Sequence[int]) -> Flags:
    """Return what was made in some steps and is still there when the last of them is over."""
    lives, run = kinds.lives, kinds.lives.run
    first, end = lives.rows_of(int(run.process[lives.born[mine][0]]))
    last = first + int(np.flatnonzero(run.step[first:end] == looked_at[-1])[-1])
    step = run.step[lives.born]
    found: Flags = mine & (kinds.fixed == TEMPORARY) & (lives.died > last + 1)
    # Of the last of these steps, what the next one replaces is there too.
    is_kept = (lives.died == end) & (lives.freed < 0)
    found &= np.isin(step, looked_at) & ((step != looked_at[-1]) | is_kept)
    return found & _recurs(lives, found, len(looked_at))


def _recurs(lives: Lifetimes, stays: Flags, steps: int) -> Flags:
    """Return what lines made that something stays of in half of the steps; others replace it."""
    run = lives.run
    in_steps: dict[int, set[int]] = {}
    lines = run.derived.source[lives.born]
    for line, step in zip(lines[stays].tolist(), run.step[lives.born][stays].tolist(), strict=True):
        in_steps.setdefault(line, set()).add(step)
    often = [line for line, found in in_steps.items() if 2 * len(found) >= steps]
    return np.asarray(np.isin(lines, often))


def _last_made(kinds: MemoryKinds, stays: Flags, in_step: Flags) -> int:
    """Return the event that made the last of what stayed of a step: what holds the rest, if any.

    A result with its graph is the last that autograd follows; later ones may be data.
    """
    lives = kinds.lives
    has_graph = lives.run.columns.grad[lives.first] > 0
    chosen = next(some for some in (stays & in_step & has_graph, stays) if some.any())
    return int(lives.born[chosen].max())


def _detached(kinds: MemoryKinds) -> Flags:
    """Return the storages that the program has a tensor of without its graph."""
    lives = kinds.lives
    c = lives.run.columns
    detaches = np.array([bare_op(name) == "detach" for name in c.ops] + [False], dtype=bool)
    is_detach = detaches[np.where(c.kind == OP, c.subject, -1)]
    found: Flags = lives.last_mention(lives.is_output & is_detach[lives.row]) >= 0
    return found


def _is_chained(kinds: MemoryKinds, held: Flags) -> bool:
    """Return whether one of some storages was made of another, as a graph holds them.

    What the program stores itself is results, rarely what they were made of too.
    """
    lives = kinds.lives
    run = lives.run
    of_ops = (run.columns.kind == OP)[lives.row] & (run.phase == FORWARD)[lives.row]
    # storage -> up to two of those held that it was made of
    sources: dict[int, frozenset[int]] = {
        at: frozenset((at,)) for at in np.flatnonzero(held).tolist()
    }
    taken: frozenset[int] = frozenset()
    last = -1
    columns = (lives.row, lives.storage, lives.is_output)
    for row, storage, is_output in zip(*(one[of_ops].tolist() for one in columns), strict=True):
        if row != last:
            taken, last = frozenset(), row
        if not is_output:
            taken |= sources.get(storage, frozenset())
        elif held[storage] and taken - {storage}:
            return True
        elif taken and not held[storage]:
            sources[storage] = frozenset(sorted(taken)[:2])
    return False
