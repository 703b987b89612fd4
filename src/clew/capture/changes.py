"""Whether a value has changed since it was last looked at, without keeping it.

In come live values, out come `Look`s: identity, facts and, where those cannot tell, a checksum of
the content. Equal looks are an unchanged value. NaN equals itself, no tolerance hides anything.
Must not import torch: `capture.values`, which knows tensors, says how to look at them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.capture import structure
from clew.capture.plain import Array
from clew.events.digest import checksum

_MOST_LEAVES = 1000


@dataclass(frozen=True, slots=True)
class Look:
    """What a value looked like.

    `kind` is its class, `facts` its shape, dtype, device and the like, `memory` what tells its
    object and version apart from others, `content` a checksum or the value itself.
    """

    kind: str
    facts: tuple[tuple[str, Any], ...]
    memory: Any
    content: Any

    @property
    def same(self) -> tuple[Any, ...]:
        """Equal for values between which nothing has changed that can be seen."""
        return self.kind, self.facts, self.content


_tensor_look: list[Callable[[Any, bool], Look]] = []


def learn(tensor_look: Callable[[Any, bool], Look]) -> None:
    """Know how to look at tensors."""
    _tensor_look[:] = [tensor_look]


def look(value: Any, content: bool = True) -> Look:
    """A value as it is now. Without `content`, large tensors are told apart by version only."""
    if structure.is_tensor(value):
        return _tensor_look[0](value, content)
    if isinstance(value, np.ndarray):
        facts = (("dtype", str(value.dtype)), ("shape", value.shape), ("stride", value.strides))
        return Look("ndarray", facts, id(value), array_checksum(value))
    if isinstance(value, np.generic):
        return Look(type(value).__name__, (("dtype", str(value.dtype)),), 0, value.tobytes())
    if type(value) in structure.CONSTANTS:
        return Look(type(value).__name__, (), 0, _exact(value))
    return _container_look(value, content)


def _exact(value: Any) -> Any:
    """A constant such that equal means the same bits: NaN is itself, 0.0 is not -0.0."""
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return value


def _container_look(value: Any, content: bool) -> Look:
    """Containers by their leaves, anything else by its identity."""
    leaves: list[Look] = []
    room = [_MOST_LEAVES]

    def leaf(item: Any) -> Any:
        if room[0] > 0:
            room[0] -= 1
            own = item is not value or type(item) in structure.CONSTANTS
            leaves.append(look(item, content) if own else Look(type(item).__name__, (), 0, 0))
        return type(item).__name__

    described = structure.describe(value, leaf, 0, leaf)
    if isinstance(described, (list, dict)):
        contents = tuple(item.same for item in leaves)
        return Look(type(value).__name__, (("keys", _keys(described)),), id(value), contents)
    if isinstance(value, (set, frozenset)) and all(type(v) in structure.CONSTANTS for v in value):
        return Look(type(value).__name__, (), id(value), frozenset(map(_exact, value)))
    return Look(type(value).__name__, (), id(value), id(value))


def _keys(described: Any) -> Any:
    if isinstance(described, dict):
        return tuple((key, _keys(item)) for key, item in described.items())
    return tuple(map(_keys, described)) if isinstance(described, list) else None


def array_checksum(array: Array) -> int:
    """A checksum of an array's elements; for objects, of their identities."""
    if array.dtype.hasobject:
        if array.dtype.kind != "O":
            return 0
        array = np.array([id(item) for item in array.reshape(-1)], dtype=np.int64)
    flat = np.ascontiguousarray(array).reshape(-1)
    return checksum(flat.view(np.uint8)) if flat.nbytes else 0


def changes(before: Look | None, after: Look) -> list[str]:
    """What differs between two looks, in words; empty if nothing does.

    The most telling first: type, shape, dtype, device, layout, then the values.
    """
    if before is None:
        return ["new"]
    if before.kind != after.kind:
        return ["type"]
    old, new = dict(before.facts), dict(after.facts)
    found = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return found or ([] if before.content == after.content else ["values"])
