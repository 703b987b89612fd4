"""The ring: of a long run only about the last events, or the last steps, are kept.

Whole steps are dropped, the oldest first. If a single step has more events than are to be kept, its
first ones are dropped.
"""

from __future__ import annotations

import math

import numpy as np

from clew.events.columns import Ints
from clew.events.model import Gap
from clew.events.vocabulary import STEP

# How far the ring may grow beyond its size before events are dropped: by a quarter of it.
_SHARE = 4
_ONLY_LAST = "only about the last"


def ring_piece(last: float) -> float:
    """Return how many events are handed over, or dropped, together."""
    return max(1.0, last / _SHARE)


def most_steps(steps: int | None) -> float:
    """Return how many steps there may be before all but the last `steps` are dropped."""
    return math.inf if steps is None else steps + ring_piece(steps)


def first_kept(ids: Ints, kinds: Ints, last: int, steps: int | None = None) -> int:
    """Return how many of some events, in order of their ids, are dropped now.

    With `steps`, no more than the last so many steps stay, whatever they hold.
    """
    begun = np.flatnonzero(kinds == STEP)
    by_steps = 0
    if steps is not None and len(begun) >= most_steps(steps):
        by_steps = int(begun[-steps])
    return max(by_steps, _surplus(len(ids), begun, last))


def _surplus(count: int, begun: Ints, last: int) -> int:
    """Return how many of `count` events are too many, as whole steps; steps begin at `begun`."""
    surplus = count - last
    if surplus < ring_piece(last):
        return 0
    begun = begun[begun <= surplus]
    if len(begun) and begun[-1]:
        return int(begun[-1])
    return surplus if surplus >= last else 0


def fallen_out(events: int, last: int, where: str, steps: int | None = None) -> Gap:
    """Return the gap for the events that a ring has dropped."""
    if steps is not None:
        return Gap(
            f"the first {events} events",
            where,
            f"{_ONLY_LAST} {steps} steps are kept",
            "keep more with clew.recorder(keep=...)",
        )
    return Gap(
        f"the first {events} events",
        where,
        f"{_ONLY_LAST} {last} are kept; what an earlier one made has no producer",
        "keep more with clew.trace(limits=Limits(last=...)), or all with clew run --all",
    )


def is_fallen_out(gap: Gap) -> bool:
    """Return whether a gap is about events that a ring has dropped."""
    return gap.why.startswith(_ONLY_LAST)
