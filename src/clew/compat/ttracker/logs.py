"""Where Tensor Tracker's lines go: standard output, and a log file for each process and thread.

Nothing is written or made before the first line; `LTAG` names the folder of the logs.
"""

from __future__ import annotations

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
        self._second, self._date, self._level = 0, "", ""

    def _path(self) -> str:
        folder = self._folder or os.path.join("logs", os.environ.get("LTAG") or "NOTAG")
        return os.path.join(folder, f"process_{os.getpid()}_thread_{threading.get_ident()}.log")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self._write(self.format(record) + "\n")

    def write_lines(self, lines: list[str]) -> None:
        """Write lines as they would be written if each came as a record, which costs far more."""
        now = time.time()
        if self._second != int(now):
            self._second = int(now)
            self._date = time.strftime(_FORM.default_time_format, _FORM.converter(now))
            self._level = logging.getLevelName(logging.INFO)
        start = f"{self._date},{int(now % 1 * 1000):03d} - {self._level} - "
        self.acquire()
        try:
            self._write("".join([f"{start}{line}\n" for line in lines]))
        finally:
            self.release()

    def _write(self, text: str) -> None:
        """Write to the file; a fault is said once, and the files end."""
        try:
            if not self._failed:
                self._file.write(text)
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
    lines = [str(msg) for msg in msgs]
    text = "\n".join(lines) + "\n"
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # a stream that has no tree lines
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
    if _is_usual():
        _handler.write_lines(lines)
    else:
        for line in lines:
            logger.info("%s", line)


def _is_usual() -> bool:
    """Whether all that comes of a record is a line of the file, in its usual form."""
    return (
        logger.handlers == [_handler]
        and _handler.formatter is _FORM
        and _handler.level <= logging.INFO
        and not (logger.propagate or logger.filters or _handler.filters)
        and logging.getLogRecordFactory() is logging.LogRecord
    )
