"""Statistics of numbers: what `values="stats"` tells of a tensor, computed with NumPy.

In come arrays, out go plain dicts of the fields of `Stats`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.events.digest import checksum

# Elements looked at together: few enough to stay in the processor's cache for every look.
_BLOCK = 1 << 17
_ROW = 1 << 10

NUMERIC_KINDS = "biufc"

Numbers: TypeAlias = NDArray[Any]
Statistics: TypeAlias = dict[str, float | int | str]


class Sums(NamedTuple):
    """What one pass over numbers finds."""

    low: float
    high: float
    zeros: int
    total: float
    squares: float


def array_statistics(array: Numbers) -> Statistics | None:
    """Statistics of a numeric array, None for any other."""
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


def moments(
    numbers: Numbers, in_pairs: bool, look: Callable[[Numbers], None] | None = None
) -> Statistics:
    """What the numbers come to; `look` is shown them piece by piece, while they are in the cache.

    With `in_pairs` they are the parts of complex numbers.
    """
    with np.errstate(all="ignore"):
        sums = _sums(numbers, look)
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


@np.errstate(all="ignore")
def extremes(numbers: Numbers) -> Statistics:
    """The smallest, the largest and the mean of flat floats alone, with counts of NaN and Inf."""
    ones = _ONES[numbers.dtype.char]
    low, high, total = float("inf"), float("-inf"), 0.0
    for at in range(0, len(numbers), _BLOCK):
        block = numbers[at : at + _BLOCK]
        # In rows, so that few ones are read beside the numbers.
        rows = len(block) // _ROW
        sums = np.dot(block[: rows * _ROW].reshape(rows, _ROW), ones[:_ROW])
        total += float(np.dot(sums, ones[:rows]))
        total += float(np.dot(block[rows * _ROW :], ones[: len(block) - rows * _ROW]))
        low = min(low, float(np.minimum.reduce(block)))
        high = max(high, float(np.maximum.reduce(block)))
    if not (isfinite(low) and isfinite(high) and isfinite(total)):  # NaN and Inf are in the total
        return moments(numbers, in_pairs=False)
    return {"min": low, "max": high, "mean": total / len(numbers), "nan": 0, "inf": 0}


def _sums(numbers: Numbers, look: Callable[[Numbers], None] | None = None) -> Sums:
    blocks = []
    for start in range(0, len(numbers), _BLOCK):
        block = numbers[start : start + _BLOCK]
        blocks.append(_sums_of_block(block))
        if look is not None:
            look(block)
    if len(blocks) == 1:
        return blocks[0]
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
