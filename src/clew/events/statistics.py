"""Statistics of numbers, computed with NumPy: what `values="stats"` records of a tensor.

Input: arrays. Output: plain dicts of the fields of `Stats`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, isnan
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from clew.events.digest import checksum

# Elements per block: few enough to stay in the processor's cache for every pass over them.
_BLOCK = 1 << 17
_ROW = 1 << 10

NUMERIC_KINDS = "biufc"

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Statistics: TypeAlias = dict[str, float | int | str]
# A function that gets numbers piece by piece.
Look: TypeAlias = Callable[[Numbers], None] | None


class Sums(NamedTuple):
    """Results of one pass over numbers."""

    low: float
    high: float
    zeros: int
    total: float
    squares: float


def array_statistics(array: Numbers) -> Statistics | None:
    """Return statistics of a numeric array, None for any other."""
    if array.dtype.kind not in NUMERIC_KINDS or array.dtype.itemsize > 16:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    if not len(flat):
        return {"count": 0, "nan": 0, "inf": 0, "zeros": 0, "digest": f"{0:016x}"}
    in_pairs = flat.dtype.kind == "c"
    numbers = flat.view(flat.real.dtype) if in_pairs else flat
    if numbers.dtype.char not in _ONES:
        numbers = numbers.astype(np.float64)
    little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    digest = checksum(little.view(np.uint8))
    return {"count": len(flat), **moments(numbers, in_pairs), "digest": f"{digest:016x}"}


@np.errstate(all="ignore")
def moments(numbers: Numbers, in_pairs: bool, look: Look = None, fill: Look = None) -> Statistics:
    """Return statistics of numbers; `look` gets them piece by piece, while they are in the cache.

    With `in_pairs` they are the parts of complex numbers. `fill` first writes the numbers, also
    piece by piece. Min and max are of the finite numbers; if there is Inf, and no NaN, `lowest` and
    `highest` are of all.
    """
    sums = _sums(numbers, look, fill)
    zeros = sums.zeros
    if in_pairs and zeros:
        zeros = int(np.count_nonzero(~numbers.reshape(-1, 2).any(axis=1)))
    nan = infinite = 0
    ends: Statistics = {}
    if not isfinite(sums.low) or not isfinite(sums.high):
        nan = int(np.count_nonzero(np.isnan(numbers)))
        infinite = int(np.count_nonzero(np.isinf(numbers)))
        if not nan:
            ends = {"lowest": sums.low, "highest": sums.high}
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            nothing = dict.fromkeys(("min", "max", "mean", "std", "norm"), float("nan"))
            return {**nothing, "nan": nan, "inf": infinite, "zeros": zeros, **ends}
        sums = _sums(numbers)
    mean, std, norm = _mean_std_norm(numbers, sums)
    return {
        "min": sums.low, "max": sums.high, "mean": mean, "std": std, "norm": norm,
        "nan": nan, "inf": infinite, "zeros": zeros, **ends,
    }  # fmt: skip


def _mean_std_norm(numbers: Numbers, sums: Sums) -> tuple[float, float, float]:
    """Return mean, standard deviation and Euclidean norm of finite numbers."""
    count = len(numbers)
    if sums.low == sums.high:
        return sums.low + 0.0, 0.0, abs(sums.low) * count**0.5  # a mean is not -0.0
    largest = max(abs(sums.low), abs(sums.high))
    scale = 1.0
    if isfinite(sums.squares) and isfinite(sums.total) and largest > _SMALL[numbers.dtype.char]:
        mean, norm = sums.total / count, sums.squares**0.5
    else:
        # Their squares are too large or too small for the element type.
        scale = largest
        wide = numbers.astype(np.float64) / scale
        mean, norm = float(wide.mean()), float(np.linalg.norm(wide))
    variance = norm * norm / count - mean * mean
    if variance < 1e-3 * mean * mean:
        # The difference of two large numbers has few digits; the squares of differences have all.
        apart = numbers.astype(np.float64) / scale - mean
        variance = float(np.dot(apart, apart)) / count
    return mean * scale, max(variance, 0.0) ** 0.5 * scale, norm * scale


def extremes(numbers: Numbers) -> Statistics:
    """Return min, max and mean of flat floats, with counts of NaN and Inf."""
    ones, large = _ONES[numbers.dtype.char], _LARGE[numbers.dtype.char]
    low, high, total = inf, -inf, 0.0
    for at in range(0, len(numbers), _BLOCK):
        block = numbers[at : at + _BLOCK]
        least, most = _ends(block)
        # Sums of any others need no `np.errstate`, which takes as long as they do.
        if not (-large < least and most < large):  # a NaN is in both
            return moments(numbers, in_pairs=False)
        low, high = min(low, least), max(high, most)
        total += _total(block, ones)
    return {"min": low, "max": high, "mean": total / len(numbers), "nan": 0, "inf": 0}


def _sums(numbers: Numbers, look: Look = None, fill: Look = None) -> Sums:
    ones = _ONES[numbers.dtype.char]
    is_zero = np.empty(min(len(numbers), _BLOCK), dtype=bool)
    low, high, zeros, total, squares = inf, -inf, 0, 0.0, 0.0
    for start in range(0, len(numbers), _BLOCK):
        block = numbers[start : start + _BLOCK]
        if fill is not None:
            fill(block)
        least, most = _ends(block)
        if not (least > 0 or most < 0):
            zeros += int(np.count_nonzero(np.equal(block, 0, out=is_zero[: len(block)])))
        total += _total(block, ones)
        squares += float(np.dot(block, block))
        if look is not None:
            look(block)
        # A NaN stays, once there is one.
        low = least if least < low or isnan(least) else low
        high = most if most > high or isnan(most) else high
    return Sums(low, high, zeros, total, squares)


def _ends(block: Numbers) -> tuple[float, float]:
    """Return the smallest and the largest; NaN if there is one.

    argmin and argmax run less code of NumPy than min and max, and between two ops of the program
    that code has to be loaded into the cache again.
    """
    return block.item(block.argmin()), block.item(block.argmax())


def _total(block: Numbers, ones: Numbers) -> float:
    """Return the sum as a product with ones, which BLAS computes several times as fast.

    It works in rows, so that few ones are read besides the numbers.
    """
    rows = len(block) // _ROW
    if not rows:
        return float(block.dot(ones[: len(block)]))
    sums = block[: rows * _ROW].reshape(rows, _ROW).dot(ones[:_ROW])
    total = float(sums.dot(ones[:rows]))
    if rows * _ROW < len(block):
        total += float(block[rows * _ROW :].dot(ones[: len(block) - rows * _ROW]))
    return total


_ONES = {np.dtype(kind).char: np.ones(_BLOCK, dtype=kind) for kind in (np.float32, np.float64)}
# Numbers up to here have a finite sum, even if they fill all memory.
_LARGE = {np.dtype(np.float32).char: 1e30, np.dtype(np.float64).char: 1e290}
# Squares of numbers down to here have all their digits.
_SMALL = {np.dtype(np.float32).char: 1e-15, np.dtype(np.float64).char: 1e-140}
