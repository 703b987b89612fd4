"""torchspy's `CallTracer`: the order in which modules finish, as the engine tells of it.

The engine's hook is the process's, so a fused fast path stays on. Calls that fail are listed too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from clew.capture.calls import KnownModules, listen

logger = logging.getLogger("torchspy.saver")


class BaseDebugger:
    """A folder for output, a switch, and the paths of the modules that were registered."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        self.output_dir = Path(output_dir)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.enabled = enabled
        self._modules = KnownModules(root="root")
        self.module_paths = self._modules.paths

    def get_module_path(self, module: nn.Module) -> str:
        """The path a registered module is called by, `"unknown"` for any other."""
        return self._modules.path_of(module) or "unknown"

    def _register(
        self, model: nn.Module, target_classes: Iterable[type[nn.Module]] = (nn.Module,),
        target_names: Iterable[str] | None = None, exclude_names: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        """Look at modules of some classes with a name in their path, and none that is excluded."""
        found = self._modules.add(model, target_classes, target_names, exclude_names)
        for path, module in found:
            logger.info("Registered %s (%s)", path, type(module).__name__)


class CallTracer(BaseDebugger):
    """Records the paths of modules as their calls end."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        super().__init__(output_dir, enabled)
        self.call_trace: list[str] = []
        self.hooks: list[Callable[[], None]] = []

    def register_hooks(self, model: nn.Module, *which: Any, **named: Any) -> None:
        """Record calls of some modules of a model from here on; which, `register_modules` says."""
        self._register(model, *which, **named)
        if not self.hooks:
            self.hooks.append(listen(self._modules, self._ended))

    def _ended(self, path: str) -> None:
        if self.enabled:
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
            self.hooks.pop()()

    def __enter__(self) -> CallTracer:
        self.enabled = True
        self.reset_trace()
        return self

    def __exit__(self, *error: Any) -> None:
        self.enabled = False
