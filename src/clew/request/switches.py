"""What environment variables ask for: CLEW_DISABLE and CLEW_ENGINE."""

from __future__ import annotations

import os

from clew.errors import ClewError
from clew.events.vocabulary import ENGINES


def engine_of_environment() -> str:
    """Return the engine that CLEW_ENGINE names, "auto" if it is not set."""
    named = os.environ.get("CLEW_ENGINE") or "auto"
    if named not in ENGINES:
        raise ClewError(f"CLEW_ENGINE={named!r} is not one of {', '.join(ENGINES)}")
    return named


def is_disabled() -> bool:
    """Return whether CLEW_DISABLE switches all recording off."""
    return os.environ.get("CLEW_DISABLE", "0") not in ("", "0")
