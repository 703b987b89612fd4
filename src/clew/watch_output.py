"""Where the text of a watch goes: a stream, a logger, or a file for each process and thread.

In come happenings, out go lines. Nothing that goes wrong here reaches the program: it is said
once, and the text ends.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TextIO

from clew.errors import ClewError
from clew.events.watched import Happening
from clew.views.text.style import Style, style_for
from clew.views.text.watch import WatchText

_log = logging.getLogger("clew")
TAG = "CLEW_TAG"


class Output:
    """Somewhere the text goes."""

    def tell(self, happening: Happening) -> None:
        """Write what happened."""
        raise NotImplementedError

    def flush(self) -> None:
        """Lines are there as soon as they are told."""

    def files(self) -> list[str]:
        return []


class ThreadFile:
    """A file for each process and thread that writes; the last one stays open between lines.

    Whoever has it sees to it that one thread writes at a time.
    """

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._owner = (0, 0)
        self._file: FileIO | None = None

    def write(self, text: str) -> None:
        """Write to the file of the running process and thread, so that it is there at once."""
        owner = (os.getpid(), threading.get_ident())
        if self._file is None or owner != self._owner:
            self.close()
            path = os.path.abspath(self._path())
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._owner = owner
            self._file = FileIO(path, "a")
        self._file.write(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close what is open; it goes on where it was when there is more."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def output_for(out: object, repeats: int, stack: bool) -> Output | None:
    """The output that an `out=` asks for, None for none at all."""
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
    """The text so far, for one process: after a fork it begins anew, with a lock of its own."""

    def __init__(self, repeats: int, stack: bool) -> None:
        self._repeats, self._stack = repeats, stack
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._texts: dict[int, WatchText] = {}
        self._failed = False

    def tell(self, happening: Happening) -> None:
        if os.getpid() != self._process:
            self._renew()
        if self._failed:
            return
        try:
            with self._lock:
                self._write(self._text().lines(happening), happening)
        except Exception as fault:
            self._failed = True
            _log.warning("the text of a watch ends here: %s: %s", type(fault).__name__, fault)

    def _text(self) -> WatchText:
        """The text of this thread."""
        thread = threading.get_ident()
        found = self._texts.get(thread)
        if found is None:
            found = self._texts[thread] = WatchText(self._style(), self._repeats, self._stack)
        return found

    def _style(self) -> Style:
        return Style()

    def _write(self, lines: list[str], happening: Happening) -> None:
        raise NotImplementedError


class _Stream(_Text):
    """A stream; standard output is looked up at each line, as programs redirect it."""

    def __init__(self, stream: TextIO | None, repeats: int, stack: bool) -> None:
        self._stream = stream
        super().__init__(repeats, stack)

    def _style(self) -> Style:
        return style_for(self._stream)

    def _write(self, lines: list[str], happening: Happening) -> None:
        if lines:
            stream = sys.stdout if self._stream is None else self._stream
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()


class _Logged(_Text):
    """A logger: a record for each line, exceptions and notes as warnings."""

    def __init__(
        self, logger: logging.Logger | logging.LoggerAdapter[logging.Logger], repeats: int,
        stack: bool,
    ) -> None:  # fmt: skip
        self._logger = logger
        super().__init__(repeats, stack)

    def _write(self, lines: list[str], happening: Happening) -> None:
        level = logging.WARNING if happening.what in ("raise", "note") else logging.INFO
        for line in lines:
            self._logger.log(level, "%s", line)


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
        """Close what this thread has open."""
        file = self._open.pop(threading.get_ident(), None)
        if file is not None and os.getpid() == self._process:
            file.close()

    def _write(self, lines: list[str], happening: Happening) -> None:
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
        name = "-".join(_safe(part) for part in parts if part)
        path = self._path.with_name(name + (self._path.suffix or ".log"))
        if str(path) in self._names.values():  # another thread of the same name
            path = path.with_name(f"{name}-{thread.ident}{path.suffix}")
        return str(path)


def _safe(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^\w.=+@-]+", "_", name)[:80]
