"""Record one step at op level, with statistics, after a flight recorder has written its steps.

Input: where that trace is to be written, and where steps end. Output: the trace of the next step.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

from torch import nn

from clew.errors import warn
from clew.request.limits import Limits
from clew.request.request import Request
from clew.session.tracer import Tracer


class NextStep:
    """Records a step of some models with every op when it is asked for.

    `request` is what the flight recorder was asked for. The models are not kept alive.
    """

    def __init__(self, models: dict[str, nn.Module], request: Request) -> None:
        self._models = {path: weakref.ref(model) for path, model in models.items()}
        self._request = replace(
            request, level="ops", values="stats", limits=Limits(), last_steps=None,
            name="the step after the recorder wrote the last ones",
        )  # fmt: skip
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
            found = ((path, model()) for path, model in self._models.items())
            alive = {path: model for path, model in found if model is not None}
            self._tracer = Tracer(alive, self._request)
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
