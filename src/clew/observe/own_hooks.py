"""End the record of a module call only after the forward hooks that the program gave the module.

Input: module calls. Output: a call of Clew's hook after the module's hooks have run or one of
them has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from clew.torch_compat import forward_hooks


class OwnHooks:
    """Follows calls of modules that have forward hooks, which may change the result.

    Torch runs those after the global ones. So that a call ends with the result its caller gets,
    Clew's hook is registered behind them too, for as long as the call runs. A module without hooks
    gets none: it would lose its fused paths.
    """

    def __init__(self) -> None:
        # id of the frame of a call -> the handle of Clew's hook behind the module's hooks
        self.waiting: dict[int, Any] = {}
        # Frames of calls whose forward has returned.
        self._returned: set[int] = set()
        # Hooks of calls that failed, over which torch may be iterating, and the frame that does.
        self.failed: list[Any] = []
        self._failed_in = 0

    def begin(self, module: nn.Module, frame: int, hook: Callable[..., None]) -> None:
        """Have `hook` called behind the module's hooks, also when one of them raises."""
        if self.failed:
            self.clear()
        if frame in self.waiting:  # the hook of a call that an interrupt ended
            self.forget(frame)
        if forward_hooks(module):
            self.waiting[frame] = nn.Module.register_forward_hook(module, hook, always_call=True)

    def is_last(self, frame: int) -> bool:
        """Return whether the hook that runs is the last one of its call."""
        if frame not in self.waiting:
            return True
        if frame not in self._returned:
            self._returned.add(frame)
            return False
        self.forget(frame)
        return True

    def is_told(self, frame: int) -> bool:
        """Return whether the failure that torch handles in a frame was recorded before."""
        return frame == self._failed_in

    def fail(self, frame: int, handled_in: int) -> None:
        """Handle the failure of a call, in its forward or in a hook of its module."""
        if frame in self._returned:
            # Torch is iterating over the hooks of the module.
            self._returned.discard(frame)
            self.failed.append(self.waiting.pop(frame))
            self._failed_in = handled_in
        else:
            self.forget(frame)

    def forget(self, frame: int) -> None:
        """Remove the hook of a call."""
        self._returned.discard(frame)
        handle = self.waiting.pop(frame, None)
        if handle is not None:
            handle.remove()

    def clear(self) -> None:
        """Remove the hooks of calls that have failed."""
        self._failed_in = 0
        while self.failed:
            self.failed.pop().remove()

    def remove_all(self) -> None:
        """Remove all hooks, also those of calls whose end was never seen."""
        if self.failed:
            self.clear()
        for frame in list(self.waiting):
            self.forget(frame)
