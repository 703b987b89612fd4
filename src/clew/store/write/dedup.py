"""Identical content once: finds bytes that were stored before, so that they are only pointed at.

In come payloads, out come the bytes they share with an earlier one, or the place where those lie.
A checksum finds the candidate, a comparison of every byte decides: what differs is never merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from clew.events.digest import checksum
from clew.events.records import Payload

# Below this a pointer takes as much room as the bytes.
_SMALLEST = 64
# Contents remembered; when there are more, those met first are forgotten, and stored again should
# they come again.
_MOST = 1 << 14
_PIECE = 4 << 20

# dtype, number of bytes, checksum
Key = tuple[str, int, int]


def key_of(payload: Payload, data: memoryview) -> Key:
    """What contents that may be identical have in common."""
    known = payload.checksum
    return payload.dtype, len(data), checksum(data) if known is None else known


class KeptContents:
    """The contents kept in memory."""

    def __init__(self) -> None:
        self._known: dict[Key, Any] = {}

    def shared(self, payload: Payload) -> Payload:
        """The payload, on the bytes of an earlier one with the same content if there is one."""
        data = memoryview(payload.data).cast("B")
        if len(data) < _SMALLEST:
            return payload
        key = key_of(payload, data)
        earlier = self._known.get(key)
        if earlier is None:
            _remember(self._known, key, payload.data)
        elif _equal(earlier, data):
            return payload._replace(data=earlier)
        return payload


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Where content lies: in a shard, or in the row of a value, which has a digest to compare."""

    value: int
    shard: int | None
    offset: int | None
    digest: bytes


class WrittenContents:
    """Where the contents written to one rank's files lie.

    `read` gives bytes of a shard back; OSError where they are not there any more.
    """

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        self._read = read
        self._known: dict[Key, StoredAt] = {}

    def find(self, key: Key, data: memoryview) -> StoredAt | None:
        """Where the same content lies, None if it was not written yet."""
        spot = self._known.get(key)
        if spot is None:
            return None
        if spot.shard is None or spot.offset is None:
            same = spot.digest == strong_digest(data)
        else:
            same = self._holds(spot.shard, spot.offset, data)
        return spot if same else None

    def add(self, key: Key, spot: StoredAt) -> None:
        """Remember where content lies."""
        if key[1] >= _SMALLEST and key not in self._known:
            _remember(self._known, key, spot)

    def _holds(self, shard: int, offset: int, data: memoryview) -> bool:
        try:
            return all(
                _equal(self._read(shard, offset + at, len(piece)), piece)
                for at in range(0, len(data), _PIECE)
                for piece in [data[at : at + _PIECE]]
            )
        except OSError:
            return False


def _remember(known: dict[Key, Any], key: Key, content: Any) -> None:
    if len(known) >= _MOST:
        for old in list(known)[: _MOST // 2]:
            del known[old]
    known[key] = content


def strong_digest(data: Any) -> bytes:
    """A digest that no two contents share, for those too small to be read back one by one."""
    return blake2b(data, digest_size=16).digest()


def _equal(one: Any, other: Any) -> bool:
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))
