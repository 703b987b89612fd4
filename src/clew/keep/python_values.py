"""Record values that are no tensors: NumPy arrays, numbers, text, None, and objects by their type.

Comes in: a live value. Goes out: a token, whose facts are appended like those of a tensor. Arrays
are copied; objects are never called, printed or referenced. Must not import torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from clew.events.fingerprint import packed_fingerprint
from clew.events.statistics import NUMERIC_KINDS, Numbers, array_statistics
from clew.events.vocabulary import KeepLevel, Kept, Payload
from clew.keep.budget import Budget
from clew.stream.records import Extra, Made, Shape, Token, once

if TYPE_CHECKING:
    from clew.record.module_registry import ModuleTable

# Kinds of NumPy dtypes that are not numeric and yet can be stored as bytes: text, dates, raw bytes.
_OTHER_KINDS = "USMmV"
# Kind, size and byte order of a numeric dtype -> its name.
_dtype_names: dict[str, str] = {}
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


def record(
    value: Any, values: list[Any], level: KeepLevel, budget: Budget
) -> tuple[Token, Made | None]:
    """Return a new token for a value, and what is kept of it within the budget."""
    token, stride, dtype, device, extra = facts_of(value)
    values.extend((token, 0, None, stride, dtype, device, extra, False, -1, None, None))
    if budget.is_over():
        return token, None
    payload = payload_of(value) if level is KeepLevel.FULL else None
    if payload is not None and not budget.has_room(_count(value), len(payload.data)):
        payload = None
    if payload is None:
        has_numbers = level > KeepLevel.META and _is_array(value)
        return token, _without_data(value, level) if has_numbers else None
    if _is_array(value):
        # The thread that takes the records computes the statistics, from the copy.
        return token, once(partial(_with_statistics, payload, value.dtype.newbyteorder("<")))
    return token, Kept(None, payload)


def _without_data(array: Numbers, level: KeepLevel) -> Kept:
    """Keep the statistics of an array and, if the level has it, the fingerprint."""
    stats = array_statistics(array)
    is_marked = stats is not None and level >= KeepLevel.FINGERPRINT
    return Kept(stats, None, packed_fingerprint(array) if is_marked else None)


def _with_statistics(payload: Payload, dtype: np.dtype[Any]) -> Kept:
    return Kept(array_statistics(np.frombuffer(payload.data, dtype)), payload)


def facts_of(value: Any) -> tuple[Shape, tuple[int, ...], str, str, Extra]:
    """Return a new token for a value, its stride, dtype, device and class."""
    if not isinstance(value, np.ndarray):
        extra = Extra("strided", type(value).__name__, None, None)
        return Shape(), (), _python_dtype(value), "", extra
    stride: tuple[int, ...] = value.strides
    if value.itemsize:
        stride = tuple(s // value.itemsize for s in stride)
    extra = Extra("strided", "ndarray", None, None)
    return Shape(value.shape), stride, dtype_name(value.dtype), "cpu", extra


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype; NumPy builds that of a number anew each time, slowly."""
    if dtype.kind not in NUMERIC_KINDS:
        return str(dtype)
    name = _dtype_names.get(dtype.str)
    if name is None:
        name = _dtype_names[dtype.str] = str(dtype)
    return name


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _count(value: Any) -> int:
    return int(value.size) if _is_array(value) else 1


def _python_dtype(value: Any) -> str:
    if isinstance(value, np.generic):
        return str(value.dtype)
    if type(value) is int and not _SMALLEST <= value <= _LARGEST:
        return "int"
    known = {bool: "bool", int: "int64", float: "float64", complex: "complex128",
             str: "str", bytes: "bytes", type(None): "none"}  # fmt: skip
    return known.get(type(value), "object")


def payload_of(value: Any) -> Payload | None:
    """Return the data of a value, None if it cannot be written as bytes."""
    if isinstance(value, (np.ndarray, np.generic)):
        return array_payload(np.asarray(value))
    dtype = _python_dtype(value)
    if dtype in ("bool", "int64", "float64", "complex128"):
        return Payload(dtype, (), np.array(value, dtype=dtype).tobytes())
    if dtype == "str":
        return Payload("str", (), value.encode("utf-8", "surrogatepass"))
    if dtype in ("bytes", "none"):
        return Payload(dtype, (), value or b"")
    return Payload("int", (), hex(value).encode()) if dtype == "int" else None


def array_payload(array: Numbers) -> Payload | None:
    """Return a copy of an array's elements in row-major order, None for arrays of objects."""
    if array.dtype.hasobject:
        return None
    little = array.dtype.newbyteorder("<")
    name = array.dtype.name
    if array.dtype.kind not in NUMERIC_KINDS or array.dtype.itemsize > 16 or name == "float128":
        name = f"numpy:{little.str}"
        if array.dtype.kind not in (*_OTHER_KINDS, *NUMERIC_KINDS) or array.dtype.names:
            return None
    return Payload(name, array.shape, np.ascontiguousarray(array, dtype=little).tobytes())


class NoTensors:
    """Stands for the `TensorTable` of a recording that runs without torch."""

    def __init__(self, modules: ModuleTable) -> None:
        self.values: list[Any] = []
        self.generator_names: list[str] = []
        self.live: dict[int, Any] = {}

    def forget(self, tensor: Any) -> None:
        """Do nothing: there are no tensors."""

    def take_memory(self) -> tuple[list[Any], dict[int, tuple[int, int]]]:
        """Return nothing: there is no memory of tensors."""
        return [], {}

    def sweep(self) -> list[Token]:
        """Return no token: there are no tensors."""
        return []

    def release(self) -> None:
        """Do nothing: there are no tensors."""
