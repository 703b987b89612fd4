"""Tensor Tracker on Clew: calls and variables as a tree, on standard output and in log files.

Every name of that tool is here. The decorators are watches with an output of their own form, and
work with NumPy alone.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from clew.compat.ttracker.logs import ThreadFileHandler, h4logger, log2file, logger, setup_logger
from clew.compat.ttracker.tree import TRACKED, IndentManager, Stack, Tree, info, line_of
from clew.compat.ttracker.utils import check_run_count, dlog, dump_data, inlog, safe_mean
from clew.events.watched import OTHER, Seen
from clew.watching import seen, watch_calls

__all__ = [
    "IndentManager", "ThreadFileHandler", "_log_change", "auto_diff", "check_run_count",
    "debug_trace", "dlog", "dump_data", "extract_tensor_info", "fstack", "get_call_stack",
    "h4logger", "inlog", "is_content_changed", "log2file", "logger", "pskip", "safe_getsourcelines",
    "safe_mean", "setup_logger", "trace_calls", "trace_lines", "var_tracker",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])


def auto_diff(func: _F) -> _F:
    """Tell each call of a function: who called it, arguments, results, and how long it took."""
    return func if _names_of(func) is not None else _track(func, ())


def var_tracker(*track_vars: str) -> Callable[[_F], _F]:
    """Tell also each change of some variables, in the function and in what it calls."""
    return lambda func: _track(func, track_vars)


def debug_trace(func: _F) -> _F:
    """Tell each line as it runs, in the function and in what it calls."""
    return watch_calls(Tree(every_call=True), lines=True)(func)


def fstack(func: _F) -> _F:
    """Tell the whole call stack at each call of a function, outermost first."""
    return watch_calls(Stack(), stack=True)(func)


def _names_of(func: Any) -> tuple[str, ...] | None:
    """What a function's own tracker tells of, None for a function that has none."""
    return getattr(func, "track_vars", None)


def _track(func: Any, names: tuple[str, ...]) -> Any:
    """One tracker for a function, also where it is decorated twice."""
    known = _names_of(func)
    if known is not None:
        func, names = func.__wrapped__, tuple(dict.fromkeys((*known, *names)))
    tracked = watch_calls(Tree(), *names)(func)
    plain = getattr(tracked, "__func__", tracked)
    plain.track_vars = names
    code = inspect.unwrap(plain).__code__
    TRACKED[code.co_filename, code.co_firstlineno] = frozenset(names)
    return tracked


# Values


def _log_change(prestr: str, name: str, value: Any, indent: str, lineno: int = 0) -> None:
    """Tell what a value is; in a hook, what goes in and out of a module."""
    log2file(line_of(indent, prestr, name, lineno, seen(value)))


def extract_tensor_info(data: Any, max_elements: int = 25) -> Any:
    """Containers with their tensors as lists, and larger ones as text."""
    if isinstance(data, dict):
        return {key: extract_tensor_info(item, max_elements) for key, item in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [extract_tensor_info(item, max_elements) for item in data]
    found = seen(data)
    if found.kind == OTHER:
        return data
    sizes = found.shape
    if sizes is not None and np.prod(sizes, dtype=np.int64) <= max_elements:
        try:
            return data.tolist()
        except Exception:  # a tensor without elements, or of a kind Python has no numbers for
            return info(found)
    return info(found)


def is_content_changed(last: Any, current: Any) -> bool:
    """Whether two values differ; NaN is itself, and no difference is too small."""
    if last is current or type(last) is not type(current):
        return last is not current
    if isinstance(current, dict):
        keys = last.keys() != current.keys()
        return keys or any(is_content_changed(last[key], current[key]) for key in current)
    if isinstance(current, list | tuple):
        return len(last) != len(current) or any(map(is_content_changed, last, current))
    before, after = seen(last, digest=True), seen(current, digest=True)
    if after.kind == OTHER:
        return _differs(last, current)
    if after.stats is None and isinstance(current, np.ndarray) and last.shape == current.shape:
        return is_content_changed(last.tolist(), current.tolist())
    return _facts(before) != _facts(after)


def _facts(value: Seen) -> tuple[Any, ...]:
    digest = (value.stats or {}).get("digest")
    return value.shape, value.dtype, value.device, value.layout, value.strided, value.grad, digest


def _differs(last: Any, current: Any) -> bool:
    try:
        return bool(last != current) and not bool(last != last and current != current)
    except Exception:  # an object that cannot be compared
        return True


# The stack and source lines


def get_call_stack() -> str:
    """Who called the function that asks: the three nearest, `a.py:1 <- b.py:2 <- c.py:3`."""
    places: list[str] = []
    frame = sys._getframe(1).f_back
    while frame is not None and len(places) < 3:
        places.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return " <- ".join(places)


def pskip() -> bool:
    return True


def safe_getsourcelines(obj: Any) -> tuple[list[str], int]:
    """The source of something and its first line, nothing where there is none."""
    try:
        return inspect.getsourcelines(obj)
    except (OSError, TypeError):
        return [], 0


def trace_lines(frame: FrameType, event: str, arg: Any) -> Any:
    """Tell a line; a trace function of Python, for those who install one themselves."""
    if event == "line":
        code = frame.f_code
        source = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
        place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
        log2file(f"{IndentManager.get_indent()}├─ [{place}] {source}")
    return trace_lines


def trace_calls(frame: FrameType, event: str, arg: Any) -> Any:
    """Tell a call and its lines; a trace function like `trace_lines`."""
    code = frame.f_code
    if event == "call":
        place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        log2file(f"{IndentManager.get_indent()}┌── [{place}] function [{code.co_name}]")
    return trace_lines
