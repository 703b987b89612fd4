"""Gradients, parameters, buffers and optimizer state, by address.

In come addresses with a role (`fc:grad`, `fc.weight:grad`, `fc.weight:param`, …), out go events.
Hooks are put on exactly the tensors that are named and taken away again; nothing here keeps a
tensor or a graph alive. A value is recorded when it has changed since it was recorded last.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from clew.address import Address, compile_pattern, written
from clew.capture.changes import look
from clew.capture.named import Named
from clew.capture.quiet import unseen
from clew.capture.recorder import Recorder
from clew.capture.structure import tensors_in
from clew.capture.torch_compat import unobserved
from clew.events.model import Gap
from clew.events.records import GRADIENT, VARIABLE, Label

_is_compiling = torch.compiler.is_dynamo_compiling

# Roles of a module call whose gradients are followed, and of tensors a module owns.
CALL_ROLES = ("grad", "grad_in")
TENSOR_ROLES = ("grad", "param", "buffer", "update", "state")
_NO_STEP = "no optimizer made a step with it"
_MISSING = dict.fromkeys(CALL_ROLES, "no gradient arrived for it")


class GradSource:
    """Follows the gradients, parameters and buffers that were asked for."""

    def __init__(self, recorder: Recorder, addresses: Iterable[Address], named: Named) -> None:
        self._recorder = recorder
        self._names = named
        paths = [a for a in addresses if a.kind == "path"]
        self._calls = [a for a in paths if a.role in CALL_ROLES]
        self._wanted = [(a, compile_pattern(a.path)) for a in paths if a.role in TENSOR_ROLES]
        self.matched: set[str] = set()
        # Paths and roles of which there is an event.
        self._recorded: set[tuple[str, str]] = set()
        # id of a parameter or buffer -> (the tensor, weakly, its path, the roles asked for)
        self._followed: dict[int, tuple[Callable[[], Any], str, frozenset[str]]] = {}
        # Those of lazy modules, which are followed once they have a shape: path and tensor by id.
        self._shapeless: dict[int, tuple[str, Callable[[], Any]]] = {}
        # (path, role) -> how it looked when it was recorded last
        self._looks: dict[tuple[str, str], Any] = {}
        self._before: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def start(self) -> None:
        """Put the hooks in place."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        modules = self._recorder.modules
        modules.on_tensor = self._follow
        for path, tensor in modules.tensors():
            self._follow(path, tensor)

    def stop(self) -> None:
        """Take every hook away."""
        self.look_around()
        self._recorder.modules.on_tensor = None
        for handle in self._handles:
            handle.remove()
        self._handles, self._before = [], {}
        self._followed.clear()
        self._shapeless.clear()

    def missed(self) -> Iterator[Gap]:
        """Say which addresses name something of which nothing came."""
        for address in (*self._calls, *(a for a, _ in self._wanted)):
            matcher, role = compile_pattern(address.path), str(address.role)
            if address.text in self.matched and not any(
                role == told and matcher(path) for path, told in self._recorded
            ):
                why = _MISSING.get(role, _NO_STEP)
                what_to_do = "run that part of the training inside the block"
                yield Gap("an address to capture", address.text, why, what_to_do)

    def look_around(self) -> None:
        """Record parameters and buffers that have changed, at the end of a step."""
        self._follow_shaped()
        for reference, path, roles in list(self._followed.values()):
            tensor = reference()
            if tensor is not None:
                self._record_own(path, tensor, roles)

    def left(self, module: nn.Module) -> None:
        """A module call is over, which may have written to its buffers, or made what was lazy."""
        self._follow_shaped()
        for buffer in module._buffers.values():
            found = self._followed.get(id(buffer))
            if found is not None and found[0]() is buffer:
                self._record_own(found[1], buffer, found[2])

    def call_roles(self, paths: list[str], call: int) -> frozenset[str]:
        """Which gradients of a module call are followed: `grad`, `grad_in`."""
        found = [
            address
            for address in self._calls
            if address.call in (None, call) and any(map(compile_pattern(address.path), paths))
        ]
        self.matched.update(address.text for address in found)
        return frozenset(str(address.role) for address in found)

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
        """Follow a parameter or buffer that has a name, if it was asked for."""
        known = self._followed.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return
        roles = set()
        for address, matcher in self._wanted:
            if matcher(path) and _has(tensor, str(address.role)):
                roles.add(str(address.role))
                self.matched.add(address.text)
        if not roles:
            return
        if is_lazy(tensor):
            self._shapeless[id(tensor)] = (path, weakref.ref(tensor))
            return
        self._followed[id(tensor)] = (weakref.ref(tensor), path, frozenset(roles))
        try:
            with unobserved():
                if "grad" in roles and tensor.requires_grad and tensor.is_leaf:
                    hook = _accumulated(weakref.ref(self), path)
                    self._handles.append(tensor.register_post_accumulate_grad_hook(hook))
        except Exception as fault:  # a kind of tensor that takes no hooks
            self._recorder.gaps.fault(fault, f"{path}:grad")
        self._record_own(path, tensor, frozenset(roles))

    def _follow_shaped(self) -> None:
        """Follow the tensors of lazy modules that have got their shapes since."""
        for key, (path, reference) in list(self._shapeless.items()):
            tensor = reference()
            if tensor is None or not is_lazy(tensor):
                self._shapeless.pop(key, None)
                if tensor is not None:
                    self._follow(path, tensor)

    def _record_own(self, path: str, tensor: Tensor, roles: frozenset[str]) -> None:
        for role in roles & {"param", "buffer"}:
            self.record(path, role, tensor)

    def record(self, path: str, role: str, value: Any, again: bool = False) -> None:
        """Record what a tensor's name and role stand for, if it has changed or is there `again`."""
        owner, _, name = path.rpartition(".")
        kind = GRADIENT if role == "grad" else VARIABLE
        label = Label(kind, written(path), name, role, owner)
        self._recorded.add((path, role))
        try:
            if not self._names.is_due(label):
                return
            now = look(value).same
            if self._looks.get((path, role)) == now and not again:
                return
            self._looks[path, role] = now
        except Exception as fault:
            self._recorder.gaps.fault(fault, f"{path}:{role}")
            return
        self._named(label, value)

    def _named(self, label: Label, value: Any) -> None:
        self._recorded.add((label.stem, str(label.role)))
        try:
            self._names.record(label, value, sys._getframe(1))
        except Exception as fault:
            self._recorder.gaps.fault(fault, f"{label.stem}:{label.role}")

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if _is_compiling():
            return
        self._follow_shaped()
        for parameter, path, roles in self._of(optimizer):
            gradient = _grad_of(parameter) if "grad" in roles else None
            if gradient is not None:
                # What the step will use: reduced over ranks, clipped.
                self.record(path, "grad", gradient)
            if "update" in roles:
                with unobserved(), torch.no_grad(), unseen(parameter):
                    self._before[id(parameter)] = parameter.clone()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        for parameter, path, roles in self._of(optimizer):
            before = self._before.pop(id(parameter), None)
            if before is not None:
                with unobserved(), torch.no_grad(), unseen(parameter):
                    update = parameter - before
                self.record(path, "update", update, again=True)
            self._record_own(path, parameter, roles)
            if "state" in roles and parameter in optimizer.state:
                self.record(path, "state", dict(optimizer.state[parameter]), again=True)

    def _of(self, optimizer: Optimizer) -> list[tuple[Tensor, str, frozenset[str]]]:
        found = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                followed = self._followed.get(id(parameter))
                if followed is not None and followed[0]() is parameter:
                    found.append((parameter, followed[1], followed[2]))
        return found


def _accumulated(source: Callable[[], GradSource | None], path: str) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        owner, gradient = source(), _grad_of(parameter)
        if owner is not None and gradient is not None:
            owner.record(path, "grad", gradient, again=True)

    return hook


def _grad_of(parameter: Tensor) -> Tensor | None:
    """The gradient of a parameter, of which neither its class nor a mode of the program hears."""
    with unobserved():
        return parameter.grad


def _has(tensor: Tensor, role: str) -> bool:
    if role == "buffer":
        return not isinstance(tensor, nn.Parameter)
    return isinstance(tensor, nn.Parameter)
