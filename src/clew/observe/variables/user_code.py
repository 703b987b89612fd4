"""Decide which functions are the user's own: the ones a watch steps into.

Input: code objects. Output: yes for everything but the standard library, installed
packages and Clew itself, unless packages or files are named. A package counts as installed in the
folders where Python installs, or where an installer recorded its files (`pip install --target`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType

from clew.address import matches_file
from clew.machinery import OURS


def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({os.path.realpath(path) + os.sep for path in found} | {p + os.sep for p in found})


_LIBRARIES = _installed()


class Scope:
    """A test of whether code is stepped into; answers are cached by file."""

    def __init__(self, only: Iterable[str] = (), root: str = "") -> None:
        self._only = tuple(only)
        # If the watched function is of an installed package, the package is stepped into.
        self._home = _package_folder(root) if root and is_library(root) else ""
        self._known: dict[str, bool] = {}

    def __call__(self, code: CodeType) -> bool:
        file = code.co_filename
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._holds(file)
        return known and not _is_made(code)

    def _holds(self, file: str) -> bool:
        if file.startswith((OURS, "<frozen ")):
            return False
        if self._only:
            return any(_is_named(name, file) for name in self._only)
        if self._home and file.startswith(self._home):
            return True
        return not is_library(file)


def is_library(file: str) -> bool:
    """Return whether a file belongs to the standard library or to an installed package."""
    return file.startswith("<__array_function__") or bool(_library_of(file))


@functools.lru_cache(maxsize=4096)
def _library_of(file: str) -> str:
    """Return the folder that a file's package was installed into; empty if it was not."""
    for library in _LIBRARIES:
        if file.startswith(library):
            return library
    for folder in Path(file).parents if os.path.isabs(file) else ():
        if file[len(os.path.join(folder, "")) :].replace(os.sep, "/") in _recorded(str(folder)):
            return os.path.join(folder, "")
    return ""


@functools.lru_cache(maxsize=1024)
def _recorded(folder: str) -> frozenset[str]:
    """Return the files that installers recorded for a folder, relative to it."""
    found: set[str] = set()
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
    except OSError:
        return frozenset()
    for name in names:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = Path(folder, name, "RECORD").read_text("utf-8").splitlines()
            found.update(line.partition(",")[0] for line in lines)
    return frozenset(found)


def _is_made(code: CodeType) -> bool:
    """Return whether code is part of another function, or was generated.

    The methods of dataclasses and named tuples have no file.
    """
    name, made = code.co_name, code.co_filename == "<string>"
    if name.startswith("<"):
        return made or name != "<lambda>"
    return made and name.startswith("__")


def _package_folder(file: str) -> str:
    """Return the folder of the outermost package that an installed file lies in."""
    library = _library_of(file)
    inside = file[len(library) :].split(os.sep)
    return library + inside[0] + (os.sep if len(inside) > 1 else "")


def _is_named(name: str, file: str) -> bool:
    """Return whether a file pattern, or a package that is loaded, names a file."""
    if name.endswith(".py") or "/" in name:
        return matches_file(name, file)
    module = sys.modules.get(name)
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None) or ""]
    return any(place and file.startswith(str(place)) for place in places)
