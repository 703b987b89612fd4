"""torchspy's `CallTracer`: the order in which modules finish, from a Clew trace.

The engine's hooks are the process's, so a fused fast path stays on; what was recorded can also be
read as a trace, with enter, exit, time and shapes.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from torch import nn

from clew.compat.torchspy.base import BaseDebugger, Classes
from clew.events.live import Happening
from clew.session import Tracer, trace


class CallTracer(BaseDebugger):
    """Records the paths of modules as their calls end."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        super().__init__(output_dir, enabled)
        self.call_trace: list[str] = []
        self.hooks: list[Tracer] = []

    def register_hooks(
        self,
        model: nn.Module,
        target_classes: Classes = (nn.Module,),
        target_names: list[str] | None = None,
        exclude_names: list[str] | None = None,
    ) -> None:
        """Record calls of some modules of a model from here on."""
        self._register(model, target_classes, target_names, exclude_names)
        if not self.hooks:
            listener = _Listener(weakref.ref(self, lambda _: listener.stop()))
            listener.tracer = trace(model, level="modules", live=listener).start()
            self.hooks.append(listener.tracer)

    def ended(self, module: Any, error: str | None) -> None:
        """A call is over; one that failed was a call as well."""
        path = self.get_module_path(module)
        if self.enabled and path != "unknown":
            self.call_trace.append(path)

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
            self.hooks.pop().stop()

    def __enter__(self) -> CallTracer:
        self.enabled = True
        self.reset_trace()
        return self

    def __exit__(self, *error: Any) -> None:
        self.enabled = False


class _Listener:
    """Hears of calls for as long as the tracer lives."""

    tracer: Tracer | None = None

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def begins(self, event: Happening) -> None:
        """Only what ended counts."""

    def ends(self, event: Happening) -> None:
        """Tell the tracer of a call that is over."""
        owner, module = self._owner(), event.module()
        if owner is not None and module is not None:
            owner.ended(module, event.error)

    def stop(self) -> None:
        """The tracer is gone: take the hooks away."""
        if self.tracer is not None and self.tracer.recording:
            self.tracer.stop()
