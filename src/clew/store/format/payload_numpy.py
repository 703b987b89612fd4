"""Payload bytes back into arrays and Python objects, exactly, without torch.

Input: bytes from an untrusted file, and their description in a table. Output: data, or a `BadTrace`
with the reason. Reading takes a few times the memory of the bytes, whatever they claim.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import store
from clew.errors import BadTrace, ClewError
from clew.events.vocabulary import PARTS, Payload
from clew.optional_packages import optional_package
from clew.program_errors import pass_on
from clew.store.format.payload_elements import (
    Array,
    array_dtype,
    array_of,
    check_filled,
    element_count,
)
from clew.store.format.payload_parts import stored_numbers, to_parts, whole_array

# Python objects that are no arrays.
PYTHON = frozenset({"str", "bytes", "int", "none"})

# Python writes no integer that is much longer.
_MOST_BITS = 14_000
_SHOWN_AXES = 8


def decode(payload: Payload | None, form: str) -> Any:
    """Read a payload, None if there is none; raise BadTrace if its bytes are not as described.

    | form | result |
    |---|---|
    | `"array"` | an array: sparse tensors as dense, quantised ones dequantised |
    | `"tensor"` | the torch tensor |
    | `"object"` | the Python object, or an array if it was one |
    | `"parts"` | the arrays of a sparse or quantised tensor, None for any other |
    | `"numbers"` | what statistics are of: of a sparse tensor the stored values, added up |
    """
    if payload is None:
        return None
    # Read the bytes once: `data` may be fetched from a file each time.
    payload = Payload(payload.dtype, payload.shape, payload.data)
    try:
        return _decoded(payload, form)
    except ClewError:
        raise
    except Exception as broken:
        pass_on(broken)
        # Bytes from an untrusted file may cause any exception.
        raise _bad(payload, f"{type(broken).__name__}: {str(broken)[:200]}") from broken


def _decoded(payload: Payload, form: str) -> object:
    if form == "tensor":
        optional_package("torch", "Value.tensor()")
        return store.to_tensor(payload)
    if form == "parts":
        return to_parts(payload) if payload.dtype == PARTS else None
    if form == "object":
        return to_object(payload)
    if form == "numbers" and payload.dtype == PARTS:
        return stored_numbers(payload)
    return to_array(payload)


def _bad(payload: Payload, why: str) -> BadTrace:
    shape = ", ".join(map(str, payload.shape[:_SHOWN_AXES]))
    more = ", …" if len(payload.shape) > _SHOWN_AXES else ""
    what = "sparse or quantised tensor" if payload.dtype == PARTS else payload.dtype[:50]
    return BadTrace(f"{payload.nbytes:,} bytes are no {what} of shape [{shape}{more}]: {why}")


def described_array(payload: Payload) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return dtype and shape of the array that a payload declares, without reading its bytes.

    The dtype is None for a sparse or quantised value, which is several arrays. Raises ClewError if
    there is no such array, or if its size is not that of the payload.
    """
    shape = tuple(payload.shape)
    try:
        if payload.dtype == PARTS:
            element_count(shape)
            return None, shape
        if payload.dtype in PYTHON:
            return np.dtype(np.str_ if payload.dtype == "str" else object), shape
        dtype, itemsize = array_dtype(payload.dtype)
        check_filled(shape, itemsize, payload.nbytes)
    except (TypeError, ValueError) as wrong:
        raise _bad(payload, str(wrong)) from wrong
    return dtype, shape


def to_object(payload: Payload) -> Any:
    """Return a payload as the Python object it was, or as an array if it was one."""
    if payload.dtype not in PYTHON:
        array = to_array(payload)
        return array if array.ndim else array.item()
    data = bytes(payload.data)
    if payload.dtype == "str":
        return data.decode("utf-8", "surrogatepass")
    if payload.dtype == "int":
        return int(data, 16)
    return data if payload.dtype == "bytes" else None


def to_array(payload: Payload) -> Array:
    """Return a payload as an array that shares nothing with it."""
    if payload.dtype == PARTS:
        array = whole_array(payload)
    elif payload.dtype in PYTHON:
        held = to_object(payload)
        if isinstance(held, int) and held.bit_length() > _MOST_BITS:
            raise ClewError(
                f"an integer of {held.bit_length():,} bits has no NumPy form; Value.item() gives it"
            )
        array = np.asarray(held, dtype=None if payload.dtype == "str" else object)
    else:
        array = array_of(payload)
    raw = np.frombuffer(payload.data, dtype=np.uint8)
    return array.copy() if np.may_share_memory(array, raw) else array
