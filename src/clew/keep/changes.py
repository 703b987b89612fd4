"""Detect whether a value has changed since it was last read, without keeping it.

Comes in: a live value. Goes out: a `ValueState`: identity, facts and, where those do not suffice, a
checksum of the content. A value whose state is equal is unchanged: NaN equals itself, and there is
no tolerance. Containers are read whole, up to a limit; a state says when it was reached.
Must not import torch: `keep` loads what reads tensors when there is one.
"""

from __future__ import annotations

import dataclasses
import marshal
import struct
from array import array
from collections import UserDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from clew import keep
from clew.events.digest import checksum
from clew.events.model import Gap
from clew.events.statistics import Numbers
from clew.events.vocabulary import Opaque
from clew.keep import nesting
from clew.program_errors import pass_on

_MOST_LEAVES = 1000
# Of one container: bytes of plain data (about ten milliseconds' worth), and how many bytes an item
# counts as that is no plain data and has to be read by itself.
_MOST_BYTES = 1 << 24
_BYTES_OF_AN_OBJECT = 1 << 10
_ITEMS_AT_ONCE = 1024


class ValueState(NamedTuple):
    """The state of a value at one moment.

    `kind` is its class, `facts` those of FACTS that it has, `memory` its object and version,
    `content` a hash or the value itself. `cut` says that it was too large to be read whole.
    """

    kind: str
    facts: tuple[Any, ...]
    memory: Any
    content: Any
    cut: bool = False

    @property
    def same(self) -> tuple[Any, ...]:
        """Return what is equal for two states between which no change can be seen."""
        return self.kind, self.facts, self.content


FACTS = ("shape", "dtype", "device", "layout", "requires_grad")


def state_of(value: Any) -> ValueState:
    """Return the state of a value as it is now."""
    if nesting.is_tensor(value):
        return keep.tensor_state(value)
    if isinstance(value, np.ndarray):
        facts = (value.shape, value.dtype, "cpu", value.strides)
        return ValueState("ndarray", facts, id(value), array_hash(value))
    if isinstance(value, np.generic):
        return ValueState(type(value).__name__, (value.shape, value.dtype), 0, value.tobytes())
    if type(value) in nesting.CONSTANTS:
        return ValueState(type(value).__name__, (), 0, _exact(value))
    if isinstance(value, (bytearray, array)):
        return ValueState(type(value).__name__, (len(value),), id(value), checksum(value))
    is_large = _length(value) > _MOST_LEAVES or isinstance(value, deque)
    return _whole_state(value) if is_large else _container_state(value)


def not_read_whole(where: str) -> Gap:
    """Return the gap of a variable whose states are cut."""
    return Gap(
        "changes of a variable",
        where,
        "it is too large to be looked at whole, so changes beyond its beginning are not seen",
        "name a part of it, or keep it in an array",
    )


def _exact(value: Any) -> Any:
    """Return a constant so that equal means the same bits: NaN is itself, 0.0 is not -0.0."""
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return value


def _container_state(value: Any) -> ValueState:
    """Return the state of a container by its leaves, of anything else by its identity."""
    leaves: list[ValueState] = []

    def leaf(item: Any) -> Any:
        if len(leaves) < _MOST_LEAVES:
            leaves.append(
                state_of(item) if item is not value else ValueState(type(item).__name__, (), 0, 0)
            )
        return type(item).__name__

    described = nesting.describe(value, leaf, 0, leaf)
    if isinstance(described, (list, dict)):
        if len(leaves) == _MOST_LEAVES or _is_cut(described):
            return _whole_state(value)
        contents = tuple(item.same for item in leaves)
        return ValueState(type(value).__name__, (_keys(described),), id(value), contents)
    if isinstance(value, (set, frozenset)) and all(type(v) in nesting.CONSTANTS for v in value):
        return ValueState(type(value).__name__, (), id(value), frozenset(map(_exact, value)))
    return ValueState(type(value).__name__, (), id(value), id(value))


def _keys(described: Any) -> Any:
    if isinstance(described, dict):
        return tuple((key, _keys(item)) for key, item in described.items())
    return tuple(map(_keys, described)) if isinstance(described, list) else None


def _is_cut(described: Any) -> bool:
    """Return whether a container is deeper, or has more items, than its description."""
    if isinstance(described, Opaque):
        return True
    if not isinstance(described, (list, dict)):
        return False
    inside = described.values() if isinstance(described, dict) else described
    return len(described) >= _MOST_LEAVES or any(map(_is_cut, inside))


def _whole_state(value: Any) -> ValueState:
    """Return the state of a container by a hash of everything in it."""
    room = [_MOST_BYTES]
    try:
        content: Any = _hash(value, room, set())
    except RuntimeError as odd:  # too deep, or written to by another thread
        pass_on(odd)
        content, room = id(value), [-1]
    return ValueState(type(value).__name__, (_length(value),), id(value), content, room[0] < 0)


def _hash(value: Any, room: list[int], around: set[int]) -> int:
    """Hash a value and all that is in it while `room` lasts; `around` are the open containers."""
    items = _items(value)
    if items is None:
        room[0] -= _BYTES_OF_AN_OBJECT
        return hash(state_of(value).same)
    if id(value) in around:
        return 0
    around.add(id(value))
    found: list[int] = []
    while room[0] >= 0 and (part := list(islice(items, _ITEMS_AT_ONCE))):
        try:
            # Version 2 of marshal writes no references: those depend on who else has the objects.
            plain = marshal.dumps(part, 2)
        except ValueError:
            found += [_hash(item, room, around) for item in part]
        else:
            room[0] -= len(plain)
            found.append(checksum(plain))
    around.discard(id(value))
    return hash((type(value).__name__, *found))


def _own(value: Any) -> type | None:
    """Return which of Python's containers a value is an instance of, None if of none."""
    return next((cls for cls in (dict, list, tuple, deque) if isinstance(value, cls)), None)


def _length(value: Any) -> int:
    value = value.data if isinstance(value, UserDict) else value
    cls: Any = _own(value)
    return 0 if cls is None else cls.__len__(value)


def _items(value: Any) -> Iterator[Any] | None:
    """Return an iterator over a container, None for anything else; no user code runs."""
    value = value.data if isinstance(value, UserDict) else value
    cls: Any = _own(value)
    if cls is not None:
        return iter(dict.items(value)) if cls is dict else cls.__iter__(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return nesting.fields_of(value)
    return None


def array_hash(array: Numbers) -> int:
    """Return a hash of an array's elements; for objects, of their identities."""
    if array.dtype.hasobject:
        if array.dtype.kind != "O":
            return 0
        array = np.array([id(item) for item in array.reshape(-1)], dtype=np.int64)
    flat = np.ascontiguousarray(array).reshape(-1)
    return checksum(flat.view(np.uint8))


def changes(before: ValueState | None, after: ValueState) -> list[str]:
    """Return the names of what differs between two states; empty if nothing does.

    In this order: type, shape, dtype, device, layout, requires_grad, then the values.
    """
    if before is None:
        return ["new"]
    if before.kind != after.kind:
        return ["type"]
    if len(before.facts) != len(after.facts):
        return ["shape"]
    pairs = zip(FACTS, before.facts, after.facts, strict=False)
    found = [name for name, old, new in pairs if old != new]
    return found or ([] if before.content == after.content else ["values"])
