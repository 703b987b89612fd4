"""Record one step at op level, with statistics, after a flight recorder has written its steps.

Input: where that trace is to be written, and where steps end. Output: the trace of the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from clew.errors import warn
from clew.request.request import Request
from clew.session.tracer import Tracer


class NextStep:
    """Records a step in full detail when it is asked for; `models` returns what is still there."""

    def __init__(self, models: Callable[[], dict[str, nn.Module]], request: Request) -> None:
        self._models = models
        self._request = request
        self._place: Path | str | None = None
        self._tracer: Tracer | None = None
        self._is_over = False

    def ask(self, place: Path | str) -> None:
        """Have the next step recorded and written there, unless one is being recorded."""
        if self._tracer is None:
            self._place = place

    def begin(self) -> None:
        """Begin to record as a step begins, if one was asked for."""
        if self._place is not None and self._tracer is None and not self._is_over:
            self._tracer = Tracer(self._models(), self._request)
            self._tracer.start()

    def end(self) -> None:
        """Write the step that has ended, if it was recorded."""
        tracer, place = self._tracer, self._place
        if tracer is not None and place is not None:
            self._tracer = self._place = None
            tracer.stop()
            tracer.save(place, exist="keep")
            warn(f"the step after that, with every op, is in {place}")

    def stop(self) -> None:
        """Write what was recorded so far, and record no more."""
        self._is_over = True
        self.end()
