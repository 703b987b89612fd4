"""Values made of several arrays, sparse and quantised ones, into NumPy without torch.

Input: a packed payload. Output: its parts as recorded, or one array: quantised numbers dequantised,
a sparse tensor as a dense one. The parts take as much memory as the payload; the size of a dense
array is limited, as a few bytes may claim any shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from clew.errors import ClewError
from clew.events.vocabulary import Payload, unpack
from clew.store.format.payload_elements import Array, array_of, element_count

# A sparse tensor that would take more bytes as a dense array is refused.
LARGEST_DENSE = 1 << 30

# Dtypes of tensors in NumPy: integers, floats and complex numbers up to 64 bits.
_TORCH_DTYPES = "?bBhHiIlLqQefdFD"
# The integer type in which torch counts elements.
_MOST_ELEMENTS = 1 << 63

_ROWS = ("crow_indices", "col_indices", "values")
_COLUMNS = ("ccol_indices", "row_indices", "values")
SPARSE = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": _ROWS, "sparse_bsr": _ROWS, "sparse_csc": _COLUMNS, "sparse_bsc": _COLUMNS,
}  # fmt: skip
QUANTIZED = "quantized"
_PER_TENSOR = {"integers"}
_PER_CHANNEL = {"integers", "scales", "zero_points"}


@dataclass(frozen=True, slots=True)
class Parts:
    """A value as recorded: its form, such as `sparse_coo` or `quantized`, and its arrays.

    `dtypes` are the recorded dtypes of the arrays, `facts` what else torch needs to rebuild the
    tensor: `scale` and `zero_point`, or `axis`.
    """

    form: str
    shape: tuple[int, ...]
    facts: dict[str, Any]
    arrays: dict[str, Array]
    dtypes: dict[str, str]


def to_parts(payload: Payload) -> Parts:
    """Read the parts of a packed payload; raise ValueError if they do not match its head."""
    form, facts, packed = unpacked(payload)
    arrays = {name: array_of(part) for name, part in packed.items()}
    if any(array.dtype.char not in _TORCH_DTYPES for array in arrays.values()):
        raise ValueError("its parts are not numbers")
    dtypes = {name: part.dtype for name, part in packed.items()}
    parts = Parts(form, payload.shape, facts, arrays, dtypes)
    check = {"sparse_coo": _check_coordinates, QUANTIZED: _check_quantized}
    check.get(form, _check_compressed)(parts)
    return parts


def unpacked(payload: Payload) -> tuple[str, dict[str, Any], dict[str, Payload]]:
    """Return form, facts and parts of a packed payload, those of its form and no others."""
    form, said, packed = unpack(payload)
    if element_count(payload.shape) >= _MOST_ELEMENTS:
        raise ValueError("no tensor has so many elements")
    facts: dict[str, Any] = {}
    if form in SPARSE:
        is_whole = set(packed) == set(SPARSE[form])
    elif form != QUANTIZED:
        raise ValueError(f"there is no {form[:50]!r} tensor")
    elif "scale" in said:
        facts = {"scale": float(said["scale"]), "zero_point": index(said["zero_point"])}
        is_whole = set(packed) == _PER_TENSOR and abs(facts["zero_point"]) < 1 << 31
    else:
        facts = {"axis": index(said["axis"])}
        is_whole = set(packed) == _PER_CHANNEL and facts["axis"] in range(len(payload.shape))
    if not is_whole:
        raise ValueError(f"its parts are not those of a {form} tensor")
    return form, facts, packed


def whole_array(payload: Payload) -> Array:
    """Return a packed value as one array; raise ClewError if a sparse one would be too large."""
    parts = to_parts(payload)
    if parts.form == QUANTIZED:
        return _dequantized(parts)
    size = _dense_bytes(parts)
    if size > LARGEST_DENSE:
        raise ClewError(
            f"a {parts.form} tensor of shape {list(parts.shape)} is too large to be written out "
            f"with its zeros: {size:,} bytes, more than {LARGEST_DENSE:,}. Value.tensor() gives "
            'it as it is; export("hdf5"), ("zarr") and ("pt") store its indices and values'
        )
    return _dense(parts)


def stored_numbers(payload: Payload) -> Array:
    """Return the numbers of a packed value that statistics are of: those stored, each once."""
    parts = to_parts(payload)
    if parts.form == QUANTIZED:
        return _dequantized(parts)
    return _added_up(parts) if parts.form == "sparse_coo" else parts.arrays["values"]


def _added_up(parts: Parts) -> Array:
    """Return the values of coordinates in order, added up where a coordinate repeats."""
    indices, values = parts.arrays["indices"], parts.arrays["values"]
    if not indices.size:
        return values if not len(values) or len(indices) else values.sum(axis=0, keepdims=True)
    places, at = np.unique(indices, axis=1, return_inverse=True)
    found = np.zeros((places.shape[1], *values.shape[1:]), dtype=values.dtype)
    np.add.at(found, at.reshape(-1), values)
    return found


def _dense_bytes(parts: Parts) -> int:
    return element_count(parts.shape) * parts.arrays["values"].itemsize


def _dense(parts: Parts) -> Array:
    if parts.form == "sparse_coo":
        return _from_coordinates(parts)
    if len(parts.shape) != 2:
        raise ClewError(
            f"there is no NumPy form of a batch of {parts.form} tensors; use Value.tensor()"
        )
    return _from_compressed(parts)


def _from_coordinates(parts: Parts) -> Array:
    values = parts.arrays["values"]
    dense = np.zeros(parts.shape, dtype=values.dtype)
    np.add.at(dense, tuple(parts.arrays["indices"]), values)
    return dense


def _check_coordinates(parts: Parts) -> None:
    shape, indices, values = parts.shape, parts.arrays["indices"], parts.arrays["values"]
    axes = indices.shape[0] if indices.ndim == 2 else -1
    if not 0 <= axes <= len(shape) or values.shape != (indices.shape[1], *shape[axes:]):
        raise ValueError("its indices and values do not fit its shape")
    for places, size in zip(indices, shape, strict=False):
        _check_within(places, size)


def _from_compressed(parts: Parts) -> Array:
    """Write out rows of elements or blocks, or columns of them."""
    starts, others, values = (parts.arrays[name] for name in SPARSE[parts.form])
    height, width = values.shape[1:] or (1, 1)
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    rows, columns = (owners, others) if SPARSE[parts.form] is _ROWS else (others, owners)
    dense = np.zeros(parts.shape, dtype=values.dtype)
    for row, column, value in zip(rows, columns, values, strict=True):
        dense[row * height : (row + 1) * height, column * width : (column + 1) * width] = value
    return dense


def _check_compressed(parts: Parts) -> None:
    """Check one matrix; a batch of matrices is only passed on, as parts or to torch."""
    if len(parts.shape) != 2:
        return
    starts, others, values = (parts.arrays[name] for name in SPARSE[parts.form])
    height, width = values.shape[1:] or (1, 1)
    if not height or not width or starts.ndim != 1 or others.shape != values.shape[:1]:
        raise ValueError("its indices and values do not fit each other")
    owners, across = parts.shape[0] // height, parts.shape[1] // width
    if SPARSE[parts.form] is _COLUMNS:
        owners, across = across, owners
    grows = np.all(starts[1:] >= starts[:-1])
    if len(starts) != owners + 1 or starts[0] != 0 or not grows or starts[-1] != len(others):
        raise ValueError("its rows do not add up")
    _check_within(others, across)


def _check_within(places: Array, size: int) -> None:
    if places.dtype.kind not in "iu":
        raise ValueError("its indices are no integers")
    if len(places) and not (places.min() >= 0 and places.max() < size):
        raise ValueError("its indices lie outside its shape")


def _dequantized(parts: Parts) -> Array:
    scale: object = parts.facts.get("scale")
    zero: Any = parts.facts.get("zero_point")
    if scale is None:
        shape = [1] * len(parts.shape)
        shape[parts.facts["axis"]] = -1
        scale, zero = (parts.arrays[n].reshape(shape) for n in ("scales", "zero_points"))
    integers = parts.arrays["integers"].astype(np.float64)
    return np.asarray((integers - zero) * scale, dtype=np.float32)


def _check_quantized(parts: Parts) -> None:
    integers = parts.arrays["integers"]
    if integers.dtype.kind not in "iu" or integers.shape != parts.shape:
        raise ValueError("its integers do not fill its shape")
    if "axis" in parts.facts:
        channels = (parts.shape[parts.facts["axis"]],)
        if any(parts.arrays[name].shape != channels for name in ("scales", "zero_points")):
            raise ValueError("its scales do not fit its channels")
