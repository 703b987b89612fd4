"""Arguments and results as data: the same nesting, with every tensor replaced by its record.

Containers are opened only where that cannot run user code: no iterator is consumed, no tensor or
string split, no property called. What is not opened becomes an `Opaque` that says its type.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import UserDict
from collections.abc import Callable, Iterator
from types import MemberDescriptorType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.events.records import Opaque

# Kept as they are: immutable, without references to anything else.
CONSTANTS = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)

_MOST_ITEMS = 1000
_DEEPEST = 16
_LONGEST_TEXT = 1000


def describe(value: Any, record: Callable[[Tensor], Any], depth: int = 0) -> Any:
    """`value` as constants, lists, dicts and value records."""
    if isinstance(value, Tensor):
        return record(value)
    cls = type(value)
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
            return [describe(v, record, depth + 1) for v in head]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = list(_fields(value))
    elif isinstance(value, UserDict):
        items = list(value.data.items())
    elif isinstance(value, np.ndarray):
        return Opaque(f"ndarray {value.dtype}{list(value.shape)}")
    else:
        return Opaque(cls.__name__)
    return {str(k): describe(v, record, depth + 1) for k, v in items[:_MOST_ITEMS]}


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
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
