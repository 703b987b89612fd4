"""Where Tensor Tracker's lines go: standard output, and a log file for each process and thread.

Nothing is written or made before the first line; `LTAG` names the folder of the logs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from clew.session import warn
from clew.watch_output import ThreadFile


class ThreadFileHandler(logging.Handler):
    """A file for each process and thread in a folder, `./logs/$LTAG` if none is named."""

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
        self._folder, self._file, self._failed = base_path, ThreadFile(self._path), False

    def _path(self) -> str:
        folder = self._folder or os.path.join("logs", os.environ.get("LTAG") or "NOTAG")
        return os.path.join(folder, f"process_{os.getpid()}_thread_{threading.get_ident()}.log")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a fault is said once, and the files end."""
        try:
            if not self._failed:
                self._file.write(self.format(record) + "\n")
        except Exception as fault:
            self._failed = True
            warn(f"the log files of ttracker end here: {type(fault).__name__}: {fault}")

    def close(self) -> None:
        """Close the file; it goes on where it was if there is more."""
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


def log2file(*msgs: Any) -> None:
    """Print something and log it."""
    if not msgs or not logger.isEnabledFor(logging.INFO):
        return
    text = "\n".join(map(str, msgs)) + "\n"
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # a stream that has no tree lines
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
    for msg in msgs:
        logger.info("%s", msg)
