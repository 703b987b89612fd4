"""Exceptions of the program: their text, and whether an event already has them.

An exception passes many calls on its way up; it is recorded where it is met first.
"""

from __future__ import annotations

import contextlib

_MARK = "_clew_recorded"


def mark(error: BaseException) -> None:
    """Remember on the exception itself that an event has it; it may pass many calls yet."""
    with contextlib.suppress(Exception):
        setattr(error, _MARK, True)


def is_marked(error: BaseException) -> bool:
    """Whether an event already has this exception."""
    return _MARK in getattr(error, "__dict__", ())


def unmark(error: BaseException) -> None:
    """Leave nothing on an exception that goes back to the program."""
    getattr(error, "__dict__", {}).pop(_MARK, None)


def error_text(exception: BaseException) -> str:
    """`Type: message`, whatever the exception's own `__str__` does."""
    try:
        return f"{type(exception).__name__}: {exception}"
    except Exception:
        return type(exception).__name__
