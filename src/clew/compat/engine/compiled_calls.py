"""Module calls inside compiled code: an operator that calls the listener as the code runs.

Imported while Dynamo traces a call, so that programs that compile nothing do not pay for it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, empty, ops

from clew.compat.engine import calls
from clew.observe.compiled_ops import define
from clew.torch_compat import is_exporting


def _called(value: Tensor, listener: int, path: str) -> None:
    found = calls.listeners.get(listener)
    if found is not None:
        found(path)


define("called(Tensor value, int listener, str path) -> ()", _called)


def called(values: Any, listener: int, path: str) -> None:
    """Report a module call when the compiled code runs; traced by Dynamo."""
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
