"""TensorTracer's helpers for paths into values.

Iterators are not consumed, tensors, arrays and text are not taken apart, no property runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

_WHOLE = (str, bytes, bytearray, Tensor, np.ndarray)
_MODULE_DICTS = ("_modules", "_parameters", "_buffers")
_ABSENT = object()


def get_object_items(obj: Any) -> Iterable[tuple[Any, Any]]:
    """What an object holds: items of a mapping or sequence, else attributes."""
    if isinstance(obj, Mapping):
        return list(obj.items())
    if isinstance(obj, _WHOLE):
        return []
    if hasattr(type(obj), "_fields"):
        return list(zip(obj._fields, obj, strict=True))
    if isinstance(obj, Sequence):
        return list(enumerate(obj))
    return list(_attributes(obj))


def get_object_value(obj: Any, key: Any) -> Any:
    """What an object holds under a key, an index (also as text) or a name; None if nothing."""
    found = _value(obj, key)
    return None if found is _ABSENT else found


def extract_nested_values(data: Any, paths: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Every value that paths lead to, by its path; `*` is any key, one path may begin another."""
    result: dict[str, Any] = {}
    for path in paths:
        if path:
            result.update(_extracted(data, list(path), []))
    return result


def partial_path_matching(target_path: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path leads towards a target, in which `*` is any name."""
    return len(target_path) >= len(path) and _agree(target_path, path)


def exact_path_matching(target_path: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path is a target, in which `*` is any name."""
    return len(target_path) == len(path) and _agree(target_path, path)


def _agree(target: Sequence[str], path: Sequence[str]) -> bool:
    return all(a == "*" or b in ("", a) for a, b in zip(target, path, strict=False))


def _extracted(data: Any, path: list[str], taken: list[str]) -> Iterator[tuple[str, Any]]:
    if not path:
        yield ".".join(taken), data
    elif path[0] == "*":
        for key, value in get_object_items(data):
            yield from _extracted(value, path[1:], [*taken, str(key)])
    else:
        value = _value(data, path[0])
        if value is not _ABSENT:
            yield from _extracted(value, path[1:], [*taken, path[0]])


def _value(obj: Any, key: Any) -> Any:
    if isinstance(obj, Mapping):
        number = int(key) if str(key).isdecimal() else key
        return obj[key] if key in obj else obj.get(number, _ABSENT)
    if isinstance(obj, (Sequence, Tensor, np.ndarray)) and str(key).lstrip("-").isdecimal():
        number = int(key)
        return obj[number] if -len(obj) <= number < len(obj) else _ABSENT
    if hasattr(type(obj), "_fields"):
        return getattr(obj, key) if key in obj._fields else _ABSENT
    return dict(_attributes(obj)).get(key, _ABSENT)


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(obj, "__dict__", {})
    yield from own.items()
    for inside in _MODULE_DICTS:
        yield from (own.get(inside) or {}).items()
    for base in type(obj).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                yield name, getattr(obj, name)
