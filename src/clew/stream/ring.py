"""The ring: of a long run only about the last events are kept.

Whole steps fall out, the oldest first. Within a step that has more events than are to be kept,
those that came first do.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Ints
from clew.events.model import Gap
from clew.events.records import STEP

# How much of what is to be kept may gather on top of it, before something falls out.
_SHARE = 4


def ring_piece(last: float) -> float:
    """How many events are handed over, or fall out, together."""
    return max(1.0, last / _SHARE)


def first_kept(ids: Ints, kinds: Ints, last: int) -> int:
    """Give how many of some events, in order of their ids, fall out now."""
    surplus = len(ids) - last
    if surplus < ring_piece(last):
        return 0
    begun = np.flatnonzero(kinds == STEP)
    begun = begun[begun <= surplus]
    if len(begun) and begun[-1]:
        return int(begun[-1])
    return surplus if surplus >= last else 0


def fallen_out(events: int, last: int, where: str) -> Gap:
    """What the reader of a ring does not see."""
    return Gap(
        f"the first {events} events",
        where,
        f"only about the last {last} are kept; what an earlier one made has no producer",
        "keep more with clew.trace(limits=Limits(last=...))",
    )
