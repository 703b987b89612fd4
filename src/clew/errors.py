"""The exceptions Clew raises, one tree, so that `except ClewError` catches them all; the warning.

In: what happened, with the values. Out: an exception whose text says what to do next.
Must not know: anything else of Clew but plain text; every other module may import this one.

    ClewError
     ├─ AddressSyntaxError   (ValueError)     an address that cannot be read
     ├─ NoMatch              (LookupError)    an address that names nothing here
     ├─ TraceStateError      (RuntimeError)   start, stop or step at the wrong time
     ├─ MissingDependency    (ImportError)    an optional package is not installed
     ├─ BadTrace                              files that cannot be read as a trace
     ├─ BuildError           (RuntimeError)   the native engine cannot be built
     ├─ NotRecorded          (LookupError)    the data asked for was not kept
     └─ NonFiniteError       (ArithmeticError)  NaN or Inf that `clew.guard` found
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clew.plain_text import plain_lines

if TYPE_CHECKING:
    from clew.analysis.nonfinite import NonFiniteOrigin

_EXCERPT = 70
_OWN_DIR = os.path.dirname(__file__) + os.sep
_log = logging.getLogger("clew")


class ClewError(Exception):
    """Base of all exceptions that Clew raises on purpose."""

    def __str__(self) -> str:
        # A message may quote names of a trace and of its files.
        return plain_lines(super().__str__())


class AddressSyntaxError(ClewError, ValueError):
    """An address that cannot be parsed: what is wrong, where, and what to write instead."""

    def __init__(self, what: str, text: str, position: int, instead: str) -> None:
        # All four go into `args`, so the exception survives pickling from a worker process.
        super().__init__(what, text, position, instead)
        self.what = what
        self.text = text
        self.position = position
        self.instead = instead

    def __str__(self) -> str:
        shown, caret = _excerpt(self.text, self.position)
        lines = f"cannot read the address: {self.what}", f"    {shown}", f"    {' ' * caret}^"
        return "\n".join(_printable(line) for line in (*lines, self.instead))


class NoMatch(ClewError, LookupError):
    """An address that names nothing; the message lists the nearest names."""

    def __init__(
        self, address: str, nearest: Sequence[str] = (), among: str = "the recorded names"
    ) -> None:
        super().__init__(address, tuple(nearest), among)
        self.address = address
        self.nearest = tuple(nearest)
        self.among = among

    def __str__(self) -> str:
        text = f"nothing matches {self.address!r} among {self.among}"
        if self.nearest:
            text += "; nearest: " + ", ".join(repr(name) for name in self.nearest)
        return text


class TraceStateError(ClewError, RuntimeError):
    """A trace was started, stopped or stepped at the wrong time."""


class MissingDependency(ClewError, ImportError):
    """An optional package is missing; the message has the command that installs it."""

    def __init__(self, feature: str, package: str, install: str) -> None:
        super().__init__(feature, package, install)
        self.feature = feature
        self.package = package
        self.install = install

    def __str__(self) -> str:
        return (
            f"{self.feature} needs {self.package}, which is not installed. "
            f'Run: pip install "{self.install}"'
        )


class BadTrace(ClewError):
    """A file that is not, or not wholly, a trace."""


class BuildError(ClewError, RuntimeError):
    """The native engine cannot be built: why, what to do, and what the compiler printed."""

    def __init__(self, what: str, output: str = "") -> None:
        super().__init__(what, output)
        self.what = what
        self.output = output

    def __str__(self) -> str:
        return plain_lines(self.what)


class NotRecorded(ClewError, LookupError):
    """Data that was not recorded; the message says how to record it."""


class NonFiniteError(ClewError, ArithmeticError):
    """NaN or Inf that an op produced and that `clew.guard` found.

    `nonfinite` is the `NonFiniteOrigin` of `t.nonfinite()`, with the event that made it, None if
    that was not seen. It is not there after pickling.
    """

    def __init__(self, text: str, nonfinite: NonFiniteOrigin | None = None) -> None:
        super().__init__(text)
        self.nonfinite = nonfinite

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[str]]:
        return NonFiniteError, (str(self.args[0]),)


def _excerpt(text: str, position: int) -> tuple[str, int]:
    """Cut `text` around `position` to fit a line; return it and the caret's column."""
    start = max(0, position - _EXCERPT // 2) if len(text) > _EXCERPT else 0
    cut = text[start : start + _EXCERPT]
    left = "..." if start else ""
    right = "..." if start + _EXCERPT < len(text) else ""
    return left + cut + right, len(left) + position - start


def _printable(line: str) -> str:
    """Escape line breaks and control codes of an address for a message."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


class ClewWarning(UserWarning):
    """Something the user should know while the program goes on."""


@functools.cache
def _skipped(torch: str | None) -> tuple[str, ...]:
    """Return how the files begin whose lines are not the user's; `torch` is that of the package."""
    return _OWN_DIR, (torch or _OWN_DIR).removesuffix("__init__.py"), contextlib.__file__


def warn(message: str) -> None:
    """Return one warning, at the user's line; log it instead if warnings are errors."""
    level, frame = 1, sys._getframe(0)
    skipped = _skipped(getattr(sys.modules.get("torch"), "__file__", None))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(skipped):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(plain_lines(message), ClewWarning, stacklevel=level)
    except ClewWarning:
        _log.warning(plain_lines(message))
