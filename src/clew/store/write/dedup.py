"""Store identical content once: find bytes that were stored before, to refer to them.

Input: payloads. Output: the bytes they share with an earlier one, or where those are stored. A
checksum finds the candidate, a comparison of every byte decides: different content is never merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from clew.events.digest import checksum
from clew.events.vocabulary import Payload

# Below this size a reference takes as much room as the bytes.
_SMALLEST = 64
# The most contents remembered; beyond that the oldest are dropped, and stored again if they recur.
_MOST = 1 << 14
_PIECE = 4 << 20

# dtype, number of bytes, checksum
Key = tuple[str, int, int]


def key_of(payload: Payload, data: memoryview) -> Key:
    """Return a key that identical contents share."""
    known = payload.checksum
    return payload.dtype, len(data), checksum(data) if known is None else known


class KeptContents:
    """Contents in memory."""

    def __init__(self) -> None:
        self._known: dict[Key, object] = {}

    def shared(self, payload: Payload) -> Payload:
        """Return the payload, with the bytes of an earlier one if the content is the same."""
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
    """Where content is stored: in a shard, or in the row of a value, with a digest to compare."""

    value: int
    shard: int | None
    offset: int | None
    digest: bytes


class WrittenContents:
    """Where the contents written to one rank's files are stored.

    `read` reads bytes of a shard; OSError if they are not there any more.
    """

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        self._read = read
        self._known: dict[Key, StoredAt] = {}

    def find(self, key: Key, data: memoryview) -> StoredAt | None:
        """Return where the same content is stored, None if it was not written yet."""
        spot = self._known.get(key)
        if spot is None:
            return None
        if spot.shard is None or spot.offset is None:
            same = spot.digest == strong_digest(data)
        else:
            same = self._holds(spot.shard, spot.offset, data)
        return spot if same else None

    def add(self, key: Key, spot: StoredAt) -> None:
        """Remember where content is stored."""
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
    """Return a cryptographic digest, for contents too small to be read back and compared."""
    return blake2b(data, digest_size=16).digest()


def _equal(one: Any, other: Any) -> bool:
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))
