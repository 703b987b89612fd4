"""Record the settings of optimizers: learning rates, betas, the names of their parameters.

Input: live optimizers before each of their steps. Output: `Attributes`: all plain settings at
first, later what has changed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from clew.events.columns import Attributes
from clew.record.attributes import changed, plain
from clew.torch_compat import OPTIMIZER_PRE_HOOKS, add_hook, unobserved

if TYPE_CHECKING:
    from clew.record.recorder import Recorder

_is_compiling = torch.compiler.is_dynamo_compiling


class OptimizerSource:
    """Records the settings of optimizers, for a recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._optimizers: dict[int, tuple[Any, int, list[dict[str, Any]]]] = {}
        self._count = 0
        # The number of the hook.
        self._hook: int | None = None

    def start(self) -> None:
        """Install a hook that reads each optimizer before it makes a step."""
        self._hook = add_hook(OPTIMIZER_PRE_HOOKS, self._before_step)

    def stop(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            OPTIMIZER_PRE_HOOKS.pop(self._hook, None)
            self._hook = None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return
        try:
            self._look_at(optimizer)
        except Exception as fault:
            self._recorder.gaps.fault(fault, "the settings of an optimizer")

    def _look_at(self, optimizer: Optimizer) -> None:
        recorder = self._recorder
        if recorder.halted:
            return
        held = self._optimizers.get(id(optimizer))
        if held is None or held[0]() is not optimizer:
            held = weakref.ref(optimizer), self._count, []
            self._count += 1
            if not recorder.modules.models:
                # The native engine asks for names when records are handed over; the program may
                # have dropped the model, which it has made itself, before that happens at the end.
                recorder.drain()
        _, number, before = held
        now = [plain(group) for group in optimizer.param_groups]
        for at, group in enumerate(now):
            known = before[at] if at < len(before) else None
            new = group if known is None else changed(known, group)
            if known is None:
                parameters = optimizer.param_groups[at]["params"]
                with unobserved():
                    frozen = [one for one in parameters if not one.requires_grad]
                new = {
                    "class": type(optimizer).__name__,
                    **new,
                    "params": self._names(parameters),
                    "frozen": self._names(frozen),
                }
            if new:
                recorder.buffer.attributes.append(
                    Attributes("optimizer", number, at, recorder.buffer.next_id(), new)
                )
        self._optimizers[id(optimizer)] = (held[0], number, now)

    def _names(self, parameters: list[Any]) -> list[str]:
        """Return the paths of a group's parameters, `?` for one that has none."""
        name_of = self._recorder.modules.tensor_name
        return [name_of(parameter) or "?" for parameter in parameters]
