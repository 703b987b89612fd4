"""Whether a value has changed since it was last looked at, without keeping it.

In come live values, out come `Look`s: identity, facts and, where those cannot tell, a checksum of
the content. Equal looks are an unchanged value. NaN equals itself, no tolerance hides anything.
Must not import torch: `capture.values`, which knows tensors, says how to look at them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from clew.capture import structure
from clew.events.digest import checksum
from clew.events.statistics import Numbers

_MOST_LEAVES = 1000


class Look(NamedTuple):
    """What a value looked like.

    `kind` is its class, `facts` those of FACTS that it has, `memory` what tells its object and
    version apart from others, `content` a hash, or the value itself.
    """

    kind: str
    facts: tuple[Any, ...]
    memory: Any
    content: Any

    @property
    def same(self) -> tuple[Any, ...]:
        """Equal for values between which nothing has changed that can be seen."""
        return self.kind, self.facts, self.content


FACTS = ("shape", "dtype", "device", "layout", "requires_grad")

_tensor_look: list[Callable[[Any], Look]] = []


def learn(tensor_look: Callable[[Any], Look]) -> None:
    """Know how to look at tensors."""
    _tensor_look[:] = [tensor_look]


def look(value: Any) -> Look:
    """A value as it is now."""
    if structure.is_tensor(value):
        return _tensor_look[0](value)
    if isinstance(value, np.ndarray):
        facts = (value.shape, value.dtype, "cpu", value.strides)
        return Look("ndarray", facts, id(value), array_hash(value))
    if isinstance(value, np.generic):
        return Look(type(value).__name__, (value.shape, value.dtype), 0, value.tobytes())
    if type(value) in structure.CONSTANTS:
        return Look(type(value).__name__, (), 0, _exact(value))
    return _container_look(value)


def _exact(value: Any) -> Any:
    """A constant such that equal means the same bits: NaN is itself, 0.0 is not -0.0."""
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return value


def _container_look(value: Any) -> Look:
    """Containers by their leaves, anything else by its identity."""
    leaves: list[Look] = []
    room = [_MOST_LEAVES]

    def leaf(item: Any) -> Any:
        if room[0] > 0:
            room[0] -= 1
            leaves.append(look(item) if item is not value else Look(type(item).__name__, (), 0, 0))
        return type(item).__name__

    described = structure.describe(value, leaf, 0, leaf)
    if isinstance(described, (list, dict)):
        contents = tuple(item.same for item in leaves)
        return Look(type(value).__name__, (_keys(described),), id(value), contents)
    if isinstance(value, (set, frozenset)) and all(type(v) in structure.CONSTANTS for v in value):
        return Look(type(value).__name__, (), id(value), frozenset(map(_exact, value)))
    return Look(type(value).__name__, (), id(value), id(value))


def _keys(described: Any) -> Any:
    if isinstance(described, dict):
        return tuple((key, _keys(item)) for key, item in described.items())
    return tuple(map(_keys, described)) if isinstance(described, list) else None


def array_hash(array: Numbers) -> int:
    """A hash of an array's elements; for objects, of their identities."""
    if array.dtype.hasobject:
        if array.dtype.kind != "O":
            return 0
        array = np.array([id(item) for item in array.reshape(-1)], dtype=np.int64)
    flat = np.ascontiguousarray(array).reshape(-1)
    return checksum(flat.view(np.uint8))


def changes(before: Look | None, after: Look) -> list[str]:
    """What differs between two looks, in words; empty if nothing does.

    The most telling first: type, shape, dtype, device, layout, then the values.
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
