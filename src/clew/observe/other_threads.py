"""Report threads that may run ops where none are recorded: outside module calls, off the trace.

Input: the program's other threads. Output: gaps. A new thread is profiled until it uses torch.
An older thread is reported if it ran at all, since nothing says what it does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from torch import Tensor

from clew.events.model import Gap
from clew.observe.variables.user_code import is_library
from clew.record.recorder import Recorder
from clew.torch_compat import BUILTIN_MODULES

# A new thread is profiled for so many calls and returns, then left alone.
_MOST_CALLS = 5000

# Threads of these packages never run ops of the program.
_MACHINERY = ("clew", "multiprocessing", "torch")


class ThreadSource:
    """Watches the program's threads while a recording runs."""

    def __init__(self, recorder: Recorder, on_gap: Callable[[Gap], Any]) -> None:
        self.recorder = recorder
        self.on_gap = on_gap
        self._older: list[tuple[threading.Thread, int | None]] = []

    def start(self) -> None:
        """Profile every thread that begins from here on, and note the CPU time of the others."""
        here = threading.current_thread()
        self._older = [
            (thread, _cpu_time(thread)) for thread in threading.enumerate() if thread is not here
        ]
        if not _sources:
            _program_has[:] = [threading.getprofile()]
            threading.setprofile(_profile_call)
        _sources.append(self)

    def stop(self) -> None:
        """Profile no new threads; those that are profiled stop with their next call."""
        if self in _sources:
            _sources.remove(self)
        if not _sources and threading.getprofile() is _profile_call:
            threading.setprofile(_program_has[0])
        for thread, before in self._older:
            now = _cpu_time(thread)
            # A thread that is gone ran to its end; where there is no clock, it may have run.
            ran = now is None or before is None or now > before
            if ran and thread.ident not in self.recorder.threads.by_ident and _is_program_s(thread):
                self.on_gap(_not_watched(thread.name, "it is older than the trace, and ran"))
        self._older = []


# Recordings may overlap in any order: all of them share one profile function.
_sources: list[ThreadSource] = []
_program_has: list[Any] = [None]
_calls_seen = threading.local()


def _profile_call(frame: FrameType, event: str, arg: Any) -> None:
    """Profile a call in a new thread, and call the program's profile function if there is one."""
    profile, ident = _program_has[0], threading.get_ident()
    count = _calls_seen.count = getattr(_calls_seen, "count", 0) + 1
    blind = [source for source in _sources if ident not in source.recorder.threads.by_ident]
    gap = None
    if event == "c_call" and _is_torch(arg):
        gap = ops_not_recorded(threading.current_thread().name)
    elif count > _MOST_CALLS and _is_program_s(threading.current_thread()):
        gap = _not_watched(
            threading.current_thread().name, f"it used no torch in its first {_MOST_CALLS:,} calls"
        )
    if gap is not None:
        for source in blind:
            source.on_gap(gap)
    if gap is not None or not blind or count > _MOST_CALLS:
        sys.setprofile(profile)
    if profile is not None:
        profile(frame, event, arg)


def ops_not_recorded(thread: str) -> Gap:
    """Return the gap of ops of a thread that are not recorded."""
    return Gap(
        "ops outside module calls",
        f"thread {thread}",
        "ops are recorded on the thread that opened the trace; elsewhere only inside module calls",
        "open a clew.trace inside that thread",
    )


def _not_watched(thread: str, why: str) -> Gap:
    """Return the gap of a thread of which it is unknown whether it ran ops."""
    return Gap(
        "a thread that was not watched",
        f"thread {thread}",
        f"{why}; if it ran ops outside module calls, they are not recorded",
        "open a clew.trace inside that thread, should it use torch",
    )


def _is_torch(function: Any) -> bool:
    """Return whether a built-in makes tensors: `torch.cat`, a tensor method, `F.linear`."""
    if isinstance(getattr(function, "__self__", None), Tensor):
        return True
    module = str(getattr(function, "__module__", ""))
    return (module == "torch" and function.__self__ is None) or module.startswith(BUILTIN_MODULES)


def _is_program_s(thread: threading.Thread) -> bool:
    """Return whether a thread may run ops of the program, judged by the function it began with.

    Threads that Python did not start, such as those of the autograd engine, are `_DummyThread`s;
    the ops of a backward pass are recorded there too.
    """
    if isinstance(thread, threading._DummyThread):
        return False
    began = getattr(thread, "_target", None) or type(thread).run
    module = str(getattr(began, "__module__", ""))
    package = module.partition(".")[0]
    if package in _MACHINERY:
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return package in sys.stdlib_module_names or not is_library(file) or _uses_torch(package)


def _uses_torch(package: str) -> bool:
    """Return whether a module of a package has a name from torch; a progress bar has none."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package]
    names = (
        getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", "")
        for module in modules
        for value in list(getattr(module, "__dict__", {}).values())
    )
    return any(str(name).partition(".")[0] == "torch" for name in names)


def _cpu_time(thread: threading.Thread) -> int | None:
    """Return the CPU time of a thread in nanoseconds; None if it ended or the system has none."""
    if sys.platform != "linux" or thread.native_id is None:
        return None
    try:
        # The id of the clock that Linux keeps for each thread, computed from the thread's id.
        return time.clock_gettime_ns((~thread.native_id << 3) | 6)
    except OSError:
        return None
