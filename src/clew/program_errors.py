"""Exceptions of the program: their text, notes on them, and which recordings have noted them.

An exception passes many calls on its way up; each recording notes it where it met it first. One
that a signal handler raises may occur anywhere, also in the middle of Clew's code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import signal
import sys
from collections.abc import Callable
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

_MARK = "_clew_recorded"
_OWN_FILES = os.path.dirname(__file__) + os.sep


def mark(error: BaseException, owner: object) -> None:
    """Note on the exception itself that an event of `owner` has it, as it may pass many calls."""
    with contextlib.suppress(Exception):
        setattr(error, _MARK, [*_owners(error), owner])


def is_marked(error: BaseException, owner: object) -> bool:
    """Return whether an event of `owner` already has this exception."""
    return owner in _owners(error)


def unmark(error: BaseException, owner: object) -> None:
    """Remove the note of `owner` from an exception that goes back to the program."""
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
        _print_notes_at_end()


class _NotePrinter:
    """A `sys.excepthook` that prints Clew's notes after the traceback, where Python does not."""

    def __init__(self, before: Callable[..., Any]) -> None:
        self._before = before

    def __call__(self, cls: Any, error: Any, traceback: Any) -> None:
        self._before(cls, error, traceback)
        for note in getattr(error, "__notes__", ()):
            if str(note).startswith("clew: "):
                sys.stderr.write(f"{note}\n")


def _print_notes_at_end() -> None:
    """Print notes if the exception ends the program: Python 3.10 shows none.

    The backport of exception groups shows them, and would do so twice.
    """
    if not _installed and "exceptiongroup" not in sys.modules:
        _installed.append(True)
        sys.excepthook = _NotePrinter(sys.excepthook)


# Whether the hook is in place, perhaps below one that the program has installed since.
_installed: list[bool] = []


def inner_errors(error: BaseException, is_own: bool) -> list[BaseException]:
    """Return the exceptions that led to another one, the innermost first.

    One that was being handled has led to it only if the program itself raised the other,
    `is_own`: a second try that fails by itself has nothing to do with the first.
    """
    found = [error]
    while True:
        above = found[-1].__cause__
        if above is None and is_own and not found[-1].__suppress_context__:
            above = found[-1].__context__
        if above is None or any(above is one for one in found):
            return found[:0:-1]
        found.append(above)


def error_text(exception: BaseException) -> str:
    """Return `Type: message`; only the type if the exception's `__str__` raises."""
    try:
        return f"{type(exception).__name__}: {exception}"
    except Exception:
        return type(exception).__name__


def pass_on(error: BaseException) -> None:
    """Raise an exception again that a signal handler of the program raised."""
    found = raised_by_signal(error)
    if found is not None:
        raise found


def raised_by_signal(error: BaseException) -> BaseException | None:
    """Return what a signal handler raised while Clew's code ran, None if it raised nothing.

    That is the exception itself, or one from which Clew's code has made it.
    """
    one: BaseException | None = error
    passed: set[FrameType] = set()
    handlers: set[CodeType] | None = None
    while one is not None and one.__traceback__ is not None:
        here, inner = one.__traceback__.tb_frame, one.__traceback__.tb_next
        if one is error:
            passed.update(frame for frame, _ in walk_tb(error.__traceback__))
        elif here not in passed:
            return None  # the program is handling it: it came up to a frame of the program
        if inner is not None:
            handlers = _handlers() if handlers is None else handlers
            for frame, _ in walk_tb(inner):
                if frame.f_code in handlers or _is_handler_call(frame):
                    return one
        one = one.__cause__ or one.__context__
    return None


def _handlers() -> set[CodeType]:
    """Return the code of the program's signal handlers."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        # A function, a method, or an object that is called.
        function = handler if hasattr(handler, "__code__") else vars(type(handler)).get("__call__")
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found


def _is_handler_call(frame: FrameType) -> bool:
    """Return whether a function outside Clew got a signal and the frame that this interrupted.

    So a handler is known too that puts another in its place before it raises.
    """
    code = frame.f_code
    if frame.f_back is None or code.co_filename.startswith(_OWN_FILES):
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & inspect.CO_VARARGS:
        values.extend(frame.f_locals.get(code.co_varnames[count], ()))
    signals = signal.valid_signals()
    return any(
        interrupted is frame.f_back and type(number) is int and number in signals
        for number, interrupted in itertools.pairwise(values)
    )
