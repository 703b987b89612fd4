"""Where Tensor Tracker's lines go: standard output, and a log file for each process and thread.

Nothing is written or made before the first line; `LTAG` names the folder of the logs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
from typing import Any

from clew.session import warn
from clew.watch_output import ThreadFile

_FORM = logging.Formatter("%(asctime)s - %(levelname)s - %(message)s")


class ThreadFileHandler(logging.Handler):
    """A file for each process and thread in a folder, `./logs/$LTAG` if none is named."""

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.setFormatter(_FORM)
        self._folder, self._file, self._failed = base_path, ThreadFile(self._path), False

    def _path(self) -> str:
        folder = self._folder or os.path.join("logs", os.environ.get("LTAG") or "NOTAG")
        return os.path.join(folder, f"process_{os.getpid()}_thread_{threading.get_ident()}.log")

    def emit(self, record: logging.LogRecord) -> None:
        self.write(self.format(record) + "\n")

    def write(self, text: str) -> None:
        """Write what is formatted already; a fault is said once, and the text ends."""
        try:
            with self.lock or contextlib.nullcontext():
                if not self._failed:
                    self._file.write(text)
        except Exception as fault:
            self._failed = True
            warn(f"the log files of ttracker end here: {type(fault).__name__}: {fault}")

    def close(self) -> None:
        """Close the file; it goes on where it was if there is more."""
        with self.lock or contextlib.nullcontext():
            self._file.close()
        super().close()


_handler = ThreadFileHandler()


def h4logger() -> ThreadFileHandler:
    """The handler that writes the log files; always the same, so that no line is doubled."""
    return _handler


def setup_logger() -> logging.Logger:
    """The logger all lines go through; its level switches them on and off."""
    found = logging.getLogger("ttracker")
    found.propagate = False  # lines are printed already
    found.addHandler(_handler)
    if found.level == logging.NOTSET:
        found.setLevel(logging.INFO)
    return found


logger = setup_logger()


@functools.lru_cache(maxsize=1)
def _stamp(second: int) -> str:
    return time.strftime(_FORM.default_time_format, time.localtime(second))


def log2file(*msgs: Any) -> None:
    """Print something and log it."""
    if not logger.isEnabledFor(logging.INFO):
        return
    text = "\n".join(map(str, msgs)) + "\n"
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # a stream that has no tree lines
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
    if logger.handlers == [_handler] and _handler.formatter is _FORM:
        # As records would be written, which cost more than all the rest of a line.
        now = time.time()
        start = f"{_stamp(int(now))},{int(now % 1 * 1000):03d} - INFO - "
        _handler.write(start + f"\n{start}".join(map(str, msgs)) + "\n")
    else:
        for msg in msgs:
            logger.info("%s", msg)
