"""The passes of a model: how many there have been, and word of each that is over.

By torch's global hooks, as those of a module switch fused paths off. A call of the model from
inside itself is part of the pass that runs; each thread has passes of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_is_compiling = torch.compiler.is_dynamo_compiling


class Passes:
    """Counts the passes of a model inside its `with` blocks, those in training mode apart.

    `on_end` is told the mode of each that is over, however it ends, after the hooks that were
    there first; calls of the model that it makes itself are no passes.
    """

    def __init__(self, model: nn.Module, on_end: Callable[[str], None]) -> None:
        self._model = model
        self._on_end = on_end
        self._hooks = ExitStack()
        self._here = _Here()
        self._counts = {"train": 0, "eval": 0}

    def count(self, mode: str | None = None) -> int:
        """How many passes there have been of a mode, or of both; those that run included."""
        return sum(self._counts.values()) if mode is None else self._counts[mode]

    def number(self, mode: str | None = None) -> int:
        """Which pass of a mode, or of both, this thread is in, 1 for the first; else the next."""
        return self._here.numbers[mode] if self._here.depth else self.count(mode) + 1

    def __enter__(self) -> Passes:
        self._here = _Here()
        self._hooks.enter_context(register_module_forward_pre_hook(self._begins))
        self._hooks.enter_context(register_module_forward_hook(self._ends, always_call=True))
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()

    def _begins(self, module: nn.Module, args: Any) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling() or module is not self._model:
            return
        if not self._here.depth:
            self._here.mode = "train" if module.training else "eval"
            self._counts[self._here.mode] += 1
            self._here.numbers = {mode: self.count(mode) for mode in (None, *self._counts)}
        self._here.depth += 1

    def _ends(self, module: nn.Module, args: Any, result: Any) -> None:
        if _is_compiling() or module is not self._model:
            return
        try:
            if self._here.depth == 1:
                self._on_end(self._here.mode)
        finally:
            self._here.depth -= 1


class _Here(threading.local):
    """How many calls of the model are open in a thread, and which passes they belong to."""

    def __init__(self) -> None:
        self.depth = 0
        self.mode = "train"
        self.numbers: dict[str | None, int] = {}
