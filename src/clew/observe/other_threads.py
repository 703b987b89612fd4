"""Threads that may run ops where none are recorded: outside module calls, away from the trace.

In come the program's other threads, out go gaps: a new thread is looked at until it uses torch,
an older one counts as soon as it runs at all, since nothing tells what it does.
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

# What a new thread does is looked at for so many calls and returns; then it goes its way.
_LOOKS = 5000

# Threads of these packages do their own work, not the program's.
_MACHINERY = ("clew", "multiprocessing", "torch")


class ThreadSource:
    """Looks at the threads there are while a recording runs."""

    def __init__(self, recorder: Recorder, on_gap: Callable[[Gap], Any]) -> None:
        self.recorder = recorder
        self.on_gap = on_gap
        self._older: list[tuple[threading.Thread, int | None]] = []

    def start(self) -> None:
        """Look at every thread that begins from here on, and at what the others use of the CPU."""
        here = threading.current_thread()
        self._older = [
            (thread, _cpu_time(thread)) for thread in threading.enumerate() if thread is not here
        ]
        if not _looking:
            _program_has[:] = [threading.getprofile()]
            threading.setprofile(_look)
        _looking.append(self)

    def stop(self) -> None:
        """Leave new threads alone, and those that are looked at with their next call."""
        if self in _looking:
            _looking.remove(self)
        if not _looking and threading.getprofile() is _look:
            threading.setprofile(_program_has[0])
        for thread, before in self._older:
            now = _cpu_time(thread)
            # A thread that is gone ran to its end; where no clock tells, it may have run.
            ran = now is None or before is None or now > before
            if ran and thread.ident not in self.recorder.lanes.by_ident and _is_program_s(thread):
                self.on_gap(_not_watched(thread.name, "it is older than the trace, and ran"))
        self._older = []


# Recordings may overlap in any order: one profile function is there for all of them.
_looking: list[ThreadSource] = []
_program_has: list[Any] = [None]
_looks = threading.local()


def _look(frame: FrameType, event: str, arg: Any) -> None:
    """Hear of a call in a new thread, as a profile function of the program's own would."""
    profile, ident = _program_has[0], threading.get_ident()
    looks = _looks.count = getattr(_looks, "count", 0) + 1
    blind = [source for source in _looking if ident not in source.recorder.lanes.by_ident]
    gap = None
    if event == "c_call" and _is_torch(arg):
        gap = ops_not_recorded(threading.current_thread().name)
    elif looks > _LOOKS and _is_program_s(threading.current_thread()):
        gap = _not_watched(
            threading.current_thread().name, f"it used no torch in its first {_LOOKS:,} calls"
        )
    if gap is not None:
        for source in blind:
            source.on_gap(gap)
    if gap is not None or not blind or looks > _LOOKS:
        sys.setprofile(profile)
    if profile is not None:
        profile(frame, event, arg)


def ops_not_recorded(thread: str) -> Gap:
    """Ops of a thread that are not recorded."""
    return Gap(
        "ops outside module calls",
        f"thread {thread}",
        "ops are recorded on the thread that opened the trace; elsewhere only inside module calls",
        "open a clew.trace inside that thread",
    )


def _not_watched(thread: str, why: str) -> Gap:
    """A thread of which nobody knows whether it ran ops."""
    return Gap(
        "a thread that was not watched",
        f"thread {thread}",
        f"{why}; if it ran ops outside module calls, they are not recorded",
        "open a clew.trace inside that thread, should it use torch",
    )


def _is_torch(function: Any) -> bool:
    """Whether a built-in function makes tensors: `torch.cat`, a method of one, `F.linear`."""
    if isinstance(getattr(function, "__self__", None), Tensor):
        return True
    module = str(getattr(function, "__module__", ""))
    return (module == "torch" and function.__self__ is None) or module.startswith("torch._C._")


def _is_program_s(thread: threading.Thread) -> bool:
    """Whether a thread may run the program's own ops, as far as can be told from where it began.

    Threads that Python did not start, among them those of the autograd engine, are named by a
    stand-in; the ops of a backward pass are recorded there too.
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
    """Whether a module of a package has something of torch's in it; a progress bar has not."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package]
    names = (
        getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", "")
        for module in modules
        for value in list(getattr(module, "__dict__", {}).values())
    )
    return any(str(name).partition(".")[0] == "torch" for name in names)


def _cpu_time(thread: threading.Thread) -> int | None:
    """Nanoseconds of CPU a thread has used, where the system tells; None for one that ended."""
    if sys.platform != "linux" or thread.native_id is None:
        return None
    try:
        # The number of the clock that Linux keeps for each thread, made of the thread's own.
        return time.clock_gettime_ns((~thread.native_id << 3) | 6)
    except OSError:
        return None
