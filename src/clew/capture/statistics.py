"""Statistics and digest of a tensor's elements, in as few passes over them as it takes.

In comes an ordinary strided tensor, out goes a dict. To be called where autograd, dispatch modes
and NumPy's warnings are off; any thread will do.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clew.events.digest import checksum

_INTEGRAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
     torch.uint16, torch.uint32, torch.uint64}
)  # fmt: skip

# Elements looked at together: few enough to stay in the processor's cache for every look.
_BLOCK = 1 << 17


def statistics(tensor: Tensor) -> dict[str, float | int | str]:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    count = tensor.numel()
    found: dict[str, float | int | str] = {"count": count, "nan": 0, "inf": 0, "zeros": 0}
    if count:
        found.update(_moments(tensor))
    found["digest"] = _digest(tensor)
    return found


class Sums(NamedTuple):
    """What one pass over numbers finds."""

    low: float
    high: float
    zeros: int
    total: float
    squares: float


def _moments(tensor: Tensor) -> dict[str, float | int | str]:
    if tensor.dtype.is_complex:
        numbers = _in_memory_order(torch.view_as_real(tensor.contiguous()), tensor)
        sums = _sums(numbers)
        zeros = tensor.numel() - int(torch.count_nonzero(tensor))
    else:
        numbers = _in_memory_order(tensor, tensor)
        sums = _sums(numbers)
        zeros = sums.zeros
    nan = inf = 0
    if not np.isfinite(sums.low) or not np.isfinite(sums.high):
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


def _sums(numbers: np.ndarray[Any, Any]) -> Sums:
    if len(numbers) <= _BLOCK:
        return _sums_of_block(numbers)
    blocks = [
        _sums_of_block(numbers[start : start + _BLOCK]) for start in range(0, len(numbers), _BLOCK)
    ]
    lows, highs, zeros, totals, squares = zip(*blocks, strict=True)
    # NumPy's own, which hand a NaN on.
    return Sums(float(np.min(lows)), float(np.max(highs)), sum(zeros), sum(totals), sum(squares))


def _sums_of_block(numbers: np.ndarray[Any, Any]) -> Sums:
    tensor = torch.from_numpy(numbers)
    return Sums(
        float(numbers.min()),
        float(numbers.max()),
        int(np.count_nonzero(numbers == 0)),
        float(tensor.sum()),
        float(torch.dot(tensor, tensor)),
    )


def _mean_and_norm(numbers: np.ndarray[Any, Any], sums: Sums) -> tuple[float, float]:
    if np.isfinite(sums.squares) and np.isfinite(sums.total):
        return sums.total / len(numbers), sums.squares**0.5
    # Too large for the element type's own arithmetic.
    scale = float(np.abs(numbers).max())
    wide = numbers.astype(np.float64) / scale
    return float(wide.mean()) * scale, float(np.linalg.norm(wide)) * scale


def _in_memory_order(tensor: Tensor, owner: Tensor) -> np.ndarray[Any, Any]:
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


def _digest(tensor: Tensor) -> str:
    """A checksum of the elements: equal for equal content, whatever the memory layout."""
    if not tensor.numel():
        return f"{0:016x}"
    flat = tensor.contiguous().reshape(-1)
    # One element may have any stride and still count as contiguous.
    flat = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).cpu()
    return f"{checksum(_array(flat, tensor)):016x}"


def _array(flat: Tensor, owner: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a flat tensor as an array, to be used while `owner` lives.

    `Tensor.numpy()` forbids to resize that memory ever after, so it is only for copies of ours.
    """
    if flat.untyped_storage().data_ptr() != owner.untyped_storage().data_ptr():
        copied: np.ndarray[Any, Any] = flat.numpy()
        return copied
    size = flat.numel() * flat.element_size()
    memory: Any = (ctypes.c_ubyte * size).from_address(flat.data_ptr())
    return np.frombuffer(memory, dtype=str(flat.dtype).replace("torch.", ""))
