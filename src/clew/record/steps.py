"""The steps of a run: which one it is, and what kind of step each was.

A step is a train or an eval step by the `training` of the model that runs in it, and is counted
among those of its kind.
"""

from __future__ import annotations

from collections import Counter

from clew.events.records import EVAL, TRAIN
from clew.stream.modes import Modes


class Steps:
    """The number of the step that runs, and the modes of all so far."""

    def __init__(self) -> None:
        self.number = 0
        # Step -> "train" or "eval", for each in which a model ran.
        self.modes = Modes()
        self._counts: Counter[str] = Counter()

    def begin(self) -> int:
        """Begin the next step; its number."""
        self.number += 1
        return self.number

    @property
    def is_settled(self) -> bool:
        """Whether a model has run in this step, and has said what it is."""
        return self.number in self.modes

    def settle(self, training: bool) -> None:
        """Say what kind of step this is; the first to say so is believed."""
        if not self.is_settled:
            mode = TRAIN if training else EVAL
            self.modes.settle(self.number, mode)
            self._counts[mode] += 1

    def ordinal(self, only: str | None) -> int:
        """1 if this is the first step of a kind, 2 if it is the second."""
        return self.number + 1 if only is None else self._counts[only]

    def completed(self, only: str | None) -> int | None:
        """How many steps of a kind are complete; None if the last one was of the other kind."""
        if only is None:
            return self.number
        return self._counts[only] if self.modes.get(self.number - 1) == only else None

    def is_due(self, every: int, only: str | None, training: bool | None) -> bool:
        """Whether this is one of the steps to record: the last of every N of its kind.

        `training` is what the step will be if nothing has run in it yet, None if nobody knows.
        """
        mode = self.modes.get(self.number)
        if mode is not None:
            count = self._counts[mode]
        elif training is not None:
            mode = TRAIN if training else EVAL
            count = self._counts[mode] + 1
        else:
            count = self.number + 1
        return (only is None or only == mode) and count % every == 0
