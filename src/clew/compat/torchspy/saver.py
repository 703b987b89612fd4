"""torchspy's `spy_save`: tensors from inside a model as `.pt` files, on Clew's taps.

A tap reaches the saver of the innermost open `DebugContext`, on any thread. Whatever cannot be
saved is logged; nothing is raised in the user's forward.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clew.callbacks import norm
from clew.capture.taps import TapListener, listen, tap
from clew.compat.torchspy.tracer import BaseDebugger, logger
from clew.session.surroundings import rank_and_size
from clew.store.as_torch import own_parts
from clew.store.save import numbered
from clew.views.export.hdf5 import file_name


class TensorSaver(BaseDebugger):
    """Saves tensors as `{name}.call{n}.pt`, counting the calls of each name.

    A folder that has such files already is left as it is: the saver takes one of its own beside
    it. Each process of a distributed run saves into a folder of its rank.
    """

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        rank, size = rank_and_size()
        wanted = Path(output_dir, f"rank{rank}") if size > 1 else Path(output_dir)
        free = next(f for f in numbered(wanted) if not any(f.glob("*.call*.pt")))
        if free != wanted:
            logger.warning("%s has saved tensors already; saving to %s", wanted, free)
        super().__init__(free, enabled)
        self.call_counts: defaultdict[str, int] = defaultdict(int)

    register_modules = BaseDebugger._register

    def save(
        self, name: str, tensor: Any, call_idx: int | None = None, norm_only: bool = False
    ) -> None:
        """Save a tensor, or what holds tensors; `norm_only` saves one norm per sample."""
        if not self.enabled:
            return
        name = file_name(name)
        index = self.call_counts[name] if call_idx is None else call_idx
        self.call_counts[name] += call_idx is None
        file = f"{name}.call{index}.pt"
        try:
            torch.save(own_parts(tensor, _norms if norm_only else None), self.output_dir / file)
        except Exception as error:
            logger.warning("Could not save %s: %s: %s", file, type(error).__name__, error)

    def reset_counts(self) -> None:
        """Count from 0 again; later saves replace earlier files of the same name."""
        self.call_counts.clear()


def _norms(tensor: torch.Tensor) -> Any:
    """One norm per sample, the first axis being the samples; of a scalar its absolute value."""
    return norm(-1)(tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1))


class DebugContext(TapListener):
    """Where `spy_save` saves to; contexts nest, and the innermost one counts."""

    def __init__(
        self, saver: TensorSaver, prefix: str = "", module_path_override: str | None = None
    ) -> None:
        self.saver = self.debugger = saver
        self.prefix = prefix
        self.module_path_override = module_path_override
        self._end: Any = None

    def __enter__(self) -> DebugContext:
        _contexts.append(self)
        self._end = listen(self, torch.compiler.is_compiling, self.saver.module_paths)
        return self

    def __exit__(self, *error: Any) -> None:
        self._end()
        _contexts.remove(self)

    def tapped(self, name: str, value: Any, module: Any, reduce: Any, frame: Any) -> None:
        """Save a value that was tapped, if this is the context it belongs to."""
        if _contexts[-1] is not self:
            return
        path = self.module_path_override
        if path is None:
            path = "manual" if module is None else self.saver.get_module_path(module)
        if path == "unknown":
            logger.warning(
                "Module path unknown for %s: register_modules() did not meet it, or it is a copy "
                "of one it met. Skipping save of %r", type(module).__name__, name,
            )  # fmt: skip
        else:
            self.saver.save(".".join(part for part in (self.prefix, path, name) if part), value)

    def missed(self, name: str) -> None:
        """A tap in compiled code was given something that is no tensor."""
        logger.warning("%r is no tensor; inside compiled code only tensors can be saved", name)


_contexts: list[DebugContext] = []


def get_debug_context() -> DebugContext | None:
    """The innermost open context, None outside any."""
    return _contexts[-1] if _contexts else None


def spy_save(name: str, tensor: Any, module: nn.Module | None = None) -> None:
    """Save a tensor if a `DebugContext` is open; nothing happens otherwise."""
    tap(name, tensor, module)
