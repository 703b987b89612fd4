"""Tensor Tracker on Clew: calls and variables as a tree, on standard output and in log files.

Every name of that tool is here. The decorators are watches with an output of their own form, and
work with NumPy alone. Nothing is written or made before the first line.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from clew.compat.engine.watch_facts import Depth, FactsText, as_dict, named, place, stack
from clew.compat.engine.watched_functions import is_same, summary_of, watch_calls
from clew.compat.ttracker.utils import check_run_count, dlog, dump_data, inlog, safe_mean
from clew.errors import warn
from clew.events.watch_events import OTHER
from clew.watch_output import ThreadLog, Written, log_lines, print_lines

__all__ = [
    "IndentManager", "ThreadFileHandler", "_log_change", "auto_diff", "check_run_count",
    "debug_trace", "dlog", "dump_data", "extract_tensor_info", "fstack", "get_call_stack",
    "h4logger", "inlog", "is_content_changed", "log2file", "logger", "pskip", "safe_getsourcelines",
    "safe_mean", "setup_logger", "trace_calls", "trace_lines", "var_tracker",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])


class IndentManager:
    """How deep the running thread is in the tree, and what its lines begin with."""

    depth = Depth()
    increase, decrease, get_indent = depth.increase, depth.decrease, depth.get_indent


class ThreadFileHandler(ThreadLog):
    """A file for each process and thread in a folder, `./logs/$LTAG` if none is named."""

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(self._path, lambda why: warn(f"the log files of ttracker end here: {why}"))
        self._folder = base_path

    @property
    def base_path(self) -> str:
        return os.fspath(self._folder or f"logs/{os.environ.get('LTAG') or 'NOTAG'}")

    def _path(self) -> str:
        return f"{self.base_path}/process_{os.getpid()}_thread_{threading.get_ident()}.log"


# The handler that writes the log files; always the same, so that no line is doubled.
h4logger = functools.cache(ThreadFileHandler)


def setup_logger() -> logging.Logger:
    """Return the logger that all lines go through; its level switches them on and off."""
    found = logging.getLogger("ttracker")
    found.propagate = False  # lines are printed already
    found.addHandler(h4logger())
    found.setLevel(found.level or logging.DEBUG)
    return found


logger = setup_logger()


def log2file(*msgs: Any) -> None:
    """Print something and log it."""
    if msgs and logger.isEnabledFor(logging.INFO):
        print_lines(lines := [str(msg) for msg in msgs])
        log_lines(logger, logging.INFO, lines)


def auto_diff(func: _F) -> _F:
    """Log each call of a function: who called it, arguments, results, and how long it took."""
    return func if hasattr(func, "track_vars") else var_tracker()(func)


def var_tracker(*track_vars: str) -> Callable[[_F], _F]:
    """Log also each change of some variables, in the function and in what it calls."""

    def track(func: Any) -> Any:
        # One tracker for a function, also where it is decorated twice.
        names = tuple(dict.fromkeys((*getattr(func, "track_vars", ()), *track_vars)))
        own = func.__wrapped__ if hasattr(func, "track_vars") else func
        tree = FactsText(IndentManager.depth)
        tracked = watch_calls(Written(tree.lines, log2file, tree.ended), *names)(own)
        getattr(tracked, "__func__", tracked).track_vars = names
        return tracked

    return track


def debug_trace(func: _F) -> _F:
    """Log each line as it runs, in the function and in what it calls."""
    tree = FactsText(IndentManager.depth, every_call=True)
    return watch_calls(Written(tree.lines, log2file, tree.ended), lines=True)(func)


def fstack(func: _F) -> _F:
    """Log the whole call stack at each call of a function, outermost first."""
    return watch_calls(Written(stack, log2file), stack=True)(func)


def _log_change(prestr: str, name: str, value: Any, indent: str, lineno: int = 0) -> None:
    """Log what a value is; in a hook, what goes in and out of a module."""
    log2file(named(indent, prestr, name, lineno, summary_of(value)))


def extract_tensor_info(data: Any, max_elements: int = 25) -> Any:
    """Return containers with small tensors as lists, and larger ones as dicts of their facts."""
    if isinstance(data, dict):
        return {key: extract_tensor_info(item, max_elements) for key, item in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [extract_tensor_info(item, max_elements) for item in data]
    found = summary_of(data)
    if found.kind == OTHER:
        return data
    if math.prod(found.shape or ()) <= max_elements:
        with contextlib.suppress(Exception):  # without elements, or of a kind Python has none for
            return data.tolist()
    return as_dict(found)


def is_content_changed(last: Any, current: Any) -> bool:
    """Return whether two values differ; NaN equals NaN, and no difference is too small."""
    return not is_same(last, current, lambda one, other: one == other)


def get_call_stack() -> str:
    """Return the three nearest callers of the calling function, `a.py:1 <- b.py:2 <- c.py:3`."""
    nearest = traceback.extract_stack(sys._getframe(1).f_back, limit=3)[::-1]
    return " <- ".join(place(caller.filename, caller.lineno or 0) for caller in nearest)


def pskip() -> bool:
    return True


def safe_getsourcelines(obj: Any) -> tuple[list[str], int]:
    """Return the source of something and its first line, nothing where there is none."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsourcelines(obj)
    return [], 0


def trace_lines(frame: FrameType, event: str, arg: Any) -> Any:
    """Log a line; a trace function of Python, for those who install one themselves."""
    if event == "line":
        file, line = frame.f_code.co_filename, frame.f_lineno
        source = linecache.getline(file, line, frame.f_globals).strip()
        log2file(f"{IndentManager.get_indent()}├─ [{place(file, line)}] {source}")
    return trace_lines


def trace_calls(frame: FrameType, event: str, arg: Any) -> Any:
    """Log a call and its lines; a trace function like `trace_lines`."""
    if event == "call":
        where = place(frame.f_code.co_filename, frame.f_code.co_firstlineno)
        log2file(f"{IndentManager.get_indent()}┌── [{where}] function [{frame.f_code.co_name}]")
    return trace_lines
