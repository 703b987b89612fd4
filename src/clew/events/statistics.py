"""Statistics of numbers: what `values="stats"` tells of a tensor, computed with NumPy.

In come arrays, out go plain dicts of the fields of `Stats`. Capture uses it on the spot, stores on
data that was kept, when somebody needs to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from clew.events.digest import checksum

Array: TypeAlias = np.ndarray[Any, Any]
Stats: TypeAlias = dict[str, float | int | str]

NUMERIC_KINDS = "biufc"


def array_statistics(array: Array, digest: int | None = None) -> Stats | None:
    """Statistics of a numeric array, None for any other; `digest` is that of its bytes if known."""
    if array.dtype.kind not in NUMERIC_KINDS or array.dtype.itemsize > 16:
        return None
    found: Stats = {"count": array.size, "nan": 0, "inf": 0, "zeros": 0}
    flat = np.ascontiguousarray(array).reshape(-1)
    with np.errstate(all="ignore"):
        if array.size:
            numbers = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
            if numbers.dtype.kind != "f" or numbers.dtype.itemsize > 8:
                numbers = numbers.astype(np.float64)
            found.update(moments(numbers, array.size - int(np.count_nonzero(flat)), _sums))
    if digest is None:
        little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        digest = checksum(little.view(np.uint8)) if array.size else 0
    found["digest"] = f"{digest:016x}"
    return found


def moments(
    numbers: Array, zeros: int, mean_and_norm: Callable[[Array], tuple[float, float]]
) -> Stats:
    """Minimum, maximum, mean, deviation and norm of the finite numbers, and counts of the rest."""
    low, high = float(numbers.min()), float(numbers.max())
    nan = inf = 0
    if not np.isfinite(low) or not np.isfinite(high):
        nan = int(np.count_nonzero(np.isnan(numbers)))
        inf = int(np.count_nonzero(np.isinf(numbers)))
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            nothing = dict.fromkeys(("min", "max", "mean", "std", "norm"), float("nan"))
            return {**nothing, "nan": nan, "inf": inf, "zeros": zeros}
        low, high = float(numbers.min()), float(numbers.max())
    mean, norm = mean_and_norm(numbers)
    variance = norm * norm / len(numbers) - mean * mean
    if variance < 1e-3 * mean * mean:
        # The difference of two large numbers: take the deviation from the mean itself.
        _, deviation = mean_and_norm(numbers.astype(np.float64) - mean)
        variance = deviation * deviation / len(numbers)
    return {
        "min": low, "max": high, "mean": mean, "std": max(variance, 0.0) ** 0.5, "norm": norm,
        "nan": nan, "inf": inf, "zeros": zeros,
    }  # fmt: skip


def _sums(numbers: Array) -> tuple[float, float]:
    scale = float(np.abs(numbers).max()) or 1.0
    wide = numbers.astype(np.float64) / scale
    return float(wide.mean()) * scale, float(np.linalg.norm(wide)) * scale
