"""Follow variables inside functions while they run: every binding of the wanted names.

In: functions (or frames) and a `Probe`. Out: calls of the probe with a `Site` and the value.
Works with the standard library alone. Must not know: torch, events, or what a value is.
"""

from __future__ import annotations

from clew.observe.variables.frames.install import Installed, instrument
from clew.observe.variables.frames.running import (
    Following,
    FollowingCalls,
    follow_calls,
    follow_code,
    follow_frame,
    join_thread,
)
from clew.observe.variables.frames.sites import Kind, Probe, Site, Target

__all__ = [
    "Following",
    "FollowingCalls",
    "Installed",
    "Kind",
    "Probe",
    "Site",
    "Target",
    "follow_calls",
    "follow_code",
    "follow_frame",
    "instrument",
    "join_thread",
]
