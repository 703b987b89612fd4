"""Where the text of a watch goes: a stream, a logger, or a file for each process and thread.

Input: watch events. Output: lines of text. An error in here does not reach the program: it is
reported once, and the text ends.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import TextIO

from clew.errors import ClewError
from clew.events.watch_events import WatchEvent
from clew.program_errors import pass_on
from clew.views.text.style import Style, style_for
from clew.views.text.watch import WatchText

_log = logging.getLogger("clew")
TAG = "CLEW_TAG"


class Output:
    """A destination of the text."""

    def show(self, event: WatchEvent) -> None:
        """Write an event."""
        raise NotImplementedError

    def flush(self) -> None:
        """Do nothing: each line is written as soon as its event is received."""

    def files(self) -> list[str]:
        return []


class Written(Output):
    """A text of another form: `lines` makes its lines from an event, `write` is given them.

    `ended` is called when all calls of a function are over.
    """

    def __init__(
        self, lines: Callable[[WatchEvent], list[str]], write: Callable[..., object],
        ended: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._lines, self._write, self._ended = lines, write, ended

    def show(self, event: WatchEvent) -> None:
        self._write(*self._lines(event))

    def flush(self) -> None:
        self._ended()


class ThreadFile:
    """A file for each process and thread that writes; the last one stays open between lines.

    The user of this class makes sure that one thread writes at a time.
    """

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._owner = (0, 0)
        self._file: FileIO | None = None

    def write(self, text: str) -> None:
        """Write at once, without a buffer, to the file of the running process and thread."""
        owner = (os.getpid(), threading.get_ident())
        if self._file is None or owner != self._owner:
            self.close()
            path = os.path.abspath(self._path())
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._owner = owner
            self._file = FileIO(path, "a")
        self._file.write(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the open file; a later write appends to it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class ThreadLog(logging.Handler):
    """Writes records to a file for each process and thread.

    If that cannot be done, `on_fault` is called once with the reason, and the files end.
    """

    FORM = logging.Formatter("%(asctime)s - %(levelname)s - %(message)s")

    def __init__(self, path: Callable[[], str], on_fault: Callable[[str], object]) -> None:
        super().__init__()
        self.setFormatter(self.FORM)
        self._file, self._on_fault, self._failed = ThreadFile(path), on_fault, False
        self._second, self._date = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self._write(self.format(record) + "\n")

    def write_lines(self, level: int, lines: Iterable[str]) -> None:
        """Write lines as they would be written if each came as a record."""
        now = time.time()
        if self._second != int(now):
            self._second = int(now)
            self._date = time.strftime(self.FORM.default_time_format, self.FORM.converter(now))
        start = f"{self._date},{int(now % 1 * 1000):03d} - {logging.getLevelName(level)} - "
        self.acquire()
        try:
            self._write("".join([f"{start}{line}\n" for line in lines]))
        finally:
            self.release()

    def is_all(self, logger: object, level: int) -> bool:
        """Return whether a logger's record only adds a line to the file, in its usual form."""
        return (
            isinstance(logger, logging.Logger)
            and logger.handlers == [self]
            and logger.isEnabledFor(level)
            and self.level <= level
            and self.formatter is self.FORM
            and not (logger.propagate or logger.filters or self.filters)
            and logging.getLogRecordFactory() is logging.LogRecord
        )

    def _write(self, text: str) -> None:
        try:
            if not self._failed:
                self._file.write(text)
        except Exception as fault:
            pass_on(fault)
            self._failed = True
            self._on_fault(f"{type(fault).__name__}: {fault}")

    def close(self) -> None:
        """Close the file; a later record is appended to it."""
        self._file.close()
        super().close()


def log_lines(
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger], level: int, lines: list[str]
) -> None:
    """Log each line; without a record, which costs far more, where nothing else would see it."""
    log = next(iter(getattr(logger, "handlers", ())), None)
    if isinstance(log, ThreadLog) and log.is_all(logger, level):
        log.write_lines(level, lines)
    else:
        for line in lines:
            logger.log(level, "%s", line)


def print_lines(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Write lines and flush them, to standard output if no stream is given."""
    stream = sys.stdout if stream is None else stream
    text = "".join([f"{line}\n" for line in lines])
    if not text or stream is None:  # a program without a console
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a stream that has no tree lines
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def output_for(out: object, repeats: int, stack: bool) -> Output | None:
    """Return the output that an `out=` asks for, None for none at all."""
    if out is False:
        return None
    if out is None or out is True or hasattr(out, "write"):
        return _Stream(None if out is None or out is True else out, repeats, stack)  # type: ignore[arg-type]
    if isinstance(out, logging.Logger | logging.LoggerAdapter):
        return _Logged(out, repeats, stack)
    if isinstance(out, str | os.PathLike):
        return _Files(Path(out), repeats, stack)
    raise ClewError(
        f"out={out!r:.60} is of type {type(out).__name__}; give a path, a stream, "
        "a logging.Logger, False for no text, or None for standard output"
    )


class _Text(Output):
    """The text so far, for one process: after a fork it begins again, with a new lock."""

    def __init__(self, repeats: int, stack: bool) -> None:
        self._repeats, self._stack = repeats, stack
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._texts: dict[int, WatchText] = {}
        self._failed = False

    def show(self, event: WatchEvent) -> None:
        if os.getpid() != self._process:
            self._renew()
        if self._failed:
            return
        try:
            with self._lock:
                self._write(self._text().lines(event), event)
        except Exception as fault:
            pass_on(fault)
            self._failed = True
            _log.warning("the text of a watch ends here: %s: %s", type(fault).__name__, fault)

    def _text(self) -> WatchText:
        """Return the text of this thread."""
        thread = threading.get_ident()
        found = self._texts.get(thread)
        if found is None:
            found = self._texts[thread] = WatchText(self._style(), self._repeats, self._stack)
        return found

    def _style(self) -> Style:
        return Style()

    def _write(self, lines: list[str], event: WatchEvent) -> None:
        raise NotImplementedError


class _Stream(_Text):
    """A stream; standard output is looked up at each line, as programs redirect it."""

    def __init__(self, stream: TextIO | None, repeats: int, stack: bool) -> None:
        self._stream = stream
        super().__init__(repeats, stack)

    def _style(self) -> Style:
        return style_for(self._stream)

    def _write(self, lines: list[str], event: WatchEvent) -> None:
        print_lines(lines, self._stream)


class _Logged(_Text):
    """A logger: a record for each line, exceptions and notes as warnings."""

    def __init__(
        self, logger: logging.Logger | logging.LoggerAdapter[logging.Logger], repeats: int,
        stack: bool,
    ) -> None:  # fmt: skip
        self._logger = logger
        super().__init__(repeats, stack)

    def _write(self, lines: list[str], event: WatchEvent) -> None:
        level = logging.WARNING if event.what in ("raise", "note") else logging.INFO
        log_lines(self._logger, level, lines)


class _Files(_Text):
    """A file for each process and thread: `run-TAG-p1234-MainThread.log` for `run.log`."""

    def __init__(self, path: Path, repeats: int, stack: bool) -> None:
        self._path = path
        super().__init__(repeats, stack)

    def _renew(self) -> None:
        super()._renew()
        self._open: dict[int, ThreadFile] = {}
        self._names: dict[int, str] = {}

    def files(self) -> list[str]:
        return list(self._names.values())

    def flush(self) -> None:
        """Close the file of this thread."""
        file = self._open.pop(threading.get_ident(), None)
        if file is not None and os.getpid() == self._process:
            file.close()

    def _write(self, lines: list[str], event: WatchEvent) -> None:
        if not lines:
            return
        thread = threading.current_thread()
        ident = thread.ident or 0
        name = self._names.get(ident)
        if name is None:
            name = self._names[ident] = self._name(thread)
        file = self._open.setdefault(ident, ThreadFile(lambda: name))
        file.write("".join(f"{line}\n" for line in lines))

    def _name(self, thread: threading.Thread) -> str:
        parts = [self._path.stem, os.environ.get(TAG, ""), f"p{os.getpid()}", thread.name]
        name = "-".join(safe_name(part) for part in parts if part)
        path = self._path.with_name(name + (self._path.suffix or ".log"))
        if str(path) in self._names.values():  # another thread of the same name
            path = path.with_name(f"{name}-{thread.ident}{path.suffix}")
        return str(path)


def safe_name(name: str) -> str:
    """Return a name that any file system accepts."""
    return re.sub(r"[^\w.=+@-]+", "_", name)[:80]
