"""Read the variables of a running function without keeping them alive.

Before Python 3.13 a frame keeps the dict of its variables that was read last, and every value in
it. This module empties the dict where that is safe. While a trace function runs, Python writes the
dict back into the variables when it returns. 3.11 can be made to do so at once, and then not again.
3.10 cannot, but reads the variables anew at each event, so what the program drops is soon gone.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

# References to the dict during `getrefcount`: from the frame, the variable and the argument. There
# are more if the program references it too, from a call of `locals`.
_UNSHARED = 3

_IS_CPYTHON_3_11 = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11)
_IS_3_12 = sys.version_info[:2] == (3, 12)


def locals_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the values of all variables; read them at once and keep no reference."""
    found = frame.f_locals
    if not (_IS_CPYTHON_3_11 or _IS_3_12) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return found
    copied = dict(found)
    if _IS_CPYTHON_3_11:
        _write_back(frame)
    if sys.getrefcount(found) <= _UNSHARED:
        found.clear()
    return copied


def _write_back(frame: FrameType) -> None:
    """Let Python 3.11 write the dict into the variables now, and not when a trace function ends."""
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)


def some_locals(frame: FrameType, names: tuple[str, ...]) -> list[Any]:
    """Return the values of some variables of a function, None where unbound."""
    snapshot = frame.f_locals
    values = [snapshot.get(name) for name in names]
    if _IS_CPYTHON_3_11:
        _write_back(frame)
    is_free = _IS_CPYTHON_3_11 or (sys.version_info < (3, 13) and sys.gettrace() is None)
    if is_free and sys.getrefcount(snapshot) <= _UNSHARED:
        snapshot.clear()
    return values


def first_argument(frame: FrameType) -> Any:
    """Return the object bound to a frame's first parameter, None if it has none."""
    code = frame.f_code
    return some_locals(frame, code.co_varnames[:1])[0] if code.co_argcount else None


def release_locals(frame: FrameType) -> None:
    """Drop the values that a frame keeps from when its variables were last read.

    Do not call it from a trace function.
    """
    if sys.version_info < (3, 12) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        found = frame.f_locals
        if sys.getrefcount(found) <= _UNSHARED:
            found.clear()
