"""Which event failed: the innermost one that raised the exception which ended a rank."""

from __future__ import annotations

import numpy as np

from clew.events.vocabulary import MODULE
from clew.run.event import Event
from clew.run.run import Run


def failing_event(run: Run, rank: int | None = None) -> Event | None:
    """Return the innermost event, of a rank or of all, that raised the last exception."""
    c = run.columns
    mine = c.error >= 0
    failed = np.flatnonzero(mine if rank is None else mine & (run.process == rank))
    if not len(failed):
        return None
    last = int(failed[np.argmax(c.end[failed])])
    text = int(c.error[last])
    inner = [int(r) for r in failed if c.error[r] == text and c.kind[r] != MODULE]
    return run.event(inner[-1] if inner else last)


def event_of_error(run: Run, text: str, rank: int | None = None) -> Event | None:
    """Return the last of the innermost events that raised an exception of a text."""
    c = run.columns
    mine = c.error >= 0
    failed = np.flatnonzero(mine if rank is None else mine & (run.process == rank))
    inner = [int(row) for row in failed if c.errors[int(c.error[row])] == text]
    last = [row for row in inner if c.kind[row] != MODULE] or inner
    return run.event(last[-1]) if last else None
