"""The trace that records now, for code that records into it and did not start it.

`session` says how to find it; where nothing has loaded `session`, nothing records. Must not know:
what a session is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from clew.events.model import Gap

if TYPE_CHECKING:
    from clew.record.recorder import Recorder
    from clew.traces import Trace


class ActiveTrace(NamedTuple):
    """A trace that records now, its recording, and the function that is called with gaps."""

    trace: Trace
    recorder: Recorder
    on_gap: Callable[[Gap], Any]


_finders: list[Callable[[], ActiveTrace | None]] = []


def register(find: Callable[[], ActiveTrace | None]) -> None:
    """Ask `find` for the innermost trace that records."""
    _finders.append(find)


def active_trace() -> ActiveTrace | None:
    """Return the innermost trace that records now, None if there is none."""
    return next(filter(None, (find() for find in _finders)), None)
