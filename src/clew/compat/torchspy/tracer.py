"""torchspy's `CallTracer`: the order in which modules finish, as the engine tells of it.

The engine's hook is the process's, so a fused fast path stays on. Calls that fail are listed too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from clew.capture.calls import listen
from clew.compat.torchspy.base import UNKNOWN, BaseDebugger


class CallTracer(BaseDebugger):
    """Records the paths of modules as their calls end."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        super().__init__(output_dir, enabled)
        self.call_trace: list[str] = []
        self.hooks: list[Callable[[], None]] = []

    def register_hooks(self, model: nn.Module, *which: Any, **named: Any) -> None:
        """Record calls of some modules of a model from here on; which, `_register` says."""
        self._register(model, *which, **named)
        if self.hooks:
            return
        this = weakref.ref(self)

        def ended(module: nn.Module | str) -> None:
            tracer = this()
            if tracer is None or not tracer.enabled:
                return
            # Compiled code knows the path itself.
            path = module if isinstance(module, str) else tracer.get_module_path(module)
            if path != UNKNOWN:
                tracer.call_trace.append(path)

        self.hooks.append(listen(self.module_paths, ended))
        # A tracer that nobody has any more listens no more.
        weakref.finalize(self, self.hooks[0])

    def save_trace(self, filename: str = "call_trace.txt") -> Path:
        """Write one path per line."""
        path = self.output_dir / filename
        path.write_text("\n".join(self.call_trace), encoding="utf-8")
        return path

    def get_trace(self) -> list[str]:
        """The paths so far."""
        return list(self.call_trace)

    def reset_trace(self) -> None:
        """Forget the paths so far."""
        self.call_trace.clear()

    def remove_hooks(self) -> None:
        """Record no more."""
        while self.hooks:
            self.hooks.pop()()

    def __enter__(self) -> CallTracer:
        self.enabled = True
        self.reset_trace()
        return self

    def __exit__(self, *error: Any) -> None:
        self.enabled = False
