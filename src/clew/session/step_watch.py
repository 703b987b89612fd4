"""The port between a recording and whoever reads its steps as they end: the flight recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from clew.record.recorder import Recorder
    from clew.stream.batch import Batch, Observer


class StepWatch(Protocol):
    """Reads a recording step by step; what it raises becomes a note of the recording."""

    def observer(self, recorder: Recorder) -> Observer:
        """Return what observes the program besides the observers of every trace."""

    def batch(self, batch: Batch) -> None:
        """Take a batch, on its way to the store."""

    def step_ends(self, step: int) -> None:
        """Act on a step whose batches have all come."""

    def facts(self) -> dict[str, Any]:
        """Return what the environment of the trace says of it."""
