"""The ring: of a long run only about the last events are kept.

Whole steps are dropped, the oldest first. If a single step has more events than are to be kept, its
first ones are dropped.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Ints
from clew.events.model import Gap
from clew.events.records import STEP

# How far the ring may grow beyond its size before events are dropped.
_SHARE = 4


def ring_piece(last: float) -> float:
    """Return how many events are handed over, or dropped, together."""
    return max(1.0, last / _SHARE)


def first_kept(ids: Ints, kinds: Ints, last: int) -> int:
    """Return how many of some events, in order of their ids, are dropped now."""
    surplus = len(ids) - last
    if surplus < ring_piece(last):
        return 0
    begun = np.flatnonzero(kinds == STEP)
    begun = begun[begun <= surplus]
    if len(begun) and begun[-1]:
        return int(begun[-1])
    return surplus if surplus >= last else 0


def fallen_out(events: int, last: int, where: str) -> Gap:
    """Return the gap for the events that a ring has dropped."""
    return Gap(
        f"the first {events} events",
        where,
        f"only about the last {last} are kept; what an earlier one made has no producer",
        "keep more with clew.trace(limits=Limits(last=...))",
    )
