"""Read what an object stores: in its dict, in its slots, and in what it forwards to.

Comes in: an object of any class. Goes out: pairs of name and value. Only what Python itself stores
is read: no property, `__getattr__`, `__iter__` or `__class__` that the program defines runs.
Must not import torch.
"""

from __future__ import annotations

import types
import weakref
from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST_ITEMS = 1000
# How far an object is followed into what it forwards attributes to.
_FORWARDS = 3
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType)
# Libraries whose `shape` property is cheap and safe to call.
_FRAME_LIBRARIES = ("pandas", "polars")
_FRAMES = ("DataFrame", "Series")

_SEQUENCES = (list, tuple, deque)
# Modules of Python whose classes are keys, and have their text made by Python code.
_TEXT_MODULES = ("enum", "pathlib")

Pairs = list[tuple[str, Any]]
_modules: list[type] = []


def learn(module: type) -> None:
    """Set the class of modules, which are not opened: what they hold is not data."""
    _modules[:] = [module]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where objects of a class store their attributes.

    `held` returns the dict of an object, `slots` are read one by one. A class that defines
    `__getattr__` `forwards`: its users reach the attributes of its private objects by their names.
    """

    held: Callable[[Any], Any] | None
    slots: tuple[tuple[str, Any], ...]
    forwards: bool

    def attributes(self, value: Any) -> Pairs:
        pairs = [] if self.held is None else list(islice(self.held(value).items(), MOST_ITEMS))
        for name, slot in self.slots:
            try:
                pairs.append((name, slot.__get__(value)))
            except AttributeError:  # never assigned
                continue
        return pairs


_layouts: weakref.WeakKeyDictionary[type, _Layout] = weakref.WeakKeyDictionary()


def items_of(value: dict[Any, Any]) -> Pairs:
    """Return up to `MOST_ITEMS` items of a dict, with the text of each key.

    A key whose text only code of the program could make (a module, a parameter, which would print
    its numbers) is called by its class and position.
    """
    items = enumerate(islice(dict.items(value), MOST_ITEMS))
    return [
        (str(key) if _has_text(key) else f"{type(key).__name__}_{at}", item)
        for at, (key, item) in items
    ]


def _has_text(key: Any) -> bool:
    """Return whether Python itself makes the text of a key, and makes the same one in each run."""
    cls: Any = type(key)
    if cls in (str, int):
        return True
    if cls in (tuple, frozenset):
        return all(map(_has_text, key))
    maker = cls.__repr__ if cls.__str__ is object.__str__ else cls.__str__
    if isinstance(maker, types.FunctionType):
        return maker.__module__ in _TEXT_MODULES
    return maker is not object.__repr__


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object as its dict or slots store them."""
    return dict(_layout_of(type(value)).attributes(value))


def contents_of(value: Any, forwards: int = _FORWARDS) -> Pairs | None:
    """Return up to `MOST_ITEMS` items of a container or object; None if it cannot be opened."""
    cls = type(value)
    if issubclass(cls, dict):
        return items_of(value)
    if issubclass(cls, _SEQUENCES):
        base: Any = next(base for base in _SEQUENCES if issubclass(cls, base))
        items = list(islice(base.__iter__(value), MOST_ITEMS))
        fields = getattr(cls, "_fields", None) if base is tuple else None
        names = fields if isinstance(fields, tuple) else map(str, range(len(items)))
        return list(zip(names, items, strict=False))
    layout = _layout_of(cls)
    if layout is _CLOSED_LAYOUT:
        return None
    pairs = layout.attributes(value)
    if issubclass(cls, UserDict):
        data = next((item for name, item in pairs if name == "data"), None)
        return contents_of(data) if isinstance(data, dict) else pairs
    return _forwarded(pairs, forwards) if layout.forwards and forwards else pairs


def _forwarded(pairs: Pairs, forwards: int) -> Pairs:
    """Replace each private attribute by the attributes of the object it holds."""
    found = {name: item for name, item in pairs if not name.startswith("_")}
    for name, item in pairs:
        if name.startswith("_"):
            is_sequence = issubclass(type(item), _SEQUENCES)
            inner = None if is_sequence else contents_of(item, forwards - 1)
            for inner_name, inner_item in [(name, item)] if inner is None else inner:
                found.setdefault(inner_name, inner_item)
    return list(found.items())


def class_text(value: Any) -> str:
    """Return the name of a value's class, and the shape of a data frame."""
    cls = type(value)
    for base in cls.__mro__ if cls.__name__ in _FRAMES else ():
        if base.__module__.partition(".")[0] in _FRAME_LIBRARIES:
            shape = base.__dict__.get("shape")
            if isinstance(shape, property) and shape.fget is not None:
                return f"{cls.__name__} {list(shape.fget(value))}"
    return cls.__name__


def slots_of(cls: type) -> list[tuple[str, Any]]:
    """Return the slots that a class written in Python and its base classes declare."""
    return [
        (name, slot)
        for base in cls.__mro__
        if "__slots__" in base.__dict__
        for name, slot in list(base.__dict__.items())
        if isinstance(slot, types.MemberDescriptorType)
    ]


def _layout_of(cls: type) -> _Layout:
    found = _layouts.get(cls)
    if found is None:
        found = _layouts[cls] = _find_layout(cls)
    return found


_CLOSED_LAYOUT = _Layout(None, (), False)


def _find_layout(cls: type) -> _Layout:
    if issubclass(cls, (*_CLOSED, *_modules)):
        return _CLOSED_LAYOUT
    # Found as attribute lookup finds it. A `__dict__` that is a property is not called.
    above = (base.__dict__ for base in cls.__mro__)
    found = next((held["__dict__"] for held in above if "__dict__" in held), None)
    stored = types.GetSetDescriptorType | types.MemberDescriptorType
    held = found.__get__ if isinstance(found, stored) else None
    slots = tuple(slots_of(cls))
    if held is None and not slots:
        return _CLOSED_LAYOUT
    return _Layout(held, slots, any("__getattr__" in base.__dict__ for base in cls.__mro__))
