"""Taps and calls inside compiled code: an operator with a side effect, which no graph breaks at.

Imported by `tap` while Dynamo traces it, so that programs that compile nothing do not pay for it.
At run time the operator hands the tensor to whoever listens then. A program that is exported gets
none of them: it is to run where Clew is not.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, empty, library, ops

from clew.observe import calls, taps
from clew.observe.variables import captured
from clew.torch_compat import is_exporting, register_effect

_LIBRARY = library.Library("clew", "FRAGMENT")
# Each takes a tensor, needed or not: Inductor (seen on 2.13) puts an operator that takes none where
# values that are used later are already let go.
_LIBRARY.define("tap(Tensor value, str name, str? module, str reduce) -> ()")
_LIBRARY.define("bound(Tensor value, int plan, str name, int line, str module, bool always) -> ()")
_LIBRARY.define("tap_missed(Tensor value, str name) -> ()")
_LIBRARY.define("called(Tensor value, int listener, str path) -> ()")


def _tap(value: Tensor, name: str, module: str | None, reduce: str) -> None:
    for listener in taps.listeners():
        listener.tapped(name, value.detach(), module, reduce or None, None)


def _bound(value: Tensor, plan: int, name: str, line: int, module: str, always: bool) -> None:
    found = captured.plans.get(plan)
    if found is not None:
        found.compiled(value.detach(), name, line, module, always)


def _missed(value: Tensor, name: str) -> None:
    for listener in taps.listeners():
        listener.missed(name)


def _called(value: Tensor, listener: int, path: str) -> None:
    found = calls.listeners.get(listener)
    if found is not None:
        found(path)


for _name, _function in (
    ("tap", _tap), ("bound", _bound), ("tap_missed", _missed), ("called", _called),
):  # fmt: skip
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    library.register_fake(f"clew::{_name}", lambda *args: None, lib=_LIBRARY)
    register_effect(f"clew::{_name}")


def tap(name: str, value: Any, module: str | None, reduce: str) -> None:
    """Record a tensor when the compiled code runs; traced by Dynamo."""
    if is_exporting():
        return
    if isinstance(value, Tensor):
        ops.clew.tap(value, name, module, reduce)
    else:
        ops.clew.tap_missed(empty(0), name)


def bound(value: Any, plan: int, name: str, line: int, owner: Any, always: bool) -> None:
    """Record a variable when the compiled code runs; traced by Dynamo."""
    if is_exporting():
        return
    if isinstance(value, Tensor):
        path = "" if owner is None else taps._paths.get(id(owner), "")
        ops.clew.bound(value, plan, name, line, path, always)
    elif always:
        ops.clew.tap_missed(empty(0), name)


def called(values: Any, listener: int, path: str) -> None:
    """Tell of a module call when the compiled code runs; traced by Dynamo."""
    if is_exporting():
        return
    value = _first_tensor(values)
    ops.clew.called(empty(0) if value is None else value, listener, path)


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (dict, list, tuple)):
        for item in list(value.values()) if isinstance(value, dict) else value:
            found = _first_tensor(item)
            if found is not None:
                return found
    return None
