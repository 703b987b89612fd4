"""Walk into a value along the rest of an address: `cache.k.0`, `self.*.running_var`, `**`.

In: a value and segments. Out: the places that match, with the path that leads there.
Reads only what is stored (dicts, sequences, fields, instance attributes): no property runs, no
iterator moves, no tensor, array or string is taken apart. Must not know: torch or NumPy.
"""

from __future__ import annotations

import types
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from clew.address import Key, Segment, has_wildcard, join, segment_matches
from clew.keep.objects import slots_of

Child: TypeAlias = tuple[Segment, object]

DEPTH = 12
PLACES = 256

_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Walk:
    """The places that a path leads to, as (path, value); `cut` is the limit that left some out."""

    places: tuple[tuple[str, object], ...]
    cut: str | None = None


def follow(
    value: object, segments: Sequence[Segment], *, depth: int = DEPTH, places: int = PLACES
) -> Walk:
    """Find every place below `value` that the segments name.

    `*` and the like match fields, keys and indices; attributes that begin with `_` only where the
    pattern does. `**` is any number of steps; at the end it stands for whatever holds nothing
    further.

    >>> follow({"k": [1, 2]}, ["k", "*"]).places
    (('k.0', 1), ('k.1', 2))
    """
    walker = _Walker(depth, places)
    walker.go(value, tuple(segments), ())
    return Walk(tuple(walker.found.items()), walker.cut)


class _Walker:
    def __init__(self, depth: int, places: int) -> None:
        self.depth = depth
        self.places = places
        self.found: dict[str, object] = {}
        self.cut: str | None = None
        self.above: list[int] = []

    def go(self, value: object, rest: tuple[Segment, ...], path: tuple[Segment, ...]) -> None:
        if self.cut is not None and len(self.found) >= self.places:
            return
        if not rest:
            self.find(value, path)
        elif _is_deep(rest[0]):
            self.go_deep(value, rest, path)
        elif isinstance(rest[0], str) and has_wildcard(rest[0]):
            for name, child in children(value):
                if segment_matches(rest[0], name) and _is_offered(name, rest[0]):
                    self.go(child, rest[1:], (*path, name))
        else:
            for name, child in child_named(value, rest[0]):
                self.go(child, rest[1:], (*path, name))

    def go_deep(self, value: object, rest: tuple[Segment, ...], path: tuple[Segment, ...]) -> None:
        """Try the rest of a pattern here and everywhere below."""
        if id(value) in self.above:
            return  # an object that holds itself
        below = [child for child in children(value) if _is_offered(child[0], "*")]
        if rest[1:] or not below:
            self.go(value, rest[1:], path)
        if below and len(path) >= self.depth:
            self.cut = f"deeper than {self.depth} steps"
            return
        self.above.append(id(value))
        for name, child in below:
            self.go(child, rest, (*path, name))
        self.above.pop()

    def find(self, value: object, path: tuple[Segment, ...]) -> None:
        if len(self.found) >= self.places:
            self.cut = f"more than {self.places} places"
        else:
            self.found[join(path)] = value


def _is_deep(segment: Segment) -> bool:
    return segment == "**" and not isinstance(segment, Key)


def _is_offered(name: Segment, pattern: Segment) -> bool:
    """Return whether a wildcard may match: `_` attributes need a pattern with `_`; keys do not."""
    private = isinstance(name, str) and not isinstance(name, Key) and name.startswith("_")
    return not private or str(pattern).startswith("_")


def children(value: object) -> list[Child]:
    """Return what a value holds, by field, key or index."""
    return list(_shape_of(type(value)).children(value))


def child_named(value: object, segment: Segment) -> list[Child]:
    """Return what a value holds under one name: a list of one or none."""
    return _shape_of(type(value)).named(value, segment)


# How values of a type are taken apart


@dataclass(frozen=True, slots=True)
class _Shape:
    children: Callable[[Any], Iterator[Child]]
    named: Callable[[Any, Segment], list[Child]]


def _nothing(value: object) -> Iterator[Child]:
    return iter(())


def _grad_only(value: Any, segment: Segment) -> list[Child]:
    """Return the gradient of a tensor: of all that it holds, only that has an address."""
    if segment != "grad" or not _has(type(value), "retains_grad"):
        return []
    # Torch warns at the gradient of any other tensor, as it does not store it.
    return [("grad", value.grad)] if value.is_leaf or value.retains_grad else []


def _items(value: dict[Any, Any]) -> Iterator[Child]:
    # `dict.items`, as the `items` of a subclass may run any code.
    for key, child in list(dict.items(value)):
        yield (key if type(key) is int else Key(key)), child


def _item(value: dict[Any, Any], segment: Segment) -> list[Child]:
    keys: list[Any] = [str(segment)] if isinstance(segment, Key) else [segment, str(segment)]
    if not isinstance(segment, Key) and str(segment).isdecimal():
        keys.append(int(segment))
    for key in keys:
        found = dict.get(value, key, _MISSING)
        if found is not _MISSING:
            return [(key if type(key) is int else Key(key), found)]
    # A key may also be an enum, a tuple or any other object: then its text is its name.
    return [(name, child) for name, child in _items(value) if str(name) == str(segment)]


def _stored(value: Any) -> list[object]:
    # The iterator of the base, as that of a subclass may run any code.
    base = next(base for base in (list, tuple, deque) if isinstance(value, base))
    return list(base.__iter__(value))


def _elements(value: Any) -> Iterator[Child]:
    return iter(list(enumerate(_stored(value))))


def _element(value: Any, segment: Segment) -> list[Child]:
    if isinstance(segment, Key) or not str(segment).isdecimal():
        return []
    index, stored = int(segment), _stored(value)
    return [(index, stored[index])] if index < len(stored) else []


def _named_elements(value: Any) -> Iterator[Child]:
    return iter(list(zip(type(value)._fields, _stored(value), strict=False)))


def _named_element(value: Any, segment: Segment) -> list[Child]:
    fields = type(value)._fields
    if segment in fields:
        return [(segment, tuple.__getitem__(value, fields.index(segment)))]
    return _element(value, segment)


def _attributes(value: object) -> Iterator[Child]:
    own = _instance_dict(value)
    for part in _MODULE_DICTS if _is_module(own) else ():
        yield from [(str(name), child) for name, child in list(own[part].items())]
    hidden = _MODULE_DICTS if _is_module(own) else ()
    yield from [(str(name), child) for name, child in list(own.items()) if name not in hidden]
    for name, slot in slots_of(type(value)):
        try:
            yield name, slot.__get__(value)
        except AttributeError:
            pass  # a slot without a value


def _attribute(value: object, segment: Segment) -> list[Child]:
    name, own = str(segment), _instance_dict(value)
    if name in own:
        return [(name, own[name])]
    for part in _MODULE_DICTS if _is_module(own) else ():
        if name in own[part]:
            return [(name, own[part][name])]
    for slot_name, slot in slots_of(type(value)):
        if slot_name == name:
            try:
                return [(name, slot.__get__(value))]
            except AttributeError:
                return []
    return _class_attribute(type(value), name)


def _class_attribute(cls: type, name: str) -> list[Child]:
    for base in cls.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            # A property, a method: what has `__get__` would run code.
            return [] if _has(type(found), "__get__") else [(name, found)]
    return []


def _class_attributes(value: type, segment: Segment) -> list[Child]:
    return _class_attribute(value, str(segment))


def _user_dict(value: Any) -> Iterator[Child]:
    data = _instance_dict(value).get("data")
    return _items(data) if isinstance(data, dict) else _attributes(value)


def _user_dict_item(value: Any, segment: Segment) -> list[Child]:
    data = _instance_dict(value).get("data")
    found = _item(data, segment) if isinstance(data, dict) else []
    return found or _attribute(value, segment)


def _items_and_attributes(value: Any, segment: Segment) -> list[Child]:
    return _item(value, segment) or _attribute(value, segment)


def _instance_dict(value: object) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_module(own: dict[str, Any]) -> bool:
    """Return whether it is an nn.Module, by the dicts it has, without importing torch."""
    return all(isinstance(own.get(part), dict) for part in _MODULE_DICTS)


def _has(cls: type, name: str) -> bool:
    return any(name in base.__dict__ for base in cls.__mro__)


_shapes: weakref.WeakKeyDictionary[type, _Shape] = weakref.WeakKeyDictionary()


def _shape_of(cls: type) -> _Shape:
    found = _shapes.get(cls)
    if found is None:
        found = _shapes[cls] = _choose(cls)
    return found


_WHOLE = (str, bytes, bytearray, int, float, complex, type(None), range, set, frozenset, memoryview)
_CLOSED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CodeType)


def _choose(cls: type) -> _Shape:
    if _has(cls, "shape") and _has(cls, "dtype"):
        return _Shape(_nothing, _grad_only)
    if issubclass(cls, (*_WHOLE, *_CLOSED)):
        return _Shape(_nothing, lambda value, segment: [])
    if issubclass(cls, type | types.ModuleType):
        is_class = issubclass(cls, type)
        return _Shape(_nothing, _class_attributes if is_class else _attribute)
    if issubclass(cls, dict):
        return _Shape(_items, _items_and_attributes)
    if issubclass(cls, UserDict):
        return _Shape(_user_dict, _user_dict_item)
    if issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple):
        return _Shape(_named_elements, _named_element)
    if issubclass(cls, list | tuple | deque):
        return _Shape(_elements, _element)
    return _Shape(_attributes, _attribute)
