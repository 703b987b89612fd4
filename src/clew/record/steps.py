"""Count the steps of a run, and the train and eval steps among them.

A step is a train or an eval step by the `training` of the model that runs in it.
"""

from __future__ import annotations

from clew.events.vocabulary import EVAL, TRAIN
from clew.stream.modes import Modes


class Steps:
    """The number of the current step, and the modes of all steps so far."""

    def __init__(self) -> None:
        self.number = 0
        # step -> "train" or "eval", for each in which a model ran
        self.modes = Modes()
        self._counts = {TRAIN: 0, EVAL: 0}

    def begin(self) -> int:
        """Begin the next step and return its number."""
        self.number += 1
        return self.number

    @property
    def is_settled(self) -> bool:
        """Return whether a model has run in this step, so that its mode is known."""
        return self.number in self.modes

    def settle(self, training: bool) -> None:
        """Set the mode of this step; only the first call in a step counts."""
        if not self.is_settled:
            mode = TRAIN if training else EVAL
            self.modes.settle(self.number, mode)
            self._counts[mode] += 1

    def ordinal(self, only: str | None) -> int:
        """Return 1 in the first step of mode `only`, 2 in the second; None counts all steps."""
        return self.number + 1 if only is None else self._counts[only]

    def completed(self, only: str | None) -> int | None:
        """Return how many steps of a mode are complete; None if the last one had the other mode."""
        if only is None:
            return self.number
        return self._counts[only] if self.modes.get(self.number - 1) == only else None

    def is_due(self, every: int, only: str | None, training: bool | None) -> bool:
        """Return whether to record this step: the last of every N of its mode.

        `training` is the mode expected of a step in which nothing has run yet, None if unknown.
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
