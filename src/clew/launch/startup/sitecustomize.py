"""Python runs this file when it starts, if PYTHONPATH names its folder: `clew env` prints that.

It waits until the program has imported torch, then records as CLEW_RUN says. The program finds
nothing of it: PYTHONPATH, CLEW_RUN and `sys.path` are as they were, and the `sitecustomize` that
Python would have run is run. It loads nothing that Python has not loaded, as a module of the
program may have the same name.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any


class _Watch:
    """Finds torch as it would be found without it, and begins to record once it is imported."""

    def __init__(self, options: str, folder: str) -> None:
        self._options = options
        self._folder = folder
        self._process = os.getpid()
        self._is_searching = False
        self._has_begun = False

    def start(self) -> None:
        """Wait for the import of torch."""
        if "torch" in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, self)
            atexit.register(self._at_exit)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what the other finders have, followed. Asking is no import: many may ask."""
        if name != "torch" or self._is_searching:
            return None
        self._is_searching = True
        try:
            for finder in list(sys.meta_path):
                search = getattr(finder, "find_spec", None)
                spec = None if search is None else search(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        self._follow(spec.loader)
                    return spec
            return None
        finally:
            self._is_searching = False

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            if not self._has_begun:
                self._begin()

        loader.exec_module = exec_module

    def _begin(self) -> None:
        self._has_begun = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            from clew.launch.recording import begin  # most processes never import torch
        except Exception as broken:
            _say(f"nothing is recorded: {type(broken).__name__}: {broken}")
        else:
            begin(self._options, self._folder)

    def _at_exit(self) -> None:
        is_child = os.getpid() != self._process or "--child" in self._options.split()
        if not is_child and not self._has_begun:
            instead = ""
            if "numpy" in sys.modules:
                instead = "; to follow NumPy arrays, put @clew.watch('name') on a function of it"
            _say(f"nothing was recorded: the program did not import torch{instead}")


def _say(text: str) -> None:
    # The program may have closed its streams, or changed them.
    try:
        sys.stderr.write(f"clew: {text}\n")
    except Exception:
        pass


def _withdraw() -> str | None:
    """Take this folder and CLEW_RUN away from the program; return what CLEW_RUN said."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    options = os.environ.get("CLEW_RUN")
    if options is not None and "--children" in options.split():
        os.environ["CLEW_RUN"] = f"{options} --child"
        return options
    os.environ.pop("CLEW_RUN", None)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [path for path in given if os.path.abspath(path) != here]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    return options


_options = _withdraw()
_watch = None
if _options is not None and os.environ.get("CLEW_DISABLE", "0") in ("", "0"):
    try:
        _watch = _Watch(_options, os.getcwd())
    except OSError:
        _say("nothing is recorded: the current folder does not exist")

# The one that comes next. If there is none, this raises what Python expects, and is forgotten.
del sys.modules["sitecustomize"]
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
finally:
    if _watch is not None:
        _watch.start()
