"""Copies of values of any kind, as they are now: sharing nothing, with tensors on the CPU.

Unlike `copy.deepcopy`, which refuses tensors that have a history. What makes a value what it is
(classes, functions, modules) is not copied but referred to.
"""

from __future__ import annotations

import io
import pickle
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from clew.torch_compat import cpu_copy

_CONSTANTS = frozenset((bool, int, float, complex, str, bytes, type(None)))
_SHARED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, nn.Module)


def copied(value: Any) -> Any:
    """A copy of a value; TypeError if there can be none, as of a generator or a lock.

    >>> import torch
    >>> scores = {"best": [torch.ones(2, requires_grad=True) * 2]}
    >>> copied(scores)
    {'best': [tensor([2., 2.])]}
    """
    if type(value) in _CONSTANTS:
        return value
    if isinstance(value, Tensor):
        return cpu_copy(value)
    if type(value) is np.ndarray:
        return value.copy()
    file = io.BytesIO()
    writer = _Writer(file)
    try:
        writer.dump(value)
        file.seek(0)
        return _Reader(file, writer.apart).load()
    except Exception as error:
        raise TypeError(f"{type(value).__name__} cannot be copied: {error}") from error


class _Writer(pickle.Pickler):
    """Writes an object, putting apart what is copied in its own way or not at all."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.apart: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, Tensor):
            obj = copied(obj)
        elif not isinstance(obj, _SHARED):
            return None
        self.apart.append(obj)
        return len(self.apart) - 1


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, apart: list[Any]) -> None:
        super().__init__(file)
        self._apart = apart

    def persistent_load(self, pid: Any) -> Any:
        return self._apart[pid]
