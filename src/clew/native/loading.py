"""Load the native engine, if it was built for the running torch and Python.

Out: the module, or the reason why there is none; and the module that makes `clew.watch` fast, which
needs no torch. Nothing is compiled, no process is started, and nothing raises: without the native
engine Clew records with the python engine.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from clew.native import target
from clew.native.library import State, Unusable, library_root, usable_library
from clew.program_errors import pass_on
from clew.request.switches import engine_of_environment

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A library of this process, or why there is none and what to do about it."""

    module: ModuleType | None
    state: State
    # Where the library is; None if there is none.
    path: Path | None = None
    reason: str = ""
    # A command; empty if there is nothing to be done.
    remedy: str = ""


def load() -> ModuleType | None:
    """Return the module of the native engine, None if it cannot be used."""
    return loaded().module


def why_not() -> str:
    """Say why there is no native engine; empty if there is one."""
    return loaded().reason


def wanted() -> Loaded:
    """Load the native engine unless CLEW_ENGINE=python switches it off."""
    is_off = engine_of_environment() == "python"
    if is_off and importlib.util.find_spec("torch") is not None:
        reason = "CLEW_ENGINE=python switches it off"
        return Loaded(None, "disabled", reason=reason, remedy="unset CLEW_ENGINE")
    return loaded()


def loaded() -> Loaded:
    """Load the native engine once per process, and say how that went."""
    with _lock:
        return _load_once()


@functools.cache
def _load_once() -> Loaded:
    return _loaded_from(_find)


def loaded_tracing() -> Loaded:
    """Load the library that makes `clew.watch` fast, once per process and without loading torch.

    CLEW_ENGINE=python switches it off, as it does the native engine.
    """
    if engine_of_environment() == "python":
        return Loaded(None, "disabled", reason="CLEW_ENGINE=python switches it off")
    with _lock:
        return _load_tracing_once()


@functools.cache
def _load_tracing_once() -> Loaded:
    return _loaded_from(_find_tracing)


def _loaded_from(find: Callable[[], Path]) -> Loaded:
    try:
        path = find()
        try:
            return Loaded(open_library(path), "loaded", path)
        except Exception as error:
            pass_on(error)
            raise Unusable("failed", f"{path} cannot be loaded: {error}") from None
    except Unusable as found:
        return Loaded(None, found.state, reason=found.reason, remedy=found.remedy)
    except Exception as error:
        pass_on(error)
        return Loaded(None, "failed", reason=f"looking for it failed: {error}")


def open_library(path: Path) -> ModuleType:
    """Load a library as a Python module; torch must be loaded if it was built for one."""
    name = path.name.partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


def _find() -> Path:
    unsupported = target.unsupported()
    if unsupported:
        raise Unusable("unsupported", unsupported, "")
    try:
        wanted = target.current_target(target.SOURCES)
    except ImportError as error:
        reason = f"torch cannot be imported: {error}"
        raise Unusable("no torch", reason, 'pip install "clew[torch]"') from None
    return usable_library(library_root(), wanted)


def _find_tracing() -> Path:
    wanted = None if target.unsupported() else target.tracing_target(target.SOURCES)
    if wanted is None:
        raise Unusable("unsupported", "this system and Python have none", "")
    return usable_library(library_root(), wanted)
