"""Which functions are the user's own: the ones a watch steps into.

In come code objects, out comes yes or no: everything but the standard library, installed packages
and Clew itself, unless packages or files are named.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from types import CodeType

from clew.address import matches_file

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.realpath(path) + os.sep for path in found} | {p + os.sep for p in found})


_LIBRARIES = _installed()


class Scope:
    """Tells whether code is stepped into; answers are remembered by file."""

    def __init__(self, only: Iterable[str] = (), root: str = "") -> None:
        self._only = tuple(only)
        # A watched function of an installed package: its package is of interest.
        self._home = _package_folder(root) if root and is_library(root) else ""
        self._known: dict[str, bool] = {}

    def __call__(self, code: CodeType) -> bool:
        file = code.co_filename
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._holds(file)
        return known and not _is_made(code)

    def _holds(self, file: str) -> bool:
        if file.startswith((_OURS, "<frozen ")):
            return False
        if self._only:
            return any(_is_named(name, file) for name in self._only)
        if self._home and file.startswith(self._home):
            return True
        return not is_library(file)


def is_library(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    return file.startswith((*_LIBRARIES, "<__array_function__"))


def _is_made(code: CodeType) -> bool:
    """Whether code is part of another function, or was not written by anybody.

    The methods of dataclasses and named tuples have no file.
    """
    name, made = code.co_name, code.co_filename == "<string>"
    if name.startswith("<"):
        return made or name != "<lambda>"
    return made and name.startswith("__")


def _package_folder(file: str) -> str:
    """The folder of the outermost package a file lies in."""
    for library in _LIBRARIES:
        if file.startswith(library):
            inside = file[len(library) :].split(os.sep)
            return library + inside[0] + (os.sep if len(inside) > 1 else "")
    return os.path.dirname(file) + os.sep


def _is_named(name: str, file: str) -> bool:
    """Whether a file pattern, or a package that is loaded, names a file."""
    if name.endswith(".py") or "/" in name:
        return matches_file(name, file)
    module = sys.modules.get(name)
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None) or ""]
    return any(place and file.startswith(str(place)) for place in places)
