"""Tensors inside nested arguments and results: lists, tuples, dicts.

Input: any value. Output: the tensors in it, in order, or a copy in which each is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same nesting with each tensor changed; other objects are passed on."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [changed(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value) is list:
        return [changed(part, change) for part in value]
    if type(value) is dict:
        return {key: changed(part, change) for key, part in value.items()}
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Give the tensors of a nesting, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def floats_in(value: Any) -> list[Tensor]:
    """Return the tensors of floating point numbers of a nesting, in order."""
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]


def own_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor that a program is given, so that it may write to it."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
