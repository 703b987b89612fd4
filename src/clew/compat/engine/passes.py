"""Count the passes of a model, and report each that is over.

Passes are seen by torch's global hooks, as those of a module switch fused paths off; by the model's
`forward` where it is called past the hooks, and by what it returns where it is compiled into other
code. A call of the model from inside itself is part of the pass that runs; each thread has passes
of its own.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from clew.compat.engine import calls
from clew.observe.compiled import silence_extra_call
from clew.observe.variables.frames import Site, Target, instrument
from clew.observe.variables.frames.functions import methods
from clew.observe.variables.frames.hooks import Silent
from clew.record.module_registry import wrapped_in
from clew.torch_compat import asked_as_dynamo_traces, is_compiling

_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_is_compiling = torch.compiler.is_dynamo_compiling


class Passes:
    """Counts the passes of a model inside its `with` blocks, those in training mode apart.

    `on_end` gets the mode of each that is over, however it ends, after the hooks that were
    there first; calls of the model that it makes itself are no passes. A pass of a wrapper of the
    model, such as DistributedDataParallel or what `torch.compile` makes, is one of the model.
    """

    def __init__(self, model: nn.Module, on_end: Callable[[str], None]) -> None:
        while (inner := wrapped_in(model)) is not None:
            model = inner
        self._model = model
        self._on_end = on_end
        self._installed = ExitStack()
        self._here = _ThreadPasses()
        self._counts = {"train": 0, "eval": 0}
        self._counting = threading.Lock()

    def count(self, mode: str | None = None) -> int:
        """Return how many passes there have been of a mode, or of both; those that run included."""
        return sum(self._counts.values()) if mode is None else self._counts[mode]

    def number(self, mode: str | None = None) -> int:
        """Return the number of this thread's pass, else of the next: from 1, by mode or of both."""
        return self._here.numbers[mode] if self._here.depth else self.count(mode) + 1

    def is_due(self, every: int, mode: str | None = None) -> bool:
        """Return whether the pass of `number` is of a mode, and the last of every so many."""
        return mode in (None, self._mode()) and self.number(mode) % every == 0

    def __enter__(self) -> Passes:
        self._here = _ThreadPasses()
        self._installed.callback(silence_extra_call())
        enter = self._installed.enter_context
        enter(register_module_forward_pre_hook(self._begins))
        enter(register_module_forward_hook(self._ends, always_call=True))
        for found in methods(self._model, ("forward",)):
            # A generator runs after its call; without a source it is not worth the price.
            if not found.function.__code__.co_flags & _RUNS_LATER:
                forward = _Forward(self, self._model if found.gets_owner else None)
                target = Target(found.function, lambda name: False, returns=True)
                enter(forward)
                enter(instrument([target], forward, compiling=is_compiling, only_source=True))
        return self

    def __exit__(self, *error: Any) -> None:
        self._installed.close()

    def begin(self, by: nn.Module | None = None) -> None:
        """Count a call that begins in this thread: it begins a pass, if there is none."""
        here = self._here
        if not here.depth:
            here.by, here.mode = by, self._mode()
            with self._counting:
                self._counts[here.mode] += 1
                here.numbers = {mode: self.count(mode) for mode in (None, *self._counts)}
        here.depth += 1

    def end(self) -> None:
        """End a call, and the pass if that was its first; ignore a call that began earlier."""
        here = self._here
        if here.depth != 1:
            here.depth = max(0, here.depth - 1)
            return
        try:
            self._on_end(here.mode)
        finally:
            here.depth, here.by = 0, None

    def is_running(self) -> bool:
        """Return whether this thread is in a pass."""
        return self._here.depth > 0

    def _mode(self) -> str:
        if self._here.depth:
            return self._here.mode
        return "train" if self._model.training else "eval"

    def _begins(self, module: nn.Module, args: Any) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return
        if module is self._model or (not self._here.depth and self._is_wrapper(module)):
            self.begin(module)

    def _ends(self, module: nn.Module, args: Any, result: Any) -> None:
        if _is_compiling():
            return
        if module is self._model or (self._here.depth and module is self._here.by):
            self.end()

    def _is_wrapper(self, module: nn.Module) -> bool:
        inner = wrapped_in(module)
        return inner is not None and (inner is self._model or self._is_wrapper(inner))


class _Forward(Silent):
    """Sees calls of the model's `forward`; all its calls if it is no method of the model."""

    def __init__(self, passes: Passes, model: nn.Module | None) -> None:
        self._passes = passes
        self._model = model
        self._number = next(calls.numbers)
        self._is_inside = asked_as_dynamo_traces(lambda: passes.is_running())

    def __enter__(self) -> None:
        calls.listeners[self._number] = self._returned

    def __exit__(self, *error: Any) -> None:
        del calls.listeners[self._number]

    def entered(self, site: Site, owner: object) -> None:
        if self._is_meant(owner):
            self._passes.begin()

    def left(self, site: Site, owner: object) -> None:
        if self._is_meant(owner):
            self._passes.end()

    def returned(self, site: Site, value: object, owner: object) -> None:
        # Not inside a call that the hooks see: one operator less in the compiled code.
        if _is_compiling() and not self._is_inside() and self._is_meant(owner):
            calls.tell_compiled([value], self._number, "")

    def _is_meant(self, owner: object) -> bool:
        return self._model is None or owner is self._model

    def _returned(self, path: str) -> None:
        if not self._passes.is_running():
            self._passes.begin()
            self._passes.end()


class _ThreadPasses(threading.local):
    """How many calls of the model are open in a thread, and which pass they belong to."""

    def __init__(self) -> None:
        self.depth = 0
        # What the first of them is a call of: the model, a wrapper of it, or its `forward`.
        self.by: nn.Module | None = None
        self.mode = "train"
        self.numbers: dict[str | None, int] = {}
