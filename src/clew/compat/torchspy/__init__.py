"""torchspy on Clew: tensors saved from inside a model, and the order of module calls.

`spy_save` is a tap that the innermost `DebugContext` receives. Module calls are reported by the
engine's one hook for all modules, so a fused fast path stays on. Nothing is raised in the user's
forward.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from clew.compat.engine import calls
from clew.compat.engine.tensor_files import RankFolder, TensorFiles, sample_norms
from clew.observe import taps

__all__ = [
    "BaseDebugger", "CallTracer", "DebugContext", "TensorSaver", "get_debug_context", "spy_save",
]  # fmt: skip

logger = logging.getLogger("torchspy.saver")


class BaseDebugger:
    """A folder for output, a switch, and the paths of the modules that were registered."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        self.output_dir, self.enabled = output_dir, enabled
        self._modules = calls.KnownModules(root="root")
        self.module_paths = self._modules.paths

    @property
    def output_dir(self) -> Path:
        """Return the folder, or the one in it for this rank once there are several."""
        return self._folder.path()

    @output_dir.setter
    def output_dir(self, folder: str | Path) -> None:
        self._folder = RankFolder(folder)

    def register_modules(
        self, model: nn.Module, target_classes: Any = (nn.Module,),
        target_names: Iterable[str] | None = None, exclude_names: Iterable[str] | None = None,
    ) -> list[tuple[str, nn.Module]]:  # fmt: skip
        """Register modules of some classes with a name in their path, and none that is excluded."""
        found = self._modules.add(
            model, self._should_register_module, target_classes, target_names, exclude_names
        )
        for path, module in found:
            logger.info("Registered %s (%s)", path, type(module).__name__)
        return found

    _should_register_module = staticmethod(calls.is_wanted)  # what a subclass may decide

    def get_module_path(self, module: nn.Module) -> str:
        """Return the path a registered module is called by, `"unknown"` for any other."""
        return self._modules.path_of(module) or "unknown"


class CallTracer(BaseDebugger):
    """Records the paths of modules as their calls end, also of those that fail."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        super().__init__(output_dir, enabled)
        self.call_trace: list[str] = []
        self.hooks = calls.CallHooks(root="root")

    def register_hooks(self, model: nn.Module, *which: Any, **named: Any) -> None:
        """Record calls of some modules of a model from here on; which, `register_modules` says."""
        self.hooks.hear(model, self.register_modules(model, *which, **named), self._ended)

    def remove_hooks(self) -> None:
        """Record no more."""
        self.hooks.end()

    def _ended(self, path: str) -> None:
        if self.enabled:
            self.call_trace.append(path)

    def get_trace(self) -> list[str]:
        """Return the paths so far."""
        return list(self.call_trace)

    def reset_trace(self) -> None:
        """Forget the paths so far."""
        self.call_trace.clear()

    def save_trace(self, filename: str = "call_trace.txt") -> Path:
        """Write one path per line."""
        path = self.output_dir / filename
        path.write_text("\n".join(self.call_trace), encoding="utf-8")
        return path

    def __enter__(self) -> CallTracer:
        self.enabled = True
        self.reset_trace()
        return self

    def __exit__(self, *error: Any) -> None:
        self.enabled = False


class TensorSaver(BaseDebugger):
    """Saves tensors as `{name}.call{n}.pt`, in a folder for its rank if there are several."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        super().__init__(output_dir, enabled)
        self._files = TensorFiles(logger)
        self.call_counts = self._files.counts

    def save(
        self, name: str, tensor: Any, call_idx: int | None = None, norm_only: bool = False
    ) -> None:
        """Save a tensor, or what holds tensors; `norm_only` saves one norm per sample."""
        if self.enabled:
            to = self.output_dir
            self._files.save(to, name, tensor, call_idx, sample_norms if norm_only else None)

    def reset_counts(self) -> None:
        """Count from 0 again; later saves replace earlier files of the same name."""
        self.call_counts.clear()


class DebugContext(taps.TapListener):
    """Where `spy_save` saves to; contexts nest, and the innermost one counts."""

    def __init__(
        self, saver: Any, prefix: str = "", module_path_override: str | None = None
    ) -> None:
        self.saver = self.debugger = saver
        self.prefix, self.module_path_override = prefix, module_path_override

    def __enter__(self) -> DebugContext:
        taps.listen(self, is_compiling, self.paths())
        return self

    def __exit__(self, *error: Any) -> None:
        taps.unlisten(self)

    def tapped(self, name: str, value: Any, module: Any, reduce: Any, frame: Any) -> None:
        """Save a value that was tapped, if this is the context it belongs to."""
        if get_debug_context() is self:
            self._save(name, value, module)

    def _save(self, name: str, tensor: Any, module: Any = None) -> None:
        path = self.module_path_override
        if path is None and isinstance(module, str):
            path = module or "unknown"  # of a module in compiled code
        elif path is None:
            path = "manual" if module is None else self.saver.get_module_path(module)
        if path == "unknown":
            logger.warning(
                "Module path unknown for %s: register_modules() did not meet it, or it is a copy "
                "of one it met. Skipping save of %r", type(module).__name__, name,
            )  # fmt: skip
        else:
            self.saver.save(".".join(filter(None, (self.prefix, path, name))), tensor)

    def paths(self) -> dict[int, str]:
        """Return the paths of the modules that were registered, by their ids."""
        found: dict[int, str] = getattr(self.saver, "module_paths", {})
        return found

    def missed(self, name: str) -> None:
        """Warn of a tap in compiled code that was given something that is no tensor."""
        logger.warning("%r is no tensor; inside compiled code only tensors can be saved", name)


def get_debug_context() -> DebugContext | None:
    """Return the innermost context of this thread or task; without one, the innermost of all."""
    return taps.innermost(DebugContext)  # type: ignore[type-abstract]


def spy_save(name: str, tensor: Any, module: nn.Module | None = None) -> None:
    """Save a tensor if a `DebugContext` is open; nothing happens otherwise."""
    taps.tap(name, tensor, module)
