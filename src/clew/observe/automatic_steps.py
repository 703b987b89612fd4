"""Find where steps begin in a program that does not mark them.

Input: `optimizer.step()` calls and outermost module calls. Output: a call of `begin`. A step
ends after an `optimizer.step()`, when the next outermost forward begins: several optimizers
between two forwards are one step, and so are the passes of one gradient accumulation. A model that
has run in a step and runs again in the other mode, train or eval, begins a step too.

While a step is recorded, `observe.modules` reports module calls. In a step that is left out, this
module installs a hook itself, and only where the step may end: until the first forward, after an
optimizer, and during an evaluation.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer

from clew.torch_compat import (
    OPTIMIZER_POST_HOOKS,
    WRAPPED_CALL,
    add_hook,
    current_autograd_node,
    is_jit_tracing,
)

_is_compiling = torch.compiler.is_dynamo_compiling

# Records that a module call begins; the frame is the one that runs its hooks.
Enter = Callable[[nn.Module, tuple[Any, ...], FrameType], None]


class AutomaticSteps:
    """Finds where steps begin, until the program marks them itself.

    `model` returns the model whose mode counts, or None if that of each outermost module does.
    `begin` is called when a step begins; it gets whether the records so far may be handed over, and
    it may call `skip`.
    """

    def __init__(
        self,
        begin: Callable[[bool], Any],
        model: Callable[[], nn.Module | None],
        on_fault: Callable[[BaseException, str], None],
    ) -> None:
        self._begin = begin
        self._model = model
        self._on_fault = on_fault
        # How many steps were found when the program first marked one itself; None if it has not.
        self._ended_after: int | None = None
        self._count = 0
        # Whether an optimizer has made a step since the last outermost forward.
        self._is_over = False
        # Only forwards on these begin steps: where the trace was started, where optimizers run.
        self._threads = {get_ident()}
        # id of a module that ran in this step -> (weak reference to it, whether it was training)
        self._ran: dict[int, tuple[Callable[[], Any], bool]] = {}
        self._is_skipping = False
        self._is_exporting = False
        # Between `start` and `stop`: the number of the hook of optimizers, and `enter`.
        self._started: tuple[int, Enter] | None = None
        self._forwards: Any = None

    def start(self, enter: Enter) -> None:
        """Install the optimizer hook.

        `enter` records the module call that ends a step left out: the hooks of `observe.modules`
        are installed too late for it.
        """
        if self._ended_after is None:
            self._threads = {get_ident()}
            self._started = add_hook(OPTIMIZER_POST_HOOKS, self._stepped), enter

    def stop(self) -> None:
        """Remove all hooks."""
        self._is_skipping = False
        self._unwatch()
        if self._started is not None:
            OPTIMIZER_POST_HOOKS.pop(self._started[0], None)
            self._started = None

    def end(self) -> None:
        """Find no more steps: the program marks them itself. Those found so far stay."""
        if self._ended_after is None:
            self._ended_after = self._count
            self.stop()

    @property
    def rule(self) -> str:
        """Return what begins a step, in words."""
        if self._ended_after is None:
            return "automatic"
        return f"automatic to {self._ended_after}, then step()" if self._ended_after else "step()"

    def skip(self, skips: bool) -> None:
        """Set whether steps are left out from here on: module calls are then hooked here."""
        self._is_skipping = skips and self._started is not None
        if self._is_skipping:
            self._watch()
        else:
            self._unwatch()

    def exporting(self, exports: bool) -> None:
        """Find no steps while a program is exported."""
        self._is_exporting = exports

    def forward(self, module: nn.Module, hand_over: bool = True) -> None:
        """Begin a step if the last one is over; call it when an outermost module call begins."""
        if self._started is None or get_ident() not in self._threads:
            return
        if current_autograd_node() is not None:
            return  # a checkpoint recomputes what it has not saved
        model = self._model()
        model = module if model is None else model
        if self._is_over or self._has_changed_mode(model):
            self._is_over = False
            self._ran.clear()
            self._count += 1
            self._begin(hand_over)
        self._ran[id(model)] = weakref.ref(model), model.training
        if self._is_skipping and model.training and next(model.parameters(), None) is not None:
            self._unwatch()  # until an optimizer makes a step

    def _has_changed_mode(self, model: nn.Module) -> bool:
        ran = self._ran.get(id(model))
        return ran is not None and ran[0]() is model and ran[1] is not model.training

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._is_over = True
        if _is_compiling():
            return  # the rest would be compiled
        self._threads.add(get_ident())
        if self._is_skipping:
            self._watch()

    def _watch(self) -> None:
        if self._forwards is None:
            self._forwards = register_module_forward_pre_hook(self._called)

    def _unwatch(self) -> None:
        if self._forwards is not None:
            self._forwards.remove()
            self._forwards = None

    def _called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Begin a step, if a module call in a step that is left out does so."""
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return
        try:
            if self._is_exporting or is_jit_tracing() or not self._may_begin(module):
                return
            frame = sys._getframe(1)
            if not _is_outermost(frame):
                return
            self.forward(module)
            if not self._is_skipping and self._started is not None:
                self._started[1](module, args, frame)
        except Exception as fault:
            self._on_fault(fault, "the end of a step")

    def _may_begin(self, module: nn.Module) -> bool:
        """Return whether a call may begin a step: not if its model has run in its present mode."""
        model = self._model()
        model = module if model is None else model
        return self._is_over or id(model) not in self._ran or self._has_changed_mode(model)


def _is_outermost(frame: FrameType) -> bool:
    """Return whether a module call, whose hooks run in a frame, is inside no other."""
    calls = 0
    above: FrameType | None = frame
    while above is not None and calls < 2:
        calls += above.f_code is WRAPPED_CALL
        above = above.f_back
    return calls < 2
