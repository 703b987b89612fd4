"""Checksum of bytes, faster than memory is read, the same on every machine.

Used for the digest of a value, to check a payload, and to notice changes. It is not cryptographic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xxhash import xxh3_64, xxh3_64_intdigest

# The name of the algorithm in the manifest of a trace; another algorithm needs another name.
CHECKSUM = "xxh3"


def checksum(data: Any) -> int:
    """Return the 64-bit XXH3 of bytes without its last bit, as columns hold signed numbers."""
    return xxh3_64_intdigest(data) >> 1


class RunningChecksum:
    """The checksum of bytes that come piece by piece."""

    def __init__(self) -> None:
        self._hash = xxh3_64()
        self.add: Callable[[Any], None] = self._hash.update

    def result(self) -> int:
        return self._hash.intdigest() >> 1
