"""Arguments and results as data: the same nesting, with every tensor replaced by its record.

Containers are opened only where that cannot run user code: no iterator is consumed, no tensor or
string split, no property called. What is not opened becomes an `Opaque` that says its type.
Must not import torch: `capture.tensors` tells what a tensor is once there is one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import UserDict
from collections.abc import Callable, Iterator
from types import MemberDescriptorType
from typing import Any

import numpy as np

from clew.events.records import Opaque

# Kept as they are: immutable, without references to anything else.
CONSTANTS: set[type] = {type(None), bool, int, float, complex, str, bytes}
_TENSORS: list[type] = []

_MOST_ITEMS = 1000
_DEEPEST = 16
_LONGEST_TEXT = 1000


def learn(tensor: type, constants: set[type]) -> None:
    """Know tensors, and constants besides Python's own."""
    _TENSORS[:] = [tensor]
    CONSTANTS.update(constants)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch."""
    return bool(_TENSORS) and isinstance(value, _TENSORS[0])


def describe(
    value: Any,
    record: Callable[[Any], Any],
    depth: int = 0,
    leaf: Callable[[Any], Any] | None = None,
) -> Any:
    """`value` as constants, lists, dicts and value records.

    `leaf` records what is neither tensor nor container, which is described by itself otherwise.
    """
    if _TENSORS and isinstance(value, _TENSORS[0]):
        return record(value)
    cls = type(value)
    if leaf is not None and (cls in CONSTANTS or isinstance(value, (np.ndarray, np.generic))):
        return leaf(value)
    if cls in CONSTANTS:
        return value if cls is not str or len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT]
    if depth > _DEEPEST:
        return Opaque(cls.__name__)
    if isinstance(value, dict):
        items = list(dict.items(value))
    elif isinstance(value, (tuple, list)):
        fields = getattr(cls, "_fields", None)
        if isinstance(fields, tuple) and isinstance(value, tuple):
            items = list(zip(fields, tuple.__iter__(value), strict=False))
        else:
            base: Any = tuple if isinstance(value, tuple) else list
            head = base.__getitem__(value, slice(_MOST_ITEMS))
            return [describe(v, record, depth + 1, leaf) for v in head]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = list(fields_of(value))
    elif isinstance(value, UserDict):
        items = list(value.data.items())
    elif isinstance(value, np.ndarray):
        return Opaque(f"ndarray {value.dtype}{list(value.shape)}")
    else:
        return Opaque(cls.__name__) if leaf is None else leaf(value)
    return {str(k): describe(v, record, depth + 1, leaf) for k, v in items[:_MOST_ITEMS]}


def tensors_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor in a value, with its path there; the path of a tensor itself is empty."""

    def walk(described: Any, path: str) -> Iterator[tuple[str, Any]]:
        if is_tensor(described):
            yield path, described
        elif isinstance(described, (list, dict)):
            items = described.items() if isinstance(described, dict) else enumerate(described)
            for key, item in items:
                yield from walk(item, f"{path}.{key}" if path else str(key))

    return walk(describe(value, lambda tensor: tensor), "")


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a dataclass as they are stored, in its dict or its slots; no property is called."""
    held = getattr(value, "__dict__", {})
    for field in dataclasses.fields(value):
        slot = inspect.getattr_static(type(value), field.name, None)
        if field.name in held:
            yield field.name, held[field.name]
        elif isinstance(slot, MemberDescriptorType):
            try:
                yield field.name, slot.__get__(value)
            except AttributeError:  # never assigned
                continue
