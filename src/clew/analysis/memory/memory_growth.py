"""Find memory that stays from step to step: a list of losses with their graphs, a growing cache.

Input: kinds of storages, the steps. Output: a `MemoryGrowth`, or None where nothing grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from clew.analysis.memory.lifetimes import Flags
from clew.analysis.memory.memory_groups import Grouping
from clew.analysis.memory.memory_kinds import KEPT, TEMPORARY, MemoryKinds
from clew.analysis.memory.memory_model import MemoryGrowth, StepMemory

# The first step makes gradients and optimizer state, and the last may not be over.
_FIRST = 1
_FEWEST = 3
# Growth below this part of the peak is no finding: a list of numbers, a counter.
_PART = 0.01


def growth(
    kinds: MemoryKinds,
    grouping: Grouping,
    mine: Flags,
    steps: Sequence[StepMemory],
    peak: int,
) -> MemoryGrowth | None:
    """Return what stays of each step until the end of the run, if that is much.

    Something must have stayed of nearly every step, and the bytes alive at the ends of steps must
    have grown with it.
    """
    looked_at = [one.step for one in steps[_FIRST:-1]]
    if len(looked_at) < _FEWEST:
        return None
    lives, run = kinds.lives, kinds.lives.run
    _, end = lives.rows_of(int(run.process[lives.born[mine][0]]))
    step = run.step[lives.born]
    stays = mine & (kinds.fixed == TEMPORARY) & (lives.died == end) & (lives.freed < 0)
    stays &= np.isin(step, looked_at)
    size = int(lives.size[stays].sum())
    ends = [one.end for one in steps[_FIRST:-1]]
    if len(set(step[stays].tolist())) < 0.9 * len(looked_at) or size < _PART * peak:
        return None
    if ends[-1] - ends[0] < size / 2 or any(b < a for a, b in pairwise(ends)):
        return None
    kind = np.full(len(lives), KEPT, dtype=np.int64)
    followed = stays & kinds.is_followed
    return MemoryGrowth(
        looked_at[0] - 1,
        looked_at[-1],
        size,
        grouping.by_line(stays, kind),
        int(lives.size[followed].sum()) * 2 > size,
        run.event(_last_made(kinds, stays, step == looked_at[0])),
    )


def _last_made(kinds: MemoryKinds, stays: Flags, in_step: Flags) -> int:
    """Return the event that made the last of what stayed of a step: what holds the rest, if any.

    A result with its graph is the last that autograd follows; later ones may be data.
    """
    lives = kinds.lives
    has_graph = lives.run.columns.grad[lives.first] > 0
    chosen = next(some for some in (stays & in_step & has_graph, stays) if some.any())
    return int(lives.born[chosen].max())
