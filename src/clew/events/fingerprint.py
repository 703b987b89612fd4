"""Fingerprints: what `values="fingerprint"` records of a tensor beyond its statistics.

Input: numbers as NumPy, or the packed form that is recorded. Output: `Fingerprint`, and the packed
form: float64s, little-endian, that say how many axes there are, their sizes, the sums of x, |x|,
x² and |x|³, and then the sums along each axis. Non-finite numbers add nothing to any sum. A complex
number is two numbers, along a last axis of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan, prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from clew.events.model import Data

Floats = NDArray[np.float64]

# Only the last axes of a tensor with more than so many have sums.
MOST_AXES = 8
# An axis longer than this is cut into blocks, with one sum for each.
MOST_BINS = 32
SUMS = ("total", "absolute", "squares", "cubes")
# Numbers that are converted to float64 at a time.
_TILE = 1 << 16


@dataclass(frozen=True, slots=True)
class Fingerprint(Data):
    """Sums that equal tensors share, whatever the layout, and that shards add up to.

    `shape` has a last axis of 2 for complex numbers. `count` is of all numbers, `nonfinite` of NaN
    and Inf; the rest is of the finite ones: the sums of x, |x|, x² and |x|³, the extremes (None
    without any), and in `marginals`, for each axis, the sums of its slices in order. An axis longer
    than 32 is cut into equal blocks, with one sum for each: the length of a block is the smallest
    power of two that gives at most 32. An axis without sums (not known) has none.
    """

    shape: tuple[int, ...]
    count: int
    nonfinite: int
    total: float
    absolute: float
    squares: float
    cubes: float
    min: float | None
    max: float | None
    marginals: tuple[tuple[float, ...], ...]

    def merge(self, other: Fingerprint, axis: int) -> Fingerprint:
        """Return the fingerprint of this tensor and another, concatenated along an axis.

        The sums along that axis stay known if this part ends where a block of the whole does.
        """
        if not 0 <= axis < len(self.shape) or _without(self.shape, axis) != _without(
            other.shape, axis
        ):
            raise ValueError(
                f"tensors of shapes {self.shape} and {other.shape} are no shards along axis {axis}"
            )
        sizes = list(self.shape)
        sizes[axis] += other.shape[axis]
        marginals = [
            _joined(mine, self.shape[axis], theirs, other.shape[axis])
            if at == axis
            else _added(mine, theirs)
            for at, (mine, theirs) in enumerate(zip(self.marginals, other.marginals, strict=True))
        ]
        return Fingerprint(
            tuple(sizes), self.count + other.count, self.nonfinite + other.nonfinite,
            self.total + other.total, self.absolute + other.absolute,
            self.squares + other.squares, self.cubes + other.cubes,
            min((x for x in (self.min, other.min) if x is not None), default=None),
            max((x for x in (self.max, other.max) if x is not None), default=None),
            tuple(marginals),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, with lists for tuples."""
        return {
            **{name: getattr(self, name) for name in ("count", "nonfinite", *SUMS, "min", "max")},
            "shape": list(self.shape),
            "marginals": [list(sums) for sums in self.marginals],
        }


def block_of(size: int) -> int:
    """Return how many indices of an axis share one sum."""
    block = 1
    while -(-size // block) > MOST_BINS:
        block *= 2
    return block


def bins_of(size: int) -> int:
    """Return how many sums an axis has."""
    return -(-size // block_of(size))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _added(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else ()


def _joined(
    left: tuple[float, ...], before: int, right: tuple[float, ...], after: int
) -> tuple[float, ...]:
    """Return the sums along an axis of `before` indices and then `after`; none if not known."""
    if not before or not after:
        return left or right
    block = block_of(before + after)
    if not left or not right or before % block:
        return ()
    parts = (_coarser(left, block // block_of(before)), _coarser(right, block // block_of(after)))
    return tuple(np.concatenate(parts).tolist())


def _coarser(sums: tuple[float, ...], times: int) -> Floats:
    return np.asarray(np.add.reduceat(np.array(sums), np.arange(0, len(sums), times)))


def fingerprint_of(array: NDArray[Any]) -> Fingerprint:
    """Compute the fingerprint of numbers of any dtype and layout."""
    numbers = _real(array)
    finite = np.isfinite(numbers)
    known = numbers[finite]
    stats = {
        "nan": 0, "inf": int(numbers.size - np.count_nonzero(finite)),
        "min": float(known.min()) if known.size else None,
        "max": float(known.max()) if known.size else None,
    }  # fmt: skip
    return unpacked(packed_fingerprint(numbers), stats)


@np.errstate(all="ignore")
def packed_fingerprint(array: NDArray[Any]) -> bytes:
    """Compute the packed fingerprint of numbers of any dtype and layout."""
    numbers = _real(array)
    shape = numbers.shape
    last = shape[-1] if shape else 1
    rows = numbers.reshape(prod(shape[:-1]), last)
    along_rows = np.zeros(len(rows))
    along_last = np.zeros(bins_of(last))
    sums = np.zeros(len(SUMS))
    for row, column, tile in _tiles(rows, block_of(last)):
        along_rows[row : row + len(tile)] += tile.sum(axis=1)
        first = column // block_of(last)
        bins = _binned(tile.sum(axis=0), block_of(last))
        along_last[first : first + len(bins)] += bins
        sums[0] += tile.sum()
        np.abs(tile, out=tile)
        sums[1] += tile.sum()
        power = tile * tile
        sums[2] += power.sum()
        power *= tile
        sums[3] += power.sum()
    marginals = [along_last] if shape else []
    rest: Floats = along_rows.reshape(shape[:-1])
    while rest.ndim and len(marginals) < MOST_AXES:
        line = rest.reshape(prod(rest.shape[:-1]), rest.shape[-1]).sum(axis=0)
        marginals.insert(0, _binned(line, block_of(len(line))))
        rest = rest.sum(axis=-1)
    return np.concatenate([[len(shape)], shape, sums, *marginals]).astype("<f8").tobytes()


def _real(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers, complex ones with a last axis for their two parts."""
    if array.dtype.kind != "c":
        return array
    parts = np.ascontiguousarray(array).reshape(array.shape)
    return parts.view(parts.real.dtype).reshape(*array.shape, 2)


def _tiles(rows: NDArray[Any], block: int) -> Iterator[tuple[int, int, Floats]]:
    """Yield the numbers as float64, 0 for those that are not finite, with row and column."""
    count, wide = rows.shape
    width = max(_TILE // block, 1) * block
    height = max(_TILE // max(wide, 1), 1)
    for row in range(0, count, height):
        for column in range(0, wide, width):
            tile = rows[row : row + height, column : column + width].astype(np.float64)
            finite = np.isfinite(tile)
            if not finite.all():
                tile[~finite] = 0
            yield row, column, tile


def _binned(line: Floats, block: int) -> Floats:
    """Add up the numbers of each block."""
    if not len(line):
        return line
    return np.asarray(np.add.reduceat(line, np.arange(0, len(line), block)))


def unpacked(packed: bytes, stats: Mapping[str, Any]) -> Fingerprint:
    """Return a fingerprint from its packed form and the statistics of the same numbers.

    Raise ValueError if it is none.
    """
    numbers: list[float] = np.frombuffer(packed, "<f8").tolist()
    axes = _whole(numbers[0] if numbers else -1.0)
    at = 1 + axes
    shape = tuple(_whole(size) for size in numbers[1:at])
    sums = dict(zip(SUMS, numbers[at : at + len(SUMS)], strict=True))
    at += len(SUMS)
    marginals: list[tuple[float, ...]] = [()] * max(axes - MOST_AXES, 0)
    for size in shape[-MOST_AXES:]:
        marginals.append(tuple(numbers[at : at + bins_of(size)]))
        at += bins_of(size)
    if at != len(numbers):
        raise ValueError(f"a fingerprint of shape {shape} has {at} numbers, not {len(numbers)}")
    return Fingerprint(
        shape, prod(shape), int(stats.get("nan", 0)) + int(stats.get("inf", 0)),
        **cast(Any, sums), min=_known(stats.get("min")), max=_known(stats.get("max")),
        marginals=tuple(marginals),
    )  # fmt: skip


def _whole(number: float) -> int:
    if not 0 <= number < 1 << 53 or number != int(number):
        raise ValueError(f"{number} is no size of an axis")
    return int(number)


def _known(extreme: float | None) -> float | None:
    return None if extreme is None or isnan(extreme) else extreme
