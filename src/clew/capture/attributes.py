"""What modules and optimizers are set to: eps, p, sizes, `training`; learning rates, betas.

In come live modules and optimizers, out go `Attributes`: all plain ones when first seen, later
those that have changed. Only what lies in an object's own `__dict__` is read: nothing is called.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from clew.events.columns import Attributes

if TYPE_CHECKING:
    from torch import nn

    from clew.capture.names import ModuleEntry
    from clew.capture.recording import Recording

_PLAIN = (bool, int, float, complex, str, type(None))
# Longer texts and lists are data.
_LONGEST = 64


class AttributeSource:
    """Notes what modules and optimizers are set to, for a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._optimizers: dict[int, tuple[Any, int, list[dict[str, Any]]]] = {}
        self._count = 0
        self._handle: Any = None

    def start(self) -> None:
        """Look at each optimizer before it makes a step."""
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def stop(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self._look_at(optimizer)
        except Exception as fault:
            self._recording.on_fault(fault, "the settings of an optimizer")

    def _look_at(self, optimizer: Optimizer) -> None:
        recording = self._recording
        if recording.halted:
            return
        held = self._optimizers.get(id(optimizer))
        if held is None or held[0]() is not optimizer:
            held = weakref.ref(optimizer), self._count, []
            self._count += 1
        _, number, before = held
        now = [_plain(group) for group in optimizer.param_groups]
        for at, group in enumerate(now):
            known = before[at] if at < len(before) else None
            changed = group if known is None else _changed(known, group)
            if known is None:
                changed = {
                    "class": type(optimizer).__name__,
                    **changed,
                    "params": self._names(optimizer.param_groups[at]["params"]),
                }
            if changed:
                recording.attributes.append(
                    Attributes("optimizer", number, at, recording.next_id(), changed)
                )
        self._optimizers[id(optimizer)] = (held[0], number, now)

    def _names(self, parameters: list[Any]) -> list[str]:
        """The paths of a group's parameters, as far as they have one."""
        name_of = self._recording.modules.tensor_name
        return [name_of(parameter) or "?" for parameter in parameters]


def look(recording: Recording, entry: ModuleEntry, module: nn.Module, event: int) -> None:
    """Note what a module is set to, if that is new."""
    now = _plain(module.__dict__)
    changed = now if entry.settings is None else _changed(entry.settings, now)
    if changed:
        recording.attributes.append(Attributes("module", entry.number, 0, event, changed))
    entry.settings = now


def _plain(held: dict[str, Any]) -> dict[str, Any]:
    """The plain ones among the attributes of an object, or the settings of a group."""
    found = {}
    for name, value in list(held.items()):
        if name[:1] != "_" and name != "params" and type(name) is str and _is_plain(value):
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _LONGEST
    if type(value) in (list, tuple):
        return len(value) <= _LONGEST and all(type(item) in (bool, int, float) for item in value)
    return type(value) in _PLAIN


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is new or other than before; None where it is gone."""
    gone = {name: None for name in before if name not in now}
    other = {
        name: value
        for name, value in now.items()
        if name not in before or before[name] != value or type(before[name]) is not type(value)
    }
    return gone | other
