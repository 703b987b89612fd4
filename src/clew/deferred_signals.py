"""Have signals wait while Clew does what must not be left half done.

Python runs a program's signal handlers on its main thread, between any two instructions of any
code, and what a handler raises ends that code. Comes in: an action. Goes out: its result; handlers
whose signal came meanwhile run after the action.
"""

from __future__ import annotations

# The functions of `signal` make enums of numbers, which takes longer than all the rest here.
import _signal  # type: ignore[import-not-found]
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")
# Those with a name: to ask about the others, for real-time use, would double the time this takes.
_NUMBERS = range(1, 32)


def uninterrupted(action: Callable[[], _Result]) -> _Result:
    """Run an action, and after it the signal handlers that would have run meanwhile.

    A second Ctrl-C does not wait: the action may wait for a disk that never answers.
    """
    if threading.current_thread() is not threading.main_thread():
        return action()
    deferral = _Deferral()
    try:
        deferral.begin()
        return action()
    finally:
        deferral.end()


class _Deferral:
    """Takes the place of the program's handlers, and remembers which of them to run."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[int] = []
        self._is_over = False

    def begin(self) -> None:
        """Take the place of all handlers."""
        found = map(_signal.getsignal, _NUMBERS)
        used = [number for number, handler in zip(_NUMBERS, found, strict=True) if handler]
        for number in used:
            handler: Any = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, self._defer)

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:  # an interrupt came while handlers were put back
            _signal.signal(number, self._handlers[number])
        elif number != signal.SIGINT or number not in self._came:
            self._came.append(number)
            return
        self._handlers[number](number, frame)

    def end(self) -> None:
        """Put all handlers back, also if one that is back raises; then run those that waited."""
        self._is_over = True
        interrupt: BaseException | None = None
        for number, handler in self._handlers.items():
            try:
                _signal.signal(number, handler)
            except BaseException as error:
                interrupt = interrupt or error
                _signal.signal(number, handler)
        for number in self._came:
            try:
                self._handlers[number](number, sys._getframe())
            except BaseException as error:
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt
