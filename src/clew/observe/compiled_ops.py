"""Taps and variables inside compiled code: operators with a side effect, which break no graph.

Imported by `tap` while Dynamo traces it, so that programs that compile nothing do not pay for it.
At run time the operator hands the tensor to the listeners there are then. A program that is
exported gets none of them: it is to run where Clew is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, empty, library, ops

from clew.observe import taps
from clew.observe.variables import captured
from clew.torch_compat import is_exporting, register_effect

_LIBRARY = library.Library("clew", "FRAGMENT")


def define(schema: str, function: Callable[..., None]) -> None:
    """Make an operator for its side effect: compiled code runs `function` where it was called.

    It must take a tensor, needed or not: Inductor (seen on 2.13) puts an operator that takes none
    where values that are used later are already freed.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    library.register_fake(f"clew::{name}", lambda *args: None, lib=_LIBRARY)
    register_effect(f"clew::{name}")


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


define("tap(Tensor value, str name, str? module, str reduce) -> ()", _tap)
define("bound(Tensor value, int plan, str name, int line, str module, bool always) -> ()", _bound)
define("tap_missed(Tensor value, str name) -> ()", _missed)

# Those who listened before there was anything that compiles.
taps.learn_paths()


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
