"""Facts that follow from the position of an event on its call stack.

Input: the places of a trace, each after its caller, as they become known. Output: arrays with a row
per place: phase, thread, the line of user code from there up, and where checkpoints are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.events.columns import Ints, Place
from clew.events.vocabulary import BACKWARD

# Where torch makes checkpoints.
_CHECKPOINT = ("torch/utils/checkpoint.py", "torch\\utils\\checkpoint.py")


class PlaceFacts:
    """Facts of the places known so far.

    `line` is the innermost line of user code from a place up, else the innermost line of any code,
    else -1. `backward_line` is the innermost line of user code among those that ran in the backward
    pass. `depth` counts callers, `checkpoint` is the depth of the innermost place of torch's
    checkpoint code, -1 without one.
    """

    def __init__(self) -> None:
        self.phase: Ints = np.zeros(0, dtype=np.int64)
        self.thread: Ints = np.zeros(0, dtype=np.int64)
        self.line: Ints = np.zeros(0, dtype=np.int64)
        self.backward_line: Ints = np.zeros(0, dtype=np.int64)
        self.depth: Ints = np.zeros(0, dtype=np.int64)
        self.checkpoint: Ints = np.zeros(0, dtype=np.int64)
        self.has_checkpoints = False
        # For each place: user line, any line, user line in backward, depth, depth of the
        # checkpoint.
        self._facts: list[tuple[int, int, int, int, int]] = []

    def extend(self, places: Sequence[Place]) -> None:
        """Add the places that are new; the list begins with those known before."""
        known = len(self._facts)
        if len(places) == known:
            return
        for number in range(known, len(places)):
            self._facts.append(self._fact(number, places[number]))
        self.phase = _grown(self.phase, [place.phase for place in places[known:]])
        self.thread = _grown(self.thread, [place.thread for place in places[known:]])
        own, any_line, backward, depth, checkpoint = (
            np.array(column, dtype=np.int64) for column in zip(*self._facts[known:], strict=True)
        )
        self.line = _grown(self.line, np.where(own >= 0, own, any_line))
        self.backward_line = _grown(self.backward_line, backward)
        self.depth = _grown(self.depth, depth)
        self.checkpoint = _grown(self.checkpoint, checkpoint)

    def _fact(self, number: int, place: Place) -> tuple[int, int, int, int, int]:
        above = self._facts[place.parent] if place.parent >= 0 else (-1, -1, -1, 0, -1)
        own, any_line, backward, depth, checkpoint = above
        depth += 1
        if place.library and place.file.endswith(_CHECKPOINT):
            self.has_checkpoints = True
            checkpoint = depth
        is_own = place.line > 0 and not place.library
        if place.phase != BACKWARD:
            backward = -1
        elif is_own:
            backward = number
        return (
            number if is_own else own,
            number if place.line > 0 else any_line,
            backward,
            depth,
            checkpoint,
        )


def _grown(known: Ints, new: list[int] | Ints) -> Ints:
    return np.concatenate([known, np.asarray(new, dtype=np.int64)])
