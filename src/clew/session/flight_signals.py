"""Act on signals without taking them from the program.

Input: signals of the process. Output: a call of a function on the main thread, at a moment when
none of Clew's own code runs. A handler that was there before is called afterwards; where there was
none, SIGTERM ends the process as ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from clew.errors import warn
from clew.program_errors import pass_on

_OWN_DIR = os.path.dirname(os.path.dirname(__file__)) + os.sep
# Code of Clew that the program runs inside of: no lock of ours is held above it.
_AROUND_PROGRAMS = ("decorating.py", "sitecustomize.py", "program.py")
# While Clew's own code runs, the signal is sent again after so many seconds, so many times.
_AGAIN_AFTER = 0.01
_MOST_TIMES = 1000


class SignalHandlers:
    """Calls `on_signal` with the number of each of some signals, while they are installed."""

    def __init__(self, numbers: Iterable[int], on_signal: Callable[[int], None]) -> None:
        self._numbers = tuple(dict.fromkeys(numbers))
        self._on_signal = on_signal
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        self._is_on = False
        self._times = 0

    def install(self) -> str | None:
        """Install the handlers; return why not if that cannot be."""
        if not self._numbers:
            return None
        if threading.current_thread() is not threading.main_thread():
            return "only the main thread can handle signals"
        for number in self._numbers:
            before = signal.getsignal(number)
            if before is None:
                names = signal.Signals(number).name
                return f"{names} has a handler that is not Python's"
            self._before[number] = before
            signal.signal(number, self._handle)
        self._is_on = True
        return None

    def remove(self) -> None:
        """Put back what was there; a handler that was installed since stays, and may call ours."""
        self._is_on = False
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_ours = self._is_on and os.getpid() == self._process
        if is_ours and self._times < _MOST_TIMES and _is_inside_clew(frame):
            self._times += 1
            timer = threading.Timer(_AGAIN_AFTER, os.kill, (self._process, number))
            timer.daemon = True
            timer.start()
            return
        if is_ours:
            self._times = 0
            try:
                self._on_signal(number)
            except Exception as fault:
                pass_on(fault)
                warn(f"Clew could not write the last steps: {fault}; the program goes on")
        self._pass_on(number, frame, is_ours)

    def _pass_on(self, number: int, frame: FrameType | None, is_ours: bool) -> None:
        """Do what would have been done without us; only SIGTERM has a default that is kept."""
        before = self._before[number]
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL and (number == signal.SIGTERM or not is_ours):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _is_inside_clew(frame: FrameType | None) -> bool:
    """Return whether a call of Clew is under way, which may hold a lock."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN_DIR) and os.path.basename(file) not in _AROUND_PROGRAMS:
            return True
        frame = frame.f_back
    return False
