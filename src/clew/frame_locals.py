"""Read the variables of a running function without keeping them alive.

Before Python 3.13 a frame keeps the dict of its variables that was read last, and every value in
it. It is emptied where that is safe: after a trace function returns, Python writes the dict back
into the variables, so there it stays until the frame is followed no more.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

# References to the dict while it is asked for them: the frame's, the variable's, the argument's.
# There are more if the program has it too, from a call of `locals`.
_UNSHARED = 3


def locals_of(frame: FrameType) -> Mapping[str, Any]:
    """Give the values of all variables now; read it at once and do not keep it."""
    found = frame.f_locals
    cleared = (3, 12) <= sys.version_info < (3, 13)
    if not cleared or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return found
    copied = dict(found)
    if sys.getrefcount(found) <= _UNSHARED:
        found.clear()
    return copied


def some_locals(frame: FrameType, names: tuple[str, ...]) -> list[Any]:
    """Give the values of some variables of a function, None where unbound."""
    snapshot = frame.f_locals
    values = [snapshot.get(name) for name in names]
    if (
        sys.version_info < (3, 13)
        and sys.gettrace() is None
        and sys.getrefcount(snapshot) <= _UNSHARED
    ):
        snapshot.clear()
    return values


def first_argument(frame: FrameType) -> Any:
    """Give the object bound to a frame's first parameter, None if it has none."""
    code = frame.f_code
    return some_locals(frame, code.co_varnames[:1])[0] if code.co_argcount else None


def release_locals(frame: FrameType) -> None:
    """Let a frame no longer keep what its variables held when they were read last.

    Not to be called from a trace function.
    """
    if sys.version_info < (3, 12) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        found = frame.f_locals
        if sys.getrefcount(found) <= _UNSHARED:
            found.clear()
