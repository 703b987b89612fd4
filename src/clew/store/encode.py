"""Arrays back into payload bytes: the inverse of `decode` for what is stored as NumPy has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.records import Payload
from clew.store.decode import to_array


def encode(array: np.ndarray[Any, Any], dtype: str) -> bytes:
    """The bytes that a dtype of torch has for the numbers of an array, rounded where it must be."""
    if dtype == "bool":
        return array.astype(np.uint8).tobytes()
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16).tobytes()
    if dtype == "complex32":
        halves = np.ascontiguousarray(array, dtype=np.complex64).view(np.float32)
        return halves.astype(np.float16).tobytes()
    if dtype.startswith("float8"):
        return _float8(np.ascontiguousarray(array, dtype=np.float32), dtype)
    return array.astype(np.dtype(dtype)).tobytes()


def _float8(array: np.ndarray[Any, Any], dtype: str) -> bytes:
    """One byte per number; any NaN becomes the first there is."""
    table = to_array(Payload(dtype, (256,), bytes(range(256)))).view(np.uint32)
    codes = np.argsort(table, kind="stable")
    found = np.searchsorted(table[codes], array.view(np.uint32).reshape(-1))
    return codes[np.minimum(found, 255)].astype(np.uint8).tobytes()
