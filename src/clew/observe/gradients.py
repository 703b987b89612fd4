"""Record gradients, parameters, buffers and optimizer state, by address.

Input: addresses with a role (`fc:grad`, `fc.weight:grad`, `fc.weight:param`, …). Output: events.
Hooks are put on exactly the tensors that are named and removed again; nothing here keeps a
tensor or a graph alive. A value is recorded when it has changed since it was recorded last.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from clew.address import written
from clew.callbacks.apply import Named
from clew.callbacks.isolation import unseen
from clew.events.vocabulary import GRADIENT, VARIABLE, Label
from clew.keep.changes import state_of
from clew.keep.nesting import tensors_in
from clew.machinery import MACHINERY
from clew.record.module_registry import ModuleName
from clew.record.recorder import Recorder
from clew.torch_compat import unobserved

_is_compiling = torch.compiler.is_dynamo_compiling


@dataclass(slots=True)
class _Followed:
    """A parameter or buffer, weakly, with the roles that were asked for by each of its names."""

    tensor: Callable[[], Any]
    names: dict[str, frozenset[str]]

    def has(self, role: str) -> bool:
        """Return whether a role was asked for, by whatever name."""
        return any(role in roles for roles in self.names.values())


class GradSource:
    """Follows the gradients, parameters and buffers that were asked for."""

    def __init__(self, recorder: Recorder, named: Named) -> None:
        self._recorder = recorder
        self._names = named
        self._interest = named.interest
        self._ledger = named.interest.ledger
        # Parameters and buffers that were asked for, by id.
        self._followed: dict[int, _Followed] = {}
        # Those of lazy modules, which are followed once they have a shape: paths and tensors.
        self._shapeless: list[tuple[str, Callable[[], Any]]] = []
        # (path, role) -> its state when it was recorded last
        self._states: dict[tuple[str, str], Any] = {}
        self._before: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def start(self) -> None:
        """Install the hooks."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        modules = self._recorder.modules
        modules.owned.on_name = self._follow
        for path, tensor in modules.tensors():
            self._follow(path, tensor)

    def stop(self) -> None:
        """Record what has changed since, and remove every hook."""
        self.look_around()
        self._recorder.modules.owned.on_name = None
        for handle in self._handles:
            handle.remove()
        self._handles, self._before = [], {}
        self._followed.clear()
        self._shapeless.clear()

    def look_around(self) -> None:
        """Record parameters and buffers that have changed, at the end of a step."""
        self._follow_shaped()
        for followed in list(self._followed.values()):
            tensor = followed.tensor()
            if tensor is not None:
                self._record_own(followed, tensor)

    def left(self, module: nn.Module) -> None:
        """Record buffers that a module call has changed, and follow tensors that were lazy."""
        self._follow_shaped()
        for buffer in module._buffers.values():
            found = self._of_tensor(buffer)
            if buffer is not None and found is not None:
                self._record_own(found, buffer)

    def call_roles(self, name: ModuleName, call: int) -> set[str]:
        """Return which gradients of a module call are followed: `grad`, `grad_in`."""
        wanted = self._interest.of_module(name).gradients
        found = [address for address in wanted if address.call in (None, call)]
        self._ledger.found.update(address.text for address in found)
        return {str(address.role) for address in found}

    def follow_call(self, path: str, role: str, value: Any) -> None:
        """Record the gradients of tensors that go into a module call or come out of it."""
        label = Label(GRADIENT, written(path), path.rpartition(".")[2], role, path)

        def follow(place: str, tensor: Tensor) -> None:
            def arrived(gradient: Tensor) -> None:
                self._named(label, {place: gradient} if place else gradient)

            tensor.register_hook(arrived)

        found = tensors_in(value)
        with unobserved():
            for place, tensor in found:
                if tensor.requires_grad:
                    follow(place, tensor)

    def _follow(self, path: str, tensor: Tensor) -> None:
        """Follow a parameter or buffer that has a name, if it was asked for by that name."""
        followed = self._of_tensor(tensor)
        if followed is not None and path in followed.names:
            return
        found = self._interest.of_tensor(path)
        found = [address for address in found if _has(tensor, str(address.role))]
        self._ledger.found.update(address.text for address in found)
        roles = {str(address.role) for address in found}
        if not roles:
            return
        if is_lazy(tensor):
            self._shapeless.append((path, weakref.ref(tensor)))
            return
        if followed is None:
            followed = self._followed[id(tensor)] = _Followed(weakref.ref(tensor), {})
        is_hooked = followed.has("grad")
        followed.names[path] = frozenset(roles)
        try:
            with unobserved():
                if "grad" in roles and not is_hooked and tensor.requires_grad and tensor.is_leaf:
                    hook = _accumulated(weakref.ref(self))
                    self._handles.append(tensor.register_post_accumulate_grad_hook(hook))
        except Exception as fault:  # a kind of tensor that takes no hooks
            self._recorder.gaps.fault(fault, f"{path}:grad")
        for role in roles & {"param", "buffer"}:
            self.record(path, role, tensor)

    def _of_tensor(self, tensor: Any) -> _Followed | None:
        """Return the names and roles that were asked for of a tensor, None if there are none."""
        found = self._followed.get(id(tensor))
        return found if found is not None and found.tensor() is tensor else None

    def _follow_shaped(self) -> None:
        """Follow the tensors of lazy modules that have got their shapes since."""
        pending, self._shapeless = self._shapeless, []
        for path, reference in pending:
            tensor = reference()
            if tensor is not None:
                self._follow(path, tensor)

    def _record_own(self, followed: _Followed, tensor: Tensor) -> None:
        for role in ("param", "buffer"):
            self.record_named(followed, role, tensor)

    def accumulated(self, parameter: Tensor) -> None:
        """Record the gradient of a parameter after another was added to it."""
        followed = self._of_tensor(parameter)
        gradient = None if followed is None else _grad_of(parameter)
        if followed is not None and gradient is not None:
            self.record_named(followed, "grad", gradient, again=True)

    def record_named(self, followed: _Followed, role: str, value: Any, again: bool = False) -> None:
        """Record a value under each name that a tensor was asked for by in this role."""
        for path, roles in followed.names.items():
            if role in roles:
                self.record(path, role, value, again)

    def record(self, path: str, role: str, value: Any, again: bool = False) -> None:
        """Record what a tensor's name and role stand for, if it has changed or is there `again`."""
        owner, _, name = path.rpartition(".")
        kind = GRADIENT if role == "grad" else VARIABLE
        label = Label(kind, written(path), name, role, owner)
        try:
            if not self._names.is_due(label):
                return
            now = state_of(value).same
            if self._states.get((path, role)) == now and not again:
                return
            self._states[path, role] = now
        except Exception as fault:
            self._recorder.gaps.fault(fault, f"{path}:{role}")
            return
        self._named(label, value)

    def _named(self, label: Label, value: Any) -> None:
        try:
            self._names.record(label, value, sys._getframe(1))
        except Exception as fault:
            self._recorder.gaps.fault(fault, f"{label.stem}:{label.role}")

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return None
        self._follow_shaped()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        for parameter, followed in self._of(optimizer):
            if closure is None:
                self._record_used(parameter, followed)
            if followed.has("update"):
                with unobserved(), torch.no_grad(), unseen(parameter):
                    self._before[id(parameter)] = parameter.clone()
        if closure is None:
            return None
        # What the step will use is there when the closure has run, once or several times.
        ours = partial(_run_closure, weakref.ref(self), optimizer, closure)
        update_wrapper(ours, closure)
        if len(args) > 1:
            return (args[0], ours, *args[2:]), kwargs
        return args, {**kwargs, "closure": ours}

    def before_closure(self, optimizer: Optimizer) -> None:
        """Record the parameters that an optimizer is about to try."""
        for parameter, followed in self._of(optimizer):
            self._record_own(followed, parameter)

    def after_closure(self, optimizer: Optimizer) -> None:
        """Record the gradients of the parameters that an optimizer has tried."""
        for parameter, followed in self._of(optimizer):
            self._record_used(parameter, followed)

    def _record_used(self, parameter: Tensor, followed: _Followed) -> None:
        """Record the gradient that a step will use: reduced over ranks, clipped."""
        gradient = _grad_of(parameter)
        if gradient is not None:
            self.record_named(followed, "grad", gradient)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        for parameter, followed in self._of(optimizer):
            before = self._before.pop(id(parameter), None)
            if before is not None:
                with unobserved(), torch.no_grad(), unseen(parameter):
                    update = parameter - before
                self.record_named(followed, "update", update, again=True)
            self._record_own(followed, parameter)
            if followed.has("state") and parameter in optimizer.state:
                state = dict(optimizer.state[parameter])
                self.record_named(followed, "state", state, again=True)

    def _of(self, optimizer: Optimizer) -> list[tuple[Tensor, _Followed]]:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found = [(parameter, self._of_tensor(parameter)) for parameter in held]
        return [(parameter, followed) for parameter, followed in found if followed is not None]


def _accumulated(source: Callable[[], GradSource | None]) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        owner = source()
        if owner is not None:
            owner.accumulated(parameter)

    return hook


def _run_closure(
    source: Callable[[], GradSource | None], optimizer: Optimizer, closure: Callable[..., Any],
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run an optimizer's closure; record parameters before it and gradients after it."""
    owner = source()
    if owner is not None:
        owner.before_closure(optimizer)
    result = closure(*args, **kwargs)
    if owner is not None:
        owner.after_closure(optimizer)
    return result


MACHINERY.hide(_run_closure.__code__)


def _grad_of(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a parameter, unnoticed by its class and by modes of the program."""
    with unobserved():
        return parameter.grad


def _has(tensor: Tensor, role: str) -> bool:
    if role == "buffer":
        return not isinstance(tensor, nn.Parameter)
    return isinstance(tensor, nn.Parameter)
