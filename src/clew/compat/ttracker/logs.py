"""Where Tensor Tracker's lines go: standard output, and a log file for each process and thread.

Nothing is written or made before the first line; `LTAG` names the folder of the logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TextIO

from clew.session import warn


class ThreadFileHandler(logging.Handler):
    """A file for each process and thread in a folder, `./logs/$LTAG` if none is named."""

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._folder = base_path
        self._path = ""
        self._file: TextIO | None = None
        self._failed = False
        self.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if self._failed:
            return
        try:
            file = self._opened(f"process_{os.getpid()}_thread_{threading.get_ident()}.log")
            file.write(self.format(record) + "\n")
            file.flush()
        except Exception as fault:
            self._failed = True
            warn(f"the log files of ttracker end here: {type(fault).__name__}: {fault}")

    def _opened(self, name: str) -> TextIO:
        folder = self._folder or os.path.join("logs", os.environ.get("LTAG") or "NOTAG")
        path = os.path.abspath(os.path.join(folder, name))
        if self._file is None or path != self._path:
            self._close_file()
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._path, self._file = path, Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - stays open
        return self._file

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the file; it goes on where it was if there is more."""
        with self.lock or contextlib.nullcontext():
            self._close_file()
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


def log2file(msg: object) -> None:
    """Print something and log it."""
    if logger.isEnabledFor(logging.INFO):
        _print(f"{msg}\n")
        logger.info("%s", msg)


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # a stream that has no tree lines
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
