"""Learn what functions do from `sys.monitoring` (Python 3.12 and later).

In: watches on code objects, and functions to ask about other calls. Out: calls of their methods.
Instructions that matter to no watch are switched off one by one, when they first run.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from clew.observe.variables.frames.stepping import CodeWatch

AVAILABLE = sys.version_info >= (3, 12)

_monitoring: Any = getattr(sys, "monitoring", None)
_lock = threading.RLock()
_watches: dict[int, list[CodeWatch]] = {}
_callers: list[Callable[[CodeType, FrameType], bool]] = []
_tool: int | None = None

# By convention 0, 1, 2 and 5 are for a debugger, coverage, a profiler and an optimiser.
_TOOL_IDS = (3, 4, 2, 1, 0)


class Busy(Exception):
    """Every place for a monitoring tool is taken."""


def add(watch: CodeWatch) -> None:
    """Begin to notify a watch about its code, also in frames that run it already."""
    with _lock:
        tool = _start()
        _watches.setdefault(id(watch.code), []).append(watch)
        events = _monitoring.events
        _monitoring.set_local_events(
            tool,
            watch.code,
            events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
            | events.INSTRUCTION,
        )  # fmt: skip
        # An instruction switched off for one watch may matter to another.
        _monitoring.restart_events()


def remove(watch: CodeWatch) -> None:
    with _lock:
        watches = _watches.get(id(watch.code), [])
        if watch in watches:
            watches.remove(watch)
        if not watches and _watches.pop(id(watch.code), None) is not None and _tool is not None:
            _monitoring.set_local_events(_tool, watch.code, 0)
        _stop_if_idle()


def add_caller(asked: Callable[[CodeType, FrameType], bool]) -> None:
    """Call `asked` at every call; if it returns False, never again for that code."""
    with _lock:
        tool = _start()
        _callers.append(asked)
        _set_events(tool)
        _monitoring.restart_events()


def remove_caller(asked: Callable[[CodeType, FrameType], bool]) -> None:
    with _lock:
        if asked in _callers:
            _callers.remove(asked)
        if _tool is not None:
            _set_events(_tool)
        _stop_if_idle()


def ask_again() -> None:
    """Ask again about calls of code for which the answer was False."""
    with _lock:
        if _tool is not None:
            _monitoring.restart_events()


def _start() -> int:
    global _tool
    if _tool is not None:
        return _tool
    for tool in _TOOL_IDS:
        try:
            _monitoring.use_tool_id(tool, "clew")
        except ValueError:
            continue
        for event, callback in _callbacks().items():
            _monitoring.register_callback(tool, event, callback)
        _set_events(tool)
        _tool = tool
        return tool
    raise Busy("all tool ids of sys.monitoring are taken")


def _set_events(tool: int) -> None:
    # PY_UNWIND cannot be set for one code object alone; it costs only where exceptions pass.
    events = _monitoring.events.PY_UNWIND
    if _callers:
        events |= _monitoring.events.PY_START
    _monitoring.set_events(tool, events)


def _stop_if_idle() -> None:
    if not (_watches or _callers):
        _stop()


@atexit.register
def _stop() -> None:
    """Stop; at exit before Python clears the modules, as callbacks would then run without them."""
    global _tool
    if _tool is None:
        return
    _monitoring.set_events(_tool, 0)
    for event in _callbacks():
        _monitoring.register_callback(_tool, event, None)
    _monitoring.free_tool_id(_tool)
    _tool = None


def _callbacks() -> dict[int, Callable[..., object]]:
    events = _monitoring.events
    return {
        events.PY_START: _on_start,
        events.PY_RESUME: _on_resume,
        events.PY_RETURN: _on_return,
        events.PY_YIELD: _on_yield,
        events.PY_UNWIND: _on_unwind,
        events.INSTRUCTION: _on_instruction,
    }


def _on_start(code: CodeType, offset: int) -> object:
    frame = sys._getframe(1)
    asked_again = [asked(code, frame) for asked in list(_callers)]
    reported_again = [watch.entered(frame) for watch in list(_watches.get(id(code), ()))]
    return None if any(asked_again) or any(reported_again) else _monitoring.DISABLE


def _on_resume(code: CodeType, offset: int) -> object:
    for watch in list(_watches.get(id(code), ())):
        watch.resumed(sys._getframe(1), offset - 2 in watch.map.yields)
    return None


def _on_return(code: CodeType, offset: int, value: object) -> object:
    for watch in list(_watches.get(id(code), ())):
        watch.returned(sys._getframe(1), value)
    return None


def _on_yield(code: CodeType, offset: int, value: object) -> object:
    for watch in list(_watches.get(id(code), ())):
        watch.yielded(sys._getframe(1), offset, value)
    return None


def _on_unwind(code: CodeType, offset: int, error: BaseException) -> object:
    for watch in list(_watches.get(id(code), ())):
        watch.raised(sys._getframe(1), error)
    return None


def _on_instruction(code: CodeType, offset: int) -> object:
    frame = sys._getframe(1)
    again = False
    for watch in list(_watches.get(id(code), ())):
        again |= watch.step(frame, offset)
    return None if again else _monitoring.DISABLE


def join_thread() -> Callable[[], None]:
    """Do nothing: `sys.monitoring` covers every thread."""
    return _nothing


def _nothing() -> None:
    """Do nothing, as there is nothing to undo."""
