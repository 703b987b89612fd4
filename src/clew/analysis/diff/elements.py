"""What the elements of two values, where both were kept, say about how they differ.

Input: arrays. Output: how far apart they are as a phrase, and a simple relation such as `b is a
shifted by one along dimension 1`, empty if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

# Elements that differ by less than this part of the largest are equal but for rounding.
_CLOSE = 1e-5
# Of tensors with more axes, not every way to order them is tried.
_MOST_AXES = 5
# A shorter axis shows a shift or a vector along it by chance.
_SHORTEST = 3
# Elements further apart than so many representable numbers are not told in them.
_MOST_STEPS = 1_000_000
_WHOLE = {2: np.int16, 4: np.int32, 8: np.int64}


def distance_text(x: Array, y: Array, dtype: str) -> str:
    """Write how many elements differ and by how much; `dtype` is torch's name of their type."""
    wide_x, wide_y = (z.astype(np.float64).ravel() for z in (x, y))
    with np.errstate(all="ignore"):
        apart = np.abs(wide_x - wide_y)
        relative = np.nanmax(apart / np.maximum(np.abs(wide_x), 1e-30))
        cosine = float(wide_x @ wide_y / (np.linalg.norm(wide_x) * np.linalg.norm(wide_y)))
    wrong = int(np.count_nonzero(apart > 0))
    steps = _most_steps(x, y, dtype)
    return (
        f"{wrong:,} of {x.size:,} elements differ: by at most {np.nanmax(apart):.3g}, "
        f"relatively {relative:.3g}{steps}; cosine {cosine:.6f}"
    )


def _most_steps(x: Array, y: Array, dtype: str) -> str:
    """Write how many representable numbers lie between two elements at most, in words."""
    if x.dtype != y.dtype or x.dtype.kind != "f" or not (np.isfinite(x) & np.isfinite(y)).all():
        return ""
    whole = _WHOLE[x.dtype.itemsize]
    lowest = np.iinfo(whole).min
    # Seen as integers, floats of one sign are in order; negative ones count down from zero.
    places = [np.ascontiguousarray(z).view(whole).ravel() for z in (x, y)]
    ordered = [np.where(n < 0, float(lowest) - n.astype(np.float64), n) for n in places]
    most = float(np.abs(ordered[0] - ordered[1]).max())
    if dtype == "bfloat16":  # kept as float32, the lower half of whose bits is zero
        most /= 1 << 16
    return f", {most:,.0f} ulp" if most <= _MOST_STEPS else ""


def element_relation(x: Array, y: Array) -> str:
    """Write how `y`, of run b, comes from `x`, of run a."""
    if x.size != y.size or x.size < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return ""
    rounded = _rounded(x, y)
    if rounded:
        return rounded
    x, y = x.astype(np.float64), y.astype(np.float64)
    if not x.any() or not y.any():
        return ""
    for said in (*_moved(x, y), *_combined(x, y)):
        return said
    return ""


def _rounded(x: Array, y: Array) -> str:
    """Write that one is the other in a type that holds less."""
    if x.shape != y.shape or x.dtype.kind != "f" or y.dtype.kind not in "fiu":
        return ""
    for a, b, said in ((x, y, "b is a"), (y, x, "a is b")):
        if a.dtype.kind == "f" and not np.array_equal(a, b):
            for name, cast in _casts(a):
                if np.array_equal(cast, b):
                    return f"{said} rounded to {name}"
    return ""


def _casts(x: Array) -> Iterator[tuple[str, Array]]:
    """Give the elements as types that hold less keep them."""
    single = x.astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    # To the nearest, of two equally near the even one.
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    yield "bfloat16", (even << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        yield "float16", single.astype(np.float16)
    if x.dtype.itemsize > single.dtype.itemsize:
        yield "float32", single
    yield "whole numbers", np.trunc(x)


def _moved(x: Array, y: Array) -> Iterator[str]:
    """Give relations in which each element of one is an element of the other."""
    axes = tuple(range(x.ndim))
    if x.ndim == y.ndim <= _MOST_AXES:
        for order in permutations(axes):
            if order != axes and _are_close(x.transpose(order), y):
                yield f"b is a with its dimensions in the order {order}"
    if x.shape != y.shape:
        if _are_close(x.reshape(y.shape), y):
            yield "b is a in another shape"
        return
    for axis in axes:
        if x.shape[axis] < _SHORTEST:
            continue
        if _are_close(np.flip(x, axis), y):
            yield f"b is a reversed along dimension {axis}"
        one, other = (np.moveaxis(z, axis, 0) for z in (x, y))
        # What is the same all along an axis is shifted, too.
        if _are_close(one[1:], one[:-1]):
            continue
        if _are_close(one[:-1], other[1:]):
            yield f"b is a shifted by one along dimension {axis}"
        if _are_close(one[1:], other[:-1]):
            yield f"b is a shifted by one backwards along dimension {axis}"


def _combined(x: Array, y: Array) -> Iterator[str]:
    """Give relations in which b is a with one number, or one for each place along an axis."""
    if x.shape != y.shape:
        return
    more = y - x
    if np.ptp(more) <= _CLOSE * np.abs(more).max():
        yield f"b is a + {more.mean():.6g}"
    with np.errstate(all="ignore"):
        times = y / x
    for axis in range(x.ndim):
        others = tuple(other for other in range(x.ndim) if other != axis)
        if not others or x.shape[axis] < _SHORTEST or x.size < 2 * x.shape[axis]:
            continue
        if _is_along(more, others, float(np.abs(x).max())):
            yield f"b is a + a vector along dimension {axis}, as of a bias"
        largest = float(np.abs(times).max())
        varies = np.isfinite(largest) and np.ptp(times) > largest * _CLOSE
        if varies and _is_along(times, others, largest):
            yield f"b is a × a vector along dimension {axis}, as of a weight"


def _is_along(numbers: Array, others: tuple[int, ...], size: float) -> bool:
    """Return whether numbers differ along one axis alone, and not by rounding."""
    spread = np.ptp(numbers, axis=others).max()
    return bool(spread <= _CLOSE * size < np.abs(numbers).max())


def _are_close(x: Array, y: Array) -> bool:
    return x.shape == y.shape and bool(
        np.abs(x - y).max(initial=0.0) <= _CLOSE * np.abs(y).max(initial=0.0)
    )
