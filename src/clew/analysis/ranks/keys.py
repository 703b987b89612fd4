"""64-bit keys and digests that are the same on every rank, made for whole columns at once."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

_HEX = re.compile(r"[0-9a-f]{16}")


def hashed(text: str) -> int:
    """Return the hash of a text."""
    return xxh3_64_intdigest(text.encode("utf-8", "backslashreplace"))


def hashed_texts(texts: Sequence[str]) -> Hashes:
    """Return the hash of each text."""
    return np.array([hashed(text) for text in texts], dtype=np.uint64)


def parsed_digests(texts: Sequence[str]) -> Hashes:
    """Return digests as numbers, never 0: of 16 hexadecimal digits as they are, else hashed."""
    if all(map(_HEX.fullmatch, texts)):
        found = np.frombuffer(binascii.unhexlify("".join(texts)), ">u8").astype(np.uint64)
    else:
        found = hashed_texts(texts)
    return np.asarray(np.maximum(found, np.uint64(1)))


def mixed(one: Hashes, other: Hashes) -> Hashes:
    """Return a hash of two, that depends on their order (splitmix64)."""
    with np.errstate(over="ignore"):
        x = one * np.uint64(0x9E3779B97F4A7C15) + other + np.uint64(0x632BE59BD9B4E019)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def occurrences(keys: Hashes) -> Ints:
    """Return how often each key came before."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(keys)])
    counts = np.diff(np.append(begins, len(keys)))
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(begins, counts)
    return found
