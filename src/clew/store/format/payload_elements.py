"""Bytes of one array into NumPy, exactly, without torch, after checking them.

Input: a payload. Output: a new array or a view of the bytes. Nothing is allocated by a claimed
size: the bytes must fill the shape. bf16 and the fp8 kinds, which NumPy lacks, become float32,
which represents them exactly.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from clew.errors import ClewError
from clew.events.vocabulary import Payload

Array = np.ndarray[Any, Any]

_NUMPY = {
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "complex64", "complex128", "bool",
}  # fmt: skip

# Dtypes of NumPy that can be recorded: no objects, records or subarrays.
_OWN_DTYPE = re.compile(r"[<|][USVMmbiufc]\d{1,9}(\[\d{0,9}[a-zA-Z]{1,7}\])?")
_HIGHEST_CHARACTER = 0x10FFFF
# The most axes that NumPy has since 2.0.
_MOST_AXES = 64

# (exponent bits, mantissa bits, bias, has infinities, NaN patterns of the low seven bits)
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7, False, {0x7F}),
    "float8_e5m2": (5, 2, 15, True, {0x7D, 0x7E, 0x7F}),
    "float8_e4m3fnuz": (4, 3, 8, False, set()),
    "float8_e5m2fnuz": (5, 2, 16, False, set()),
}
_POWERS_OF_TWO = "float8_e8m0fnu"
# Recorded dtypes whose elements get another size: recorded bytes, NumPy dtype.
_WIDENED = {
    "bfloat16": (2, np.float32), "complex32": (4, np.complex64), _POWERS_OF_TWO: (1, np.float32),
    **dict.fromkeys(_FLOAT8, (1, np.float32)),
}  # fmt: skip


def array_dtype(dtype: str) -> tuple[np.dtype[Any], int]:
    """Return the NumPy dtype of recorded elements, and the bytes of one recorded element.

    Raises ClewError if NumPy cannot represent them, ValueError if there is no such dtype.
    """
    if dtype in _WIDENED:
        size, widened = _WIDENED[dtype]
        return np.dtype(widened), size
    if dtype in _NUMPY:
        known = np.dtype(dtype)
    elif dtype.startswith("numpy:"):
        name = dtype.removeprefix("numpy:")
        if not _OWN_DTYPE.fullmatch(name):
            raise ValueError("only plain elements of a fixed size are data")
        known = np.dtype(name)
        if not known.itemsize or known.hasobject:
            raise ValueError("elements of no bytes hold no data")
    else:
        raise ClewError(
            f"there is no NumPy form of {dtype[:50]}; Value.tensor() gives it as torch has it"
        )
    return known, known.itemsize


def element_count(shape: tuple[Any, ...]) -> int:
    """Return the number of elements in a shape; ValueError if no array has it."""
    if len(shape) > _MOST_AXES or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("no array has such a shape")
    return prod(shape)


def check_filled(shape: tuple[object, ...], itemsize: int, nbytes: int) -> None:
    """Raise ValueError unless so many bytes fill a shape exactly."""
    if element_count(shape) * itemsize != nbytes:
        raise ValueError("the bytes do not fill the shape")


def array_of(payload: Payload) -> Array:
    """Return the elements as a new array, or as a view of the payload's bytes."""
    dtype, itemsize = array_dtype(payload.dtype)
    raw = np.frombuffer(payload.data, dtype=np.uint8)
    check_filled(payload.shape, itemsize, len(raw))
    array: Array
    if payload.dtype == "bool":
        array = raw != 0
    elif payload.dtype == "bfloat16":
        wide = raw.view(np.uint16).astype(np.uint32)
        wide <<= 16
        array = wide.view(np.float32)
    elif payload.dtype == "complex32":
        array = raw.view(np.float16).astype(np.float32).view(np.complex64)
    elif payload.dtype in _FLOAT8 or payload.dtype == _POWERS_OF_TWO:
        array = _float8_table(payload.dtype)[raw]
    else:
        array = raw.view(dtype)
        if dtype.kind == "U" and np.any(raw.view(np.uint32) > _HIGHEST_CHARACTER):
            raise ValueError("no character has such a number")
    return array.reshape(payload.shape)


@lru_cache
def _float8_table(dtype: str) -> Array:
    """Return the numbers that the 256 byte values represent."""
    if dtype == _POWERS_OF_TWO:
        powers = np.ldexp(np.ones(256, dtype=np.float64), np.arange(256) - 127)
        powers[255] = np.nan
        return powers.astype(np.float32)
    exponent_bits, mantissa_bits, bias, infinite, nans = _FLOAT8[dtype]
    table = np.empty(256, dtype=np.float32)
    for code in range(256):
        low = code & 0x7F
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = low >> mantissa_bits, low & ((1 << mantissa_bits) - 1)
        if low in nans or (code == 0x80 and dtype.endswith("fnuz")):
            table[code] = np.nan
        elif infinite and exponent == (1 << exponent_bits) - 1:
            table[code] = sign * np.inf
        elif exponent == 0:
            table[code] = sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            table[code] = sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    return table
