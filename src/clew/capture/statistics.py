"""Statistics and digest of a tensor's elements, in as few passes over them as it takes.

In comes a live tensor, or the bytes of a copy of one; out goes a dict. A live tensor is to be
looked at where autograd and dispatch modes are off; for a copy any thread will do.
"""

from __future__ import annotations

import ctypes
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.capture.torch_compat import unobserved, without_modes
from clew.events.digest import checksum

_INTEGRAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
     torch.uint16, torch.uint32, torch.uint64}
)  # fmt: skip

# Elements looked at together: few enough to stay in the processor's cache for every look.
_BLOCK = 1 << 17

Numbers = NDArray[Any]
Statistics = dict[str, float | int | str]


class Sums(NamedTuple):
    """What one pass over numbers finds."""

    low: float
    high: float
    zeros: int
    total: float
    squares: float


def statistics(tensor: Tensor) -> Statistics:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    count = tensor.numel()
    if not count:
        return {**_NOTHING}
    if tensor.dtype.is_complex:
        numbers = _in_memory_order(torch.view_as_real(tensor.contiguous()), tensor)
    else:
        numbers = _in_memory_order(tensor, tensor)
    found = _moments(numbers, tensor.dtype.is_complex)
    return {"count": count, **found, "digest": f"{_digest(tensor):016x}"}


def statistics_of_copy(data: Any, dtype: torch.dtype) -> Statistics:
    """The same of a copy, from its bytes in row-major order."""
    if not len(data):
        return {**_NOTHING}
    found = _moments(_floats(data, dtype), dtype.is_complex)
    return {
        "count": len(data) // dtype.itemsize, **found, "digest": f"{checksum(data):016x}"
    }  # fmt: skip


_NOTHING: Statistics = {"count": 0, "nan": 0, "inf": 0, "zeros": 0, "digest": f"{0:016x}"}


def _floats(data: Any, dtype: torch.dtype) -> Numbers:
    """The elements of a copy as floats, complex ones as pairs."""
    name = str(dtype).removeprefix("torch.")
    if name in ("float32", "float64"):
        return np.frombuffer(data, name)
    if name in ("complex64", "complex128"):
        return np.frombuffer(data, np.float32 if name == "complex64" else np.float64)
    if dtype in _INTEGRAL:
        return np.frombuffer(data, name).astype(np.float64)
    if name in ("float16", "complex32"):
        return np.frombuffer(data, np.float16).astype(np.float32)
    if name == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    with unobserved(), without_modes():
        raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        floats: Numbers = raw.view(dtype).to(torch.float32).numpy()
    return floats


def _moments(numbers: Numbers, in_pairs: bool) -> Statistics:
    with np.errstate(all="ignore"):
        sums = _sums(numbers)
        zeros = sums.zeros
        if in_pairs and zeros:
            zeros = int(np.count_nonzero(~numbers.reshape(-1, 2).any(axis=1)))
        nan = inf = 0
        if not isfinite(sums.low) or not isfinite(sums.high):
            nan = int(np.count_nonzero(np.isnan(numbers)))
            inf = int(np.count_nonzero(np.isinf(numbers)))
            numbers = numbers[np.isfinite(numbers)]
            if not len(numbers):
                nothing = dict.fromkeys(("min", "max", "mean", "std", "norm"), float("nan"))
                return {**nothing, "nan": nan, "inf": inf, "zeros": zeros}
            sums = _sums(numbers)
        mean, norm = _mean_and_norm(numbers, sums)
        variance = norm * norm / len(numbers) - mean * mean
        if variance < 1e-3 * mean * mean:
            # The difference of two large numbers: take the deviation from the mean itself.
            apart = numbers.astype(np.float64) - mean
            _, deviation = _mean_and_norm(apart, _sums(apart))
            variance = deviation * deviation / len(numbers)
    return {
        "min": sums.low, "max": sums.high, "mean": mean, "std": max(variance, 0.0) ** 0.5,
        "norm": norm, "nan": nan, "inf": inf, "zeros": zeros,
    }  # fmt: skip


def _sums(numbers: Numbers) -> Sums:
    if len(numbers) <= _BLOCK:
        return _sums_of_block(numbers)
    blocks = [
        _sums_of_block(numbers[start : start + _BLOCK]) for start in range(0, len(numbers), _BLOCK)
    ]
    lows, highs, zeros, totals, squares = zip(*blocks, strict=True)
    # NumPy's own, which hand a NaN on.
    return Sums(float(np.min(lows)), float(np.max(highs)), sum(zeros), sum(totals), sum(squares))


def _sums_of_block(numbers: Numbers) -> Sums:
    # The product with ones is a sum that BLAS takes, several times as fast.
    ones = _ONES[numbers.dtype.char][: len(numbers)]
    return Sums(
        float(numbers.min()),
        float(numbers.max()),
        int(np.count_nonzero(numbers == 0)),
        float(np.dot(numbers, ones)),
        float(np.dot(numbers, numbers)),
    )


_ONES = {np.dtype(kind).char: np.ones(_BLOCK, dtype=kind) for kind in (np.float32, np.float64)}


def _mean_and_norm(numbers: Numbers, sums: Sums) -> tuple[float, float]:
    if isfinite(sums.squares) and isfinite(sums.total):
        return sums.total / len(numbers), sums.squares**0.5
    # Too large for the element type's own arithmetic.
    scale = float(np.abs(numbers).max())
    wide = numbers.astype(np.float64) / scale
    return float(wide.mean()) * scale, float(np.linalg.norm(wide)) * scale


def _in_memory_order(tensor: Tensor, owner: Tensor) -> Numbers:
    """All elements as a flat float array, in any order, to be used while `owner` lives."""
    if not tensor.is_contiguous():
        # Transposed views of dense memory are flat in another order of their axes.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order).contiguous()
    flat = tensor.reshape(-1).cpu()
    if flat.dtype in _INTEGRAL:
        flat = flat.to(torch.float64)
    elif flat.dtype not in (torch.float32, torch.float64):
        flat = flat.to(torch.float32)
    return _array(flat, owner)


def _digest(tensor: Tensor) -> int:
    """A checksum of the elements: equal for equal content, whatever the memory layout."""
    flat = tensor.contiguous().reshape(-1)
    # One element may have any stride and still count as contiguous.
    flat = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).cpu()
    return checksum(_array(flat, tensor))


def _array(flat: Tensor, owner: Tensor) -> Numbers:
    """The memory of a flat tensor as an array, to be used while `owner` lives.

    `Tensor.numpy()` forbids to resize that memory ever after, so it is only for copies of ours.
    """
    if flat.untyped_storage().data_ptr() != owner.untyped_storage().data_ptr():
        copied: Numbers = flat.numpy()
        return copied
    size = flat.numel() * flat.element_size()
    memory: Any = (ctypes.c_ubyte * size).from_address(flat.data_ptr())
    return np.frombuffer(memory, dtype=str(flat.dtype).replace("torch.", ""))
