"""Exceptions of the program: their text, notes on them, and who already has an event of them.

An exception passes many calls on its way up; each recording has it where it met it first.
"""

from __future__ import annotations

import contextlib
from typing import Any

_MARK = "_clew_recorded"


def mark(error: BaseException, owner: object) -> None:
    """Remember on the exception itself that an event of `owner` has it; it may pass many calls."""
    with contextlib.suppress(Exception):
        setattr(error, _MARK, [*_owners(error), owner])


def is_marked(error: BaseException, owner: object) -> bool:
    """Whether an event of `owner` already has this exception."""
    return owner in _owners(error)


def unmark(error: BaseException, owner: object) -> None:
    """Leave nothing of `owner` on an exception that goes back to the program."""
    others = [other for other in _owners(error) if other is not owner]
    if others:
        setattr(error, _MARK, others)
    else:
        getattr(error, "__dict__", {}).pop(_MARK, None)


def _owners(error: BaseException) -> list[object]:
    owners: list[object] = getattr(error, "__dict__", {}).get(_MARK, [])
    return owners


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, once."""
    noted: Any = error
    if note in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        noted.add_note(note)
    else:  # Python 3.10
        noted.__notes__ = [*getattr(error, "__notes__", []), note]


def error_text(exception: BaseException) -> str:
    """`Type: message`, whatever the exception's own `__str__` does."""
    try:
        return f"{type(exception).__name__}: {exception}"
    except Exception:
        return type(exception).__name__
