"""The line at the end of `clew run`: what was recorded, where, the worst finding, what to do next.

Input: a trace that has ended. Output: `Summary`.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew import views
from clew.store.storage import storage_of
from clew.stream.ring import is_fallen_out

if TYPE_CHECKING:
    from clew.traces import Trace

# A trace with more events is not read when the program ends.
MOST_READ = 1_000_000


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run has recorded; `finding` is the worst, None if nothing was found.

    `events` are in the trace, `seen` is the number of all there were.
    """

    path: str
    events: int
    seen: int
    steps: int
    bytes: int
    finding: dict[str, Any] | None
    next: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        if not self.events:
            why = "" if self.finding is None else f": {self.finding['text']}"
            return f"nothing was recorded in {self.path}{why}; next: {self.next}"
        size = views.bytes_text(self.bytes)
        events = views.counted(self.events, "event")
        if self.seen > self.events:
            events = f"the last {self.events:,} of {views.counted(self.seen, 'event')}"
        counts = f"{events} in {views.counted(self.steps, 'step')}"
        found = "nothing to report"
        if self.finding is not None:
            found = views.signed(self.finding["severity"], self.finding["text"])
        return f"recorded {counts}: {self.path} ({size}); {found}; next: {self.next}"


def summary_of(trace: Trace, seen: int, path: str, folder: str) -> Summary:
    """Return the summary of a trace that has seen so many events.

    Its path is shown as seen from a folder, if it is below.
    """
    # That a ring has dropped events is said by their numbers, and is no news.
    is_whole = all(map(is_fallen_out, trace.coverage))
    findings = [one for one in trace.findings if not (is_whole and one.kind == "coverage")]
    worst = findings[0].to_dict() if findings else None
    shown = _shown(path, folder)
    return Summary(
        shown,
        len(trace),
        max(seen, len(trace)),
        len(trace.steps),
        sum(storage_of(path).sizes().values()),
        worst,
        shlex.join(["clew", _next_command(trace, worst), shown]),
    )


def _next_command(trace: Trace, worst: dict[str, Any] | None) -> str:
    if not len(trace):
        return "doctor"
    if worst is None or worst["severity"] == "info":
        return "show"
    return "crash" if worst["kind"] == "crash" else "info"


def summary_unread(seen: int, step: int, path: str, folder: str) -> Summary:
    """Return the summary of a trace that would take long to read, at the end of a program."""
    shown = _shown(path, folder)
    size = sum(storage_of(path).sizes().values())
    unread = {"severity": "info", "kind": "not read", "text": "not looked through, as it is large"}
    return Summary(shown, seen, seen, step + 1, size, unread, shlex.join(["clew", "info", shown]))


def _shown(path: str, folder: str) -> str:
    """Return a path as seen from a folder, if it is below."""
    shown = os.path.relpath(path, folder) if os.path.isabs(path) else path
    return path if shown.startswith(os.pardir) else shown
