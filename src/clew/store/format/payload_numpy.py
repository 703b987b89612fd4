"""Payload bytes back into arrays, exactly, without torch.

bf16 and the fp8 kinds, which NumPy lacks, become float32: every value they have, float32 has.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clew.errors import BadTrace, ClewError
from clew.events.records import PARTS, Payload, unpack

_NUMPY = {
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "complex64", "complex128",
}  # fmt: skip

# Python objects that are no arrays.
PYTHON = frozenset({"str", "bytes", "int", "none"})

_LARGEST_DENSE = 1 << 32

# (exponent bits, mantissa bits, bias, has infinities, NaN patterns of the low seven bits)
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7, False, {0x7F}),
    "float8_e5m2": (5, 2, 15, True, {0x7D, 0x7E, 0x7F}),
    "float8_e4m3fnuz": (4, 3, 8, False, set()),
    "float8_e5m2fnuz": (5, 2, 16, False, set()),
}


def decode(payload: Payload | None, form: str) -> Any:
    """A payload as `"array"` or `"tensor"`, None if there is none; ClewError if it is damaged."""
    if payload is None:
        return None
    # Read once, whatever is asked of it.
    payload = Payload(payload.dtype, payload.shape, payload.data)
    try:
        if form == "tensor":
            from clew.store.format.payload_torch import to_tensor

            return to_tensor(payload)
        if form == "object":
            return to_object(payload)
        return to_array(payload)
    except ClewError:
        raise
    except Exception as broken:
        # Bytes of strangers: they may describe anything.
        raise BadTrace(
            f"{len(payload.data)} bytes are no {payload.dtype} of shape {list(payload.shape)}: "
            f"{type(broken).__name__}: {broken}"
        ) from broken


def described_array(payload: Payload, recorded: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Give dtype and shape of the array that a payload says it holds, without reading its bytes.

    `recorded` is the dtype of the tensor, which a payload in parts does not name. ClewError if
    there is no such array, or if it is larger than the payload can be.
    """
    shape = tuple(payload.shape)
    try:
        dtype = _array_dtype(recorded if payload.dtype == PARTS else payload.dtype)
        sound = all(type(size) is int and size >= 0 for size in shape)
    except (TypeError, ValueError):
        sound = False
    if sound and payload.dtype != PARTS:
        # An element takes a byte or more.
        sound = prod(shape) <= payload.nbytes or payload.dtype in PYTHON
    if not sound:
        raise BadTrace(
            f"{payload.nbytes} bytes are no {payload.dtype} of shape {list(payload.shape)}"
        )
    if payload.dtype == PARTS:
        _check_dense(shape, dtype.itemsize, "sparse or quantised")
    return dtype, shape


def _array_dtype(dtype: str) -> np.dtype[Any]:
    if dtype in _NUMPY or dtype == "bool":
        return np.dtype(dtype)
    if dtype == "complex32":
        return np.dtype(np.complex64)
    if dtype.startswith("numpy:"):
        return np.dtype(dtype.removeprefix("numpy:"))
    if dtype in PYTHON:
        return np.dtype(np.str_ if dtype == "str" else object)
    # bf16, the fp8 kinds, and quantised data once it is dequantised.
    return np.dtype(np.float32)


def _check_dense(shape: tuple[int, ...], itemsize: int, form: str) -> None:
    if prod(shape) * itemsize > _LARGEST_DENSE:
        raise ClewError(
            f"a {form} tensor of shape {list(shape)} is too large to be written out as NumPy; "
            "use Value.tensor()"
        )


def to_object(payload: Payload) -> Any:
    """A payload as the Python object it was, an array where it was one."""
    data = bytes(payload.data) if payload.dtype in PYTHON else b""
    if payload.dtype == "str":
        return data.decode("utf-8", "surrogatepass")
    if payload.dtype == "int":
        return int(data, 16)
    if payload.dtype == "none":
        return None
    if payload.dtype == "bytes":
        return data
    array = to_array(payload)
    return array if array.ndim else array.item()


def to_array(payload: Payload) -> np.ndarray[Any, Any]:
    """A payload as a NumPy array of its own; sparse ones dense, quantised ones dequantised."""
    if payload.dtype == PARTS:
        return _from_parts(payload)
    if any(type(size) is not int or size < 0 for size in payload.shape):
        raise ValueError("no array has such a shape")
    if payload.dtype in PYTHON:
        return np.asarray(to_object(payload), dtype=None if payload.dtype == "str" else object)
    raw = np.frombuffer(payload.data, dtype=np.uint8)
    array: np.ndarray[Any, Any]
    if payload.dtype == "bool":
        array = raw != 0
    elif payload.dtype in _NUMPY:
        array = raw.view(payload.dtype)
    elif payload.dtype == "bfloat16":
        array = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif payload.dtype == "complex32":
        halves = raw.view(np.float16).astype(np.float32)
        array = halves.view(np.complex64)
    elif payload.dtype in _FLOAT8:
        array = _float8_table(payload.dtype)[raw]
    elif payload.dtype == "float8_e8m0fnu":
        exponents = np.ldexp(np.ones(256, dtype=np.float64), np.arange(256) - 127)
        exponents[255] = np.nan
        array = exponents.astype(np.float32)[raw]
    elif payload.dtype.startswith("numpy:"):
        dtype = np.dtype(payload.dtype.removeprefix("numpy:"))
        if dtype.hasobject:
            raise ValueError("objects are no data")
        array = raw.view(dtype) if dtype.itemsize else np.zeros(payload.shape, dtype)
    else:
        raise ClewError(
            f"there is no NumPy form of {payload.dtype}; Value.tensor() gives it as torch has it"
        )
    shaped: np.ndarray[Any, Any] = array.reshape(payload.shape).copy()
    return shaped


def _from_parts(payload: Payload) -> np.ndarray[Any, Any]:
    form, facts, packed = unpack(payload)
    parts = {name: to_array(part) for name, part in packed.items()}
    if form == "quantized":
        return _dequantized(facts, parts)
    values = parts["values"]
    _check_dense(payload.shape, values.itemsize, form)
    dense = np.zeros(payload.shape, dtype=values.dtype)
    if form == "sparse_coo":
        np.add.at(dense, tuple(parts["indices"]), values)
    elif len(payload.shape) != 2:
        raise ClewError(f"there is no NumPy form of a batch of {form} tensors; use Value.tensor()")
    else:
        by_row = "crow_indices" in parts
        starts = parts["crow_indices" if by_row else "ccol_indices"]
        others = parts["col_indices" if by_row else "row_indices"]
        if np.any(np.diff(starts) < 0) or starts[-1] != len(others):
            raise ValueError("its rows do not add up")
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        rows, columns = (owners, others) if by_row else (others, owners)
        height, width = values.shape[1:] or (1, 1)
        for row, column, value in zip(rows, columns, values, strict=True):
            block = dense[row * height : (row + 1) * height, column * width : (column + 1) * width]
            block[...] = value
    return dense


def _dequantized(
    facts: dict[str, Any], parts: dict[str, np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    integers = parts["integers"].astype(np.int64)
    if "scale" in facts:
        scaled = (integers - facts["zero_point"]) * np.float64(facts["scale"])
    else:
        shape = [1] * integers.ndim
        shape[facts["axis"]] = -1
        zero_points = parts["zero_points"].astype(np.int64).reshape(shape)
        scaled = (integers - zero_points) * parts["scales"].astype(np.float64).reshape(shape)
    return np.asarray(scaled, dtype=np.float32)


def _float8_table(dtype: str) -> np.ndarray[Any, Any]:
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
