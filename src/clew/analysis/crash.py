"""Why it crashed: the innermost event that failed, in words.

In comes a `Reader`, out come the failing event and a note for the traceback.
"""

from __future__ import annotations

import numpy as np

from clew.events.model import Event
from clew.events.records import MODULE
from clew.store.reader import Reader


def failing_event(reader: Reader) -> Event | None:
    """The innermost event that ended in the exception that came last."""
    c = reader.columns
    failed = np.flatnonzero(c.error >= 0)
    if not len(failed):
        return None
    last = int(failed[np.argmax(c.end[failed])])
    text = int(c.error[last])
    inner = [int(r) for r in failed if c.error[r] == text and c.kind[r] != MODULE]
    return reader.event(inner[-1] if inner else last)


def crash_note(reader: Reader, event: Event | None, text: str) -> str:
    """What to add to a traceback: the op, the module, the line, the arguments."""
    if event is None:
        return f"clew: {text}"
    lines = [f"clew: {event.name if event.kind == 'op' else 'raised'}"]
    if event.module is not None:
        lines[0] += f" in {event.module or 'the root module'}"
    elif reader.columns.environment.get("level") != "values":  # which has no calls
        lines[0] += " outside any module"
    if event.source is not None:
        lines.append(f"  at {event.source}: {event.source.text}")
    if event.inputs:
        # Where they are matters only if that is not the same for all.
        apart = len({value.device for value in event.inputs.values()}) > 1
        named = (
            f"{path} {value.look}"
            + (f" on {value.device}" if apart else "")
            + (f" ({value.name})" if value.name else "")
            for path, value in event.inputs.items()
        )
        lines.append("  arguments: " + ", ".join(named))
    return "\n".join(lines)
