"""Why it crashed: the innermost event that failed, and a note about it.

Input: a `Run`. Output: the failing event and a note for the traceback.
"""

from __future__ import annotations

import numpy as np

from clew.events.records import MODULE
from clew.plain_text import plain, plain_code, plain_lines
from clew.run.event import Crash, Event
from clew.run.run import Run


def first_crash(run: Run) -> Crash | None:
    """Return the exception that ended the first rank that raised, None if none did."""
    for rank, text in run.crashes.items():
        event = failing_event(run, rank)
        return Crash(text, event, crash_note(run, event, text))
    return None


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


def crash_note(run: Run, event: Event | None, text: str) -> str:
    """Write what to add to a traceback: the op, the module, the line, the arguments."""
    if event is None:
        return plain_lines(f"clew: {text}")
    lines = [f"clew: {event.name if event.kind == 'op' else 'raised'}"]
    if event.module is not None:
        lines[0] += f" in {event.module or 'the root module'}"
    elif run.level != "values":  # a trace of values has no calls
        lines[0] += " outside any module"
    if event.source is not None:
        lines.append(f"  at {event.source}: {plain_code(event.source.text)}")
    if event.inputs:
        # Name the device only if the arguments are on different devices.
        apart = len({value.device for value in event.inputs.values()}) > 1
        named = (
            f"{path} {value.look}"
            + (f" on {value.device}" if apart else "")
            + (f" ({value.name})" if value.name else "")
            for path, value in event.inputs.items()
        )
        lines.append("  arguments: " + ", ".join(named))
    return "\n".join(map(plain, lines))
