"""Know which threads were started by a thread that a trace records, so that it records them too.

While such a trace runs, `threading.Thread.start` notes each new thread for the traces that record
the thread which starts it. Nothing is known of threads that were started in another way.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

# As many started threads are remembered before those that are gone are dropped.
_FEW = 64


class StartedThreads:
    """The threads that were started, directly or not, by the thread a trace was opened on."""

    def __init__(self) -> None:
        self._owner = 0
        # id -> the thread; a thread may have a hash or an equality of the program's own
        self._started: dict[int, weakref.ref[threading.Thread]] = {}
        self._most = _FEW

    def begin(self) -> None:
        """Note from here on what the running thread starts, and what those start."""
        self._owner = threading.get_ident()
        if not _active:
            _install()
        _active.append(self)

    def end(self) -> None:
        """Note no more threads."""
        if self in _active:
            _active.remove(self)
        if not _active:
            _uninstall()

    def has_running(self) -> bool:
        """Return whether the running thread is one of them, or was not started by `threading`."""
        if threading.get_ident() == self._owner:
            return True
        running = threading.current_thread()
        return isinstance(running, threading._DummyThread) or self._has(running)

    def note(self, thread: threading.Thread) -> None:
        """Add a thread that the running one is about to start, if that is recorded itself."""
        if not self.has_running():
            return
        started = self._started
        if len(started) >= self._most:
            for known in [known for known, one in started.items() if one() is None]:
                del started[known]
            self._most = max(_FEW, 2 * len(started))
        started[id(thread)] = weakref.ref(thread)

    def _has(self, thread: threading.Thread) -> bool:
        known = self._started.get(id(thread))
        return known is not None and known() is thread


# Recordings may overlap in any order: all of them share one function in place of `Thread.start`.
_active: list[StartedThreads] = []
_start_before: list[Any] = [threading.Thread.start]


def _start(self: threading.Thread) -> None:
    """Start a thread, noting it first."""
    for one in _active[:]:
        one.note(self)
    _start_before[0](self)


def _install() -> None:
    # If the program has put a function over ours, ours is still called.
    before: Any = threading.Thread.start
    if before is not _start and (before is _start_before[0] or not _is_covered[0]):
        _start_before[0] = before
        threading.Thread.start = _start  # type: ignore[method-assign]
    _is_covered[0] = False


def _uninstall() -> None:
    if threading.Thread.start is _start:
        threading.Thread.start = _start_before[0]  # type: ignore[method-assign]
    else:
        _is_covered[0] = True


# Whether a function of the program's lies over ours, which could not be removed therefore.
_is_covered = [False]
