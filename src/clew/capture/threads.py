"""Threads that run ops where none are recorded: those that never call a module.

In come the first things a new thread of the program does, out comes a gap if torch is among them.
A thread that is older than the recording, or comes to torch later, is not noticed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor

from clew.capture.recording import Recording
from clew.events.model import Gap

# What a thread does is looked at for so many calls and returns; then it goes its way.
_LOOKS = 5000


class ThreadSource:
    """Looks at threads that are started while a recording runs."""

    def __init__(self, recording: Recording, on_gap: Callable[[Gap], Any]) -> None:
        self.recording = recording
        self.on_gap = on_gap

    def start(self) -> None:
        """Look at every thread that begins from here on."""
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


# Recordings may overlap in any order: one profile function is there for all of them.
_looking: list[ThreadSource] = []
_program_has: list[Any] = [None]
_looks = threading.local()


def _look(frame: FrameType, event: str, arg: Any) -> None:
    """Hear of a call in a new thread, as a profile function of the program's own would."""
    profile, ident = _program_has[0], threading.get_ident()
    looks = _looks.count = getattr(_looks, "count", 0) + 1
    blind = [source for source in _looking if ident not in source.recording.lanes]
    is_torch = event == "c_call" and _is_torch(arg)
    if is_torch:
        for source in blind:
            source.on_gap(ops_not_recorded(threading.current_thread().name))
    if is_torch or not blind or looks > _LOOKS:
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


def _is_torch(function: Any) -> bool:
    """Whether a built-in function makes tensors: `torch.cat`, a method of one, `F.linear`."""
    if isinstance(getattr(function, "__self__", None), Tensor):
        return True
    module = str(getattr(function, "__module__", ""))
    return (module == "torch" and function.__self__ is None) or module.startswith("torch._C._")
