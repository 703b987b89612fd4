"""A checksum of bytes, at memory speed, the same on every machine.

Used for the digest of a value and the check of a payload. It notices flipped bits and signs, a
moved or missing block, two elements swapped; it is no defence against somebody who means harm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# What the algorithm is called in the manifest of a trace; another algorithm needs another name.
CHECKSUM = "rowsum63"

_WIDTH = 512
# Rows folded at a time: few enough to stay in the processor's cache.
_ROWS = 64
# No multiple of 8, so that the signs of narrower elements do not meet each other.
_SHIFT = 29
_PRIME = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Words = NDArray[np.uint64]


def checksum(data: Any) -> int:
    """A 63-bit checksum of anything that has bytes.

    The bytes are laid out as rows of words; the sums of all rows and of all columns, each
    weighted by its place, are mixed. A swap changes a row's or a column's sum.
    """
    raw = np.frombuffer(data, dtype=np.uint8)
    words = raw[: len(raw) // 8 * 8].view(np.uint64)
    whole = len(words) // _WIDTH * _WIDTH
    total = len(raw)
    if whole:
        for sums in _sums(words[:whole].reshape(-1, _WIDTH)):
            total = _mixed(total, sums)
    rest = words[whole:]
    total = _mixed(total, _folded(rest, np.empty_like(rest)))
    return _mixed(total, raw[len(words) * 8 :].astype(np.uint64)) >> 1


def _sums(block: Words) -> tuple[Words, Words]:
    columns = np.zeros(_WIDTH, dtype=np.uint64)
    rows = np.empty(len(block), dtype=np.uint64)
    room = np.empty((min(_ROWS, len(block)), _WIDTH), dtype=np.uint64)
    for start in range(0, len(block), _ROWS):
        folded = _folded(block[start : start + _ROWS], room)
        columns += folded.sum(axis=0)
        folded.sum(axis=1, out=rows[start : start + _ROWS])
    return columns, rows


def _folded(words: Words, room: Words) -> Words:
    """The words with their upper bits laid over lower ones, each word still telling itself apart.

    Sums lose what overflows: without this, the signs of an even number of float64.
    """
    folded = room[: len(words)]
    np.right_shift(words, _SHIFT, out=folded)
    return np.bitwise_xor(folded, words, out=folded)


def _mixed(total: int, sums: Words) -> int:
    few = len(sums) <= _WIDTH
    weights = _WEIGHTS[: len(sums)] if few else _weights(len(sums))
    product = (total ^ int(np.dot(sums, weights))) * _PRIME
    # The upper half too: in the lower one alone the topmost bits are lost.
    return (product >> 64 ^ product) & _MASK


def _weights(count: int) -> Words:
    # Odd, so that no change of one sum is lost.
    weights: Words = np.arange(1, 2 * count + 1, 2, dtype=np.uint64) * np.uint64(_PRIME)
    return weights


_WEIGHTS = _weights(_WIDTH)
