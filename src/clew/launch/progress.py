"""A thread that looks after a recording once a second while the program runs.

It hands over what was recorded, so that a kill loses little, and on a terminal it writes how far
the recording is.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TextIO

_SECONDS = 1.0
_CLEAR = "\r\x1b[K"


class Heartbeat:
    """Calls `beat` about once a second; on a terminal it writes `progress` over one line."""

    def __init__(self, beat: Callable[[], object], progress: Callable[[], str]) -> None:
        self._beat = beat
        self._progress = progress
        self._over = threading.Event()
        self._terminal = _terminal()
        self._is_shown = False
        self._thread = threading.Thread(target=self._run, name="clew-progress", daemon=True)

    def start(self) -> None:
        """Begin; where no thread can be started there is no heartbeat."""
        try:
            self._thread.start()
        except RuntimeError:
            self._over.set()

    def stop(self) -> None:
        """End, and remove the line."""
        if not self._over.is_set():
            self._over.set()
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join()
            if self._is_shown:
                self._write(_CLEAR)

    def _run(self) -> None:
        # Nothing of the program runs here for anybody to follow.
        sys.setprofile(None)
        sys.settrace(None)
        while not self._over.wait(_SECONDS):
            # The next beat may fare better: files of a ring come and go while they are counted.
            with contextlib.suppress(Exception):
                self._beat()
                if self._terminal is not None:
                    self._write(f"{_CLEAR}{self._progress()}")
                    self._is_shown = True

    def _write(self, text: str) -> None:
        try:
            if self._terminal is not None:
                self._terminal.write(text)
                self._terminal.flush()
        except (OSError, ValueError):
            self._terminal = None  # closed


def _terminal() -> TextIO | None:
    """Return the error stream if it is a terminal."""
    stream = sys.stderr
    try:
        return stream if stream is not None and stream.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None
