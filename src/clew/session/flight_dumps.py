"""Write the steps that a flight recorder has in memory into its folder.

Input: the trace of the last steps, and what fired. Output: an ordinary trace in the folder, and a
`Dump` that says where; a warning where nothing can or may be written any more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import warn
from clew.events.model import Data
from clew.program_errors import pass_on
from clew.session.environment import rank_and_size
from clew.session.flight_rules import Firing
from clew.store.storage import is_url

if TYPE_CHECKING:
    from clew.session.flight_watch import FlightWatch
    from clew.session.tracer import Tracer

# What a person or the system asks for is written however much was written before.
_ASKED_FOR = frozenset({"exception", "signal", "sigterm", "file", "dump"})
_TOUCH_FILE = "dump-now"


@dataclass(frozen=True, slots=True)
class Dump(Data):
    """The last steps, as they were written: the trace's folder, and what fired at which step."""

    path: Path | str
    step: int
    fired: tuple[Firing, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the dump as plain data."""
        fired = [one.to_dict() for one in self.fired]
        return {"path": str(self.path), "step": self.step, "fired": fired}


class DumpFolder:
    """The folder `out`, with at most `most` traces that only a rule, and nobody, has asked for."""

    def __init__(self, out: str, most: int) -> None:
        self._out = out
        self._most = most
        # Traces that nobody has asked for, and whether it was said that there will be no more.
        self._unasked = 0
        self._has_said = False
        self.dumps: list[Dump] = []

    def touch_file(self) -> str | None:
        """Return the file that a person touches to have the steps written, None for a URL."""
        return None if is_url(self._out) else os.path.join(self._out, _TOUCH_FILE)

    def has_room(self, fired: tuple[Firing, ...]) -> bool:
        """Count what fired; return whether it may be written, and warn once if it may not."""
        is_asked_for = any(one.trigger in _ASKED_FOR for one in fired)
        if is_asked_for or self._unasked < self._most:
            self._unasked += not is_asked_for
            return True
        if not self._has_said:
            self._has_said = True
            warn(
                f"step {fired[0].step}: {fired[0].text}; nothing more is written, as "
                f"{self._unasked} traces were: raise most_dumps= of clew.recorder"
            )
        return False

    def write(self, tracer: Tracer, watch: FlightWatch, fired: tuple[Firing, ...]) -> Dump | None:
        """Write the steps that a tracer has, with what fired; None, and a warning, if it fails."""
        step, text = fired[0].step, "; ".join(one.text for one in fired)
        try:
            watch.cause = fired
            if tracer._session is not None:
                for gap in watch.unseen():
                    tracer._session.gaps.add(gap)
            place = tracer.save(self._place(fired[0]), exist="keep")
        except Exception as fault:
            pass_on(fault)
            warn(f"step {step}: {text}; Clew could not write the last steps: {fault}")
            return None
        finally:
            watch.cause = ()
        dump = Dump(place, step, fired)
        self.dumps.append(dump)
        warn(f"step {step}: {text}; the last steps are in {place}")
        return dump

    def _place(self, fired: Firing) -> str:
        """Return where a trace is written; each rank of a job has a folder of its own."""
        rank, size = rank_and_size()
        folder = os.path.join(self._out, f"rank-{rank:05d}") if size > 1 else self._out
        if not is_url(folder):
            os.makedirs(folder, exist_ok=True)
        name = "".join(c if c.isalnum() else "-" for c in fired.trigger)
        return os.path.join(folder, f"step-{fired.step:06d}-{name}.clew")
