"""Arguments and results as data: the same nesting, with every tensor replaced by its record.

Containers and objects are opened only where that cannot run user code: no iterator is consumed, no
tensor or string split, no property called. An object of a class that is not one of Python's
containers is described by its class and the tensors in it; without any, it is an `Opaque` with the
name of its class. Must not import torch: `keep.identity` passes the class of tensors to `learn`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from clew.events.vocabulary import Opaque, RecordClass
from clew.keep import objects
from clew.keep.objects import MOST_ITEMS, attributes_of, class_text, contents_of, items_of

# Recorded as they are: immutable, without references to anything else.
CONSTANTS: set[type] = {type(None), bool, int, float, complex, str, bytes}

# The key under which the description of an object has its class.
OWN = ""
_LEFT_OUT = "…"
_DEEPEST = 16
_LONGEST_TEXT = 1000
# Containers whose class is not recorded.
_USUAL = frozenset({dict, OrderedDict, defaultdict, list, tuple})
_NOTHING = object()


class _NoTensor:
    """Stands for the class of tensors while torch is not imported."""


_tensor: type = _NoTensor


def learn(tensor: type, module: type, constants: set[type]) -> None:
    """Set the classes of tensors and modules, and add constants to those of Python."""
    global _tensor
    _tensor = tensor
    objects.learn(module)
    CONSTANTS.update(constants)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor."""
    # By its type: `isinstance` reads `__class__`, which may be a property of the program.
    cls = type(value)
    return cls is _tensor or issubclass(cls, _tensor)


def describe(
    value: Any,
    record: Callable[[Any], Any],
    depth: int = 0,
    leaf: Callable[[Any], Any] | None = None,
) -> Any:
    """Return `value` as constants, lists, dicts and records; `OWN` is the key of an object's class.

    `record` is called with each tensor. `leaf`, if given, is called with everything else that is no
    container; without it, constants stay as they are and objects are opened.
    """
    cls = type(value)
    if cls is _tensor or issubclass(cls, _tensor):
        return record(value)
    if leaf is not None and (cls in CONSTANTS or issubclass(cls, (np.ndarray, np.generic))):
        return leaf(value)
    if cls in CONSTANTS:
        return value if cls is not str or len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT]
    if depth > _DEEPEST:
        return Opaque(cls.__name__)
    items: Any
    if issubclass(cls, dict):
        items = items_of(value)
    elif issubclass(cls, (tuple, list)):
        fields = getattr(cls, "_fields", None)
        if isinstance(fields, tuple) and issubclass(cls, tuple):
            items = list(zip(fields, tuple.__iter__(value), strict=False))
        else:
            base: Any = tuple if issubclass(cls, tuple) else list
            head = base.__getitem__(value, slice(MOST_ITEMS))
            return [describe(v, record, depth + 1, leaf) for v in head]
    elif hasattr(cls, "__dataclass_fields__"):
        items = list(fields_of(value))
    elif issubclass(cls, UserDict):
        items = contents_of(value)
    elif issubclass(cls, np.ndarray):
        return Opaque(_array_text(value))
    elif leaf is not None:
        return leaf(value)
    else:
        found = _Opening(record).inside(value, depth)
        return Opaque(class_text(value)) if found is _NOTHING else found
    described = {k: describe(v, record, depth + 1, leaf) for k, v in items[:MOST_ITEMS]}
    if leaf is None and cls not in _USUAL:
        return {OWN: RecordClass(cls.__name__), **described}
    return described


class _Opening:
    """Opens one object: records the classes and tensors in it, and leaves out everything else.

    Constants in an object change from call to call; they would make every call look different.
    """

    def __init__(self, record: Callable[[Any], Any]) -> None:
        self._record = record
        self._room = MOST_ITEMS
        # Objects that are being opened: one that contains itself is not opened again.
        self._around: set[int] = set()

    def inside(self, value: Any, depth: int) -> Any:
        """Return a value's description if there are tensors in it, else `_NOTHING`."""
        cls = type(value)
        if is_tensor(value):
            return self._record(value)
        if issubclass(cls, np.ndarray):
            return Opaque(_array_text(value))
        if cls in CONSTANTS or depth > _DEEPEST or id(value) in self._around:
            return _NOTHING
        pairs = contents_of(value)
        if not pairs:
            return _NOTHING
        found = {}
        self._around.add(id(value))
        for name, item in pairs:
            if type(item) in CONSTANTS:
                continue
            if self._room <= 0:
                found[_LEFT_OUT] = Opaque("more")
                break
            self._room -= 1
            inner = self.inside(item, depth + 1)
            if inner is not _NOTHING:
                found[name] = inner
        self._around.remove(id(value))
        if not found:
            return _NOTHING
        return found if cls in _USUAL else {OWN: Opaque(class_text(value)), **found}


def _array_text(value: Any) -> str:
    return f"ndarray {value.dtype}{list(value.shape)}"


def tensors_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every tensor in a value, with its path there; the path of a tensor itself is empty."""

    def walk(described: Any, path: str) -> Iterator[tuple[str, Any]]:
        if is_tensor(described):
            yield path, described
        elif isinstance(described, (list, dict)):
            items = described.items() if isinstance(described, dict) else enumerate(described)
            for key, item in items:
                yield from walk(item, f"{path}.{key}" if path else str(key))

    return walk(describe(value, lambda tensor: tensor), "")


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the fields of a dataclass as its dict or slots store them; call no property."""
    stored = attributes_of(value)
    names = (field.name for field in dataclasses.fields(type(value)))
    return ((name, stored[name]) for name in names if name in stored)


def at_path(value: Any, path: list[str]) -> tuple[Any, ...]:
    """Return the item at a path inside a value, as a tuple of one or none."""
    for key in path:
        inside = None if type(value) in CONSTANTS or is_tensor(value) else contents_of(value)
        found = [item for name, item in inside or () if name == key]
        if not found:
            return ()
        value = found[0]
    return (value,)
