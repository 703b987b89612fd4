"""Hear of a module's call after the forward hooks that the program gave the module.

In come modules that are called, out goes a call of our hook once theirs have run or one has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class OwnHooks:
    """Calls of modules that have forward hooks of their own, which may change the result.

    Torch runs those after the global ones. So that a call ends with what its caller gets, our hook
    is put behind them too, for as long as the call runs. A module without any gets none: it would
    lose its fused paths.
    """

    def __init__(self) -> None:
        # id of the frame of a call -> our hook behind the module's own
        self.waiting: dict[int, Any] = {}
        # Frames of calls whose forward has returned.
        self._returned: set[int] = set()
        # Hooks of calls that have failed, which torch may be iterating over, and where it is.
        self.failed: list[Any] = []
        self._failed_in = 0

    def wait(self, module: nn.Module, frame: int, hook: Callable[..., None]) -> None:
        """Have `hook` called behind the module's own, also when one of them raises."""
        self.waiting[frame] = nn.Module.register_forward_hook(module, hook, always_call=True)

    def is_last(self, frame: int) -> bool:
        """Whether the hook that runs for a call is the last one."""
        if frame not in self.waiting:
            return True
        if frame not in self._returned:
            self._returned.add(frame)
            return False
        self.forget(frame)
        return True

    def is_told(self, frame: int) -> bool:
        """Whether the failure that torch handles in a frame was met before."""
        return frame == self._failed_in

    def fail(self, frame: int, handled_in: int) -> None:
        """A call has failed, in its forward or in a hook of its module."""
        if frame in self._returned:
            # Torch is going through the hooks of the module.
            self._returned.discard(frame)
            self.failed.append(self.waiting.pop(frame))
            self._failed_in = handled_in
        else:
            self.forget(frame)

    def forget(self, frame: int) -> None:
        """Take the hook of a call away."""
        self._returned.discard(frame)
        handle = self.waiting.pop(frame, None)
        if handle is not None:
            handle.remove()

    def clear(self) -> None:
        """Take away the hooks of calls that have failed."""
        self._failed_in = 0
        while self.failed:
            self.failed.pop().remove()

    def remove_all(self) -> None:
        """Take all hooks away, also those of calls that were never seen to end."""
        self.clear()
        for frame in list(self.waiting):
            self.forget(frame)
