"""`clew.trace`: start the sources, own ids and clock, close the sink.

The one room that joins capture and store.
"""

from __future__ import annotations

from clew.session.tracer import Tracer, active_trace, trace, unrecorded
from clew.session.workers import begin_worker

__all__ = [
    "Tracer",
    "active_trace",
    "begin_worker",
    "trace",
    "unrecorded",
]
