"""Record the gradients that optimizers use, and the parameters that they have written.

Input: steps of optimizers, on parameters that have a name. Output: events `fc.weight:grad` before
the step and `fc.weight:param` after it, with what the recording keeps of every value. A gradient is
read once per optimizer step: accumulated, reduced over ranks, unscaled and clipped.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from clew.address import written
from clew.events.model import Gap
from clew.events.vocabulary import GRADIENT, VARIABLE, Label
from clew.record.recorder import Recorder
from clew.torch_compat import unobserved

_is_compiling = torch.compiler.is_dynamo_compiling

_SCALED = Gap(
    "gradients",
    "",
    "a fused optimizer unscales them in its kernel, so that they cannot be read before",
    "call scaler.unscale_(optimizer) before scaler.step(optimizer)",
)


class OptimizerTensors:
    """Records gradients before, and parameters after each optimizer step, for a recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._labels: dict[tuple[str, str], Label] = {}
        # id of a parameter -> (weak reference to it, its token after the last step)
        self._tokens: dict[int, tuple[Any, Any]] = {}

    def start(self) -> None:
        """Install the hooks of all optimizers."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._tokens.clear()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return
        if not _has_closure(args, kwargs):
            self._record(optimizer, sys._getframe(1), gradients=True, parameters=False)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        # A closure has computed the gradients during the step.
        closed = _has_closure(args, kwargs)
        self._record(optimizer, sys._getframe(1), gradients=closed, parameters=True)

    def _record(
        self, optimizer: Optimizer, frame: FrameType, gradients: bool, parameters: bool
    ) -> None:
        recorder = self._recorder
        if recorder.halted or recorder.thread().mute:
            return
        try:
            if gradients and getattr(optimizer, "found_inf", None) is not None:
                recorder.gaps.add(_SCALED)
                gradients = False
            for path, parameter, gradient in self._named(optimizer):
                if gradients:
                    label = self._label(GRADIENT, path, "grad")
                    with recorder.naming:
                        token = recorder.values.tensors.current(gradient)
                        recorder.record_described(label, token, frame)
                if parameters:
                    label = self._label(VARIABLE, path, "param")
                    with recorder.naming:
                        recorder.record_described(label, self._written(parameter), frame)
        except Exception as fault:
            recorder.gaps.fault(fault, "gradients and parameters of an optimizer")

    def _named(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the name, parameter and gradient of each parameter that has both."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = self._recorder.modules.tensor_name(parameter)
                with unobserved():
                    gradient = parameter.grad
                if path is not None and gradient is not None:
                    yield path, parameter, gradient

    def _written(self, parameter: Tensor) -> Any:
        """Return the token of a parameter that was written, perhaps without a new version."""
        tensors, before = self._recorder.values.tensors, self._tokens.get(id(parameter))
        token = tensors.current(parameter)
        if before is not None and before[0]() is parameter and before[1] is token:
            token = tensors.renewed(parameter)
        self._tokens[id(parameter)] = weakref.ref(parameter), token
        return token

    def _label(self, kind: int, path: str, role: str) -> Label:
        label = self._labels.get((path, role))
        if label is None:
            owner, _, name = path.rpartition(".")
            label = self._labels[path, role] = Label(kind, written(path), name, role, owner)
        return label


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether an optimizer's step was given a closure."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
