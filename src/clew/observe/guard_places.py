"""Call functions at the places of a program where an exception may leave: those of `clew.guard`.

Input: module calls, `backward`, `optimizer.step`. Output: calls of the functions given, on the
thread of the program, which may raise. Callbacks of the native engine and autograd's threads may
not; what happens there is looked at by the next of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from clew.keep.nesting import tensors_in
from clew.machinery import MACHINERY
from clew.torch_compat import forward_hooks, on_backward, unobserved, without_modes

_is_compiling = torch.compiler.is_dynamo_compiling


def all_finite(tensors: list[Tensor]) -> bool:
    """Return whether all elements of some tensors are finite; wait for an accelerator once."""
    with unobserved(), torch.no_grad(), without_modes():
        first = tensors[0].device
        flags = [torch.isfinite(tensor).all().to(first) for tensor in tensors]
        return bool(torch.stack(flags).all())


class GuardPlaces:
    """Installs what calls the functions, and removes it.

    `on_output` gets a module and the tensors that it returned, `on_backward` the tensors that
    `backward` is called on, `after_backward` nothing, `before_step` the gradients that an optimizer
    is about to use, with their parameters.
    """

    def __init__(
        self,
        on_output: Callable[[nn.Module, Iterable[Tensor]], None],
        on_backward: Callable[[list[Tensor]], None],
        after_backward: Callable[[], None],
        before_step: Callable[[list[Tensor]], None],
    ) -> None:
        self._on_output = on_output
        self._on_backward = on_backward
        self._after_backward = after_backward
        self._before_step = before_step
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Install everything; after the hooks of a recording, so that it has the results."""
        self._undo = [
            register_module_forward_hook(self._called).remove,
            register_optimizer_step_pre_hook(self._stepping).remove,
            on_backward(self._backward_begins, self._after_backward),
        ]

    def stop(self) -> None:
        """Remove everything."""
        while self._undo:
            self._undo.pop()()

    def _called(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return
        # Hooks of its own run after this one and may change the result.
        if forward_hooks(module):
            return
        if type(result) is Tensor:
            self._on_output(module, (result,))
        else:
            self._on_output(module, [tensor for _, tensor in tensors_in(result)])

    def _backward_begins(self, tensors: Any) -> None:
        found = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._on_backward([one for one in found if isinstance(one, Tensor)])

    def _stepping(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._before_step([p.grad for p in parameters if p.grad is not None])


MACHINERY.hide(
    GuardPlaces._called.__code__,
    GuardPlaces._backward_begins.__code__,
    GuardPlaces._stepping.__code__,
)
