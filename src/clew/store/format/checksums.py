"""Checksums of payloads: the one written today, and those of earlier traces.

The manifest names the algorithm. `rowsum63` was written by version 2 and the first of version 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.events.digest import CHECKSUM, checksum

Checksum: TypeAlias = Callable[[Any], int]

_WIDTH = 512
_SHIFT = 29
_PRIME = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

_Words: TypeAlias = NDArray[np.uint64]


def rowsum63(data: Any) -> int:
    """Sum rows and columns of 64-bit words, each weighted by its place, into 63 bits."""
    raw = np.frombuffer(data, dtype=np.uint8)
    words = raw[: len(raw) // 8 * 8].view(np.uint64)
    whole = len(words) // _WIDTH * _WIDTH
    total = len(raw)
    if whole:
        block = _folded(words[:whole]).reshape(-1, _WIDTH)
        for axis in (0, 1):
            total = _mixed(total, block.sum(axis=axis, dtype=np.uint64))
    total = _mixed(total, _folded(words[whole:]))
    return _mixed(total, raw[len(words) * 8 :].astype(np.uint64)) >> 1


def _folded(words: _Words) -> _Words:
    folded: _Words = (words >> np.uint64(_SHIFT)) ^ words
    return folded


def _mixed(total: int, sums: _Words) -> int:
    weights = np.arange(1, 2 * len(sums) + 1, 2, dtype=np.uint64) * np.uint64(_PRIME)
    product = (total ^ int(np.dot(sums, weights))) * _PRIME
    return (product >> 64 ^ product) & _MASK


CHECKSUMS: dict[str, Checksum] = {CHECKSUM: checksum, "rowsum63": rowsum63}
