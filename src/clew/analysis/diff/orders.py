"""Whether two values with the same elements have them in the same order, up to layout.

Input: fingerprints, read from a run or computed from its data when they are asked for. Output: an
`Order`. Transposes, and reshapes that merge or split axes, keep the order; a permutation along one
axis does not, and neither do elements that are only the same set of numbers.
"""

from __future__ import annotations

import functools
from enum import IntEnum
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.events.fingerprint import MOST_BINS, SUMS, Fingerprint, block_of, unpacked
from clew.run.run import Run
from clew.run.value import packed_in

Floats = NDArray[np.float64]

# Relative error of an element up to which sums of slices count as equal, by dtype: ten times what
# counts as rounding over a whole run, as only another order is looked for.
_ROUNDED = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-1, "bfloat16": 5e-1}
# Of tensors with more axes than this, not every way to pair them is tried.
_MOST_AXES = 5
_SMALLEST = 1e-300


class Order(IntEnum):
    """How the elements of two values are ordered, the better the larger."""

    SCRAMBLED = 0  # the same numbers at most
    PERMUTED = 1  # in another order along one axis
    UNKNOWN = 2  # nothing was recorded that would tell, or the axes cannot be compared
    SAME = 3


class Orders:
    """The fingerprints of the values of one run; each is read once."""

    def __init__(self, run: Run) -> None:
        self._kept = run.columns.kept
        # Packed fingerprints with the largest number of each value.
        self._packed: dict[int, tuple[Floats, float] | None] = {}
        of_metas = [_ROUNDED.get(meta.dtype, 0.0) for meta in run.metas]
        # The relative error of an element that says nothing about the order, for each value.
        self.tolerance: list[float] = np.array([*of_metas, 0.0])[run.columns.meta].tolist()

    def __getitem__(self, value: int) -> Fingerprint | None:
        """Return the fingerprint of a value, None if there is none."""
        found, kept = self.packed(value), self._kept.get(value)
        try:
            return None if found is None or kept is None else unpacked(found[0], kept.stats or {})
        except ValueError:  # damaged: the rest can be compared
            return None

    def packed(self, value: int) -> tuple[Floats, float] | None:
        """Return the packed fingerprint of a value and its largest number, None without."""
        if value not in self._packed:
            kept = self._kept.get(value)
            packed = None if kept is None else packed_in(kept)
            if kept is None or packed is None:
                self._packed[value] = None
            else:
                stats = kept.stats or {}
                largest = max(abs(stats.get("min") or 0.0), abs(stats.get("max") or 0.0))
                self._packed[value] = np.frombuffer(packed, "<f8"), largest
        return self._packed[value]


def order_of(
    a: Orders, value_a: int, b: Orders, value_b: int, error: float = 0.0, in_place: bool = False
) -> Order:
    """Return how the elements of two values are ordered, whose relative error is known.

    With `in_place` the first axis of one is that of the other, and so on: a transposed tensor of
    the same shape is another one.
    """
    tolerance = max(a.tolerance[value_a], b.tolerance[value_b], 4 * error)
    packed_a, packed_b = a.packed(value_a), b.packed(value_b)
    if packed_a is None or packed_b is None:
        return Order.UNKNOWN
    if _are_alike(packed_a, packed_b, tolerance):
        return Order.SAME
    one, other = a[value_a], b[value_b]
    if one is None or other is None or one.count != other.count:
        return Order.UNKNOWN
    pair = _Pair(one, other, tolerance)
    if one.shape == other.shape:
        straight = pair.order(_straight(len(one.shape)))
        if in_place or straight is Order.SAME:
            return straight
    best = Order.SCRAMBLED
    layouts = _layouts(one.shape, other.shape)
    for layout in layouts:
        best = max(best, pair.order(layout))
        if best is Order.SAME:
            break
    return best if layouts else Order.UNKNOWN


def _are_alike(a: tuple[Floats, float], b: tuple[Floats, float], tolerance: float) -> bool:
    """Return whether two tensors of one shape have about the same sums along all axes."""
    (one, largest), (other, _) = a, b
    head = 1 + int(one[0]) if len(one) else 0
    if len(one) != len(other) or len(one) < head + len(SUMS):
        return False
    # The sums of the longest axes may differ least.
    allowed = tolerance * (float(one[head + 1]) / MOST_BINS + largest) + _SMALLEST
    if one[:head].tobytes() != other[:head].tobytes():
        return False
    apart = np.abs(one[head + len(SUMS) :] - other[head + len(SUMS) :])
    return not len(apart) or float(apart.max()) <= allowed


# Axes of one tensor that together are axes of another.
Group: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@functools.lru_cache(maxsize=256)
def _straight(axes: int) -> tuple[Group, ...]:
    return tuple(((axis,), (axis,)) for axis in range(axes))


@functools.lru_cache(maxsize=4096)
def _layouts(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[Group, ...], ...]:
    """Return every way in which one shape is the other, transposed, with axes merged or split.

    Where several axes together are several others, the sums along them cannot be compared: there is
    no such way.
    """
    axes_one, axes_other = ([i for i, n in enumerate(s) if n != 1] for s in (one, other))
    if len(axes_one) > _MOST_AXES or len(axes_other) > _MOST_AXES:
        return ()
    if len(axes_one) > len(axes_other):
        turned = _layouts(other, one)
        return tuple(tuple((mine, theirs) for theirs, mine in groups) for groups in turned)
    found = dict.fromkeys(
        _grouped(one, tuple(axes_one), other, order) for order in permutations(axes_other)
    )
    return tuple(g for g in found if all(len(a) == 1 or len(b) == 1 for a, b in g))


def _grouped(
    one: tuple[int, ...], axes_one: tuple[int, ...], other: tuple[int, ...],
    axes_other: tuple[int, ...],
) -> tuple[Group, ...]:  # fmt: skip
    """Return the smallest groups of axes that have as many indices in both, in this order."""
    groups: list[Group] = []
    i = k = 0
    while i < len(axes_one) and k < len(axes_other):
        first, last = i, k
        mine, theirs = one[axes_one[i]], other[axes_other[k]]
        while mine != theirs:
            if mine < theirs:
                i += 1
                mine *= one[axes_one[i]]
            else:
                k += 1
                theirs *= other[axes_other[k]]
        i, k = i + 1, k + 1
        groups.append((axes_one[first:i], axes_other[last:k]))
    return tuple(groups)


class _Pair:
    """Two fingerprints; what was found of axes is remembered, as many layouts share them."""

    def __init__(self, one: Fingerprint, other: Fingerprint, tolerance: float) -> None:
        self._one, self._other = one, other
        self._largest = max(abs(x or 0.0) for x in (one.min, one.max, other.min, other.max))
        self._tolerance = tolerance
        self._agrees: dict[Group, bool] = {}

    def order(self, layout: tuple[Group, ...]) -> Order:
        """Return the order that the tensors have if their axes correspond in this way."""
        off = [group for group in layout if not self._group_agrees(group)]
        if not off:
            return Order.SAME
        if len(off) > 1:
            return Order.SCRAMBLED
        ((mine, theirs),) = off
        if len(mine) > 1 or len(theirs) > 1 or block_of(self._one.shape[mine[0]]) > 1:
            # Their sums do not tell what is in a block; all other axes agree, so it is this one.
            return Order.PERMUTED if len(layout) > 1 else Order.SCRAMBLED
        one, other = np.array(self._one.marginals[mine[0]]), self._other.marginals[theirs[0]]
        is_set = self._are_close(np.sort(one), np.sort(np.array(other)))
        return Order.PERMUTED if is_set else Order.SCRAMBLED

    def _group_agrees(self, group: Group) -> bool:
        known = self._agrees.get(group)
        if known is None:
            mine, theirs = group
            if len(mine) == 1:
                known = self._is_split(self._one, mine[0], self._other, theirs)
            else:
                known = self._is_split(self._other, theirs[0], self._one, mine)
            self._agrees[group] = known
        return known

    def _is_split(
        self, whole: Fingerprint, axis: int, parts: Fingerprint, axes: tuple[int, ...]
    ) -> bool:
        """Return whether an axis may be several others, the first of which is the outermost."""
        sums = np.array(whole.marginals[axis])
        sizes = [parts.shape[i] for i in axes]
        if not len(sums) or any(not parts.marginals[i] for i in axes):
            return True
        if len(sums) != whole.shape[axis]:
            return self._is_outermost(sums, whole.shape[axis], np.array(parts.marginals[axes[0]]),
                                      sizes[0])  # fmt: skip
        table = sums.reshape(sizes)
        for at, i in enumerate(axes):
            line = table.sum(axis=tuple(k for k in range(len(axes)) if k != at))
            if not self._are_close(
                _folded(line, block_of(len(line))), np.array(parts.marginals[i])
            ):
                return False
        return True

    def _is_outermost(self, sums: Floats, size: int, part: Floats, count: int) -> bool:
        """Return whether sums along `count` indices may be those along an axis that they cut."""
        block, wanted = block_of(size), size // count * block_of(count)
        if wanted % block == 0:
            return self._are_close(_folded(sums, wanted // block), part)
        if block % wanted == 0:
            return self._are_close(sums, _folded(part, block // wanted))
        return True

    def _are_close(self, mine: Floats, theirs: Floats) -> bool:
        """Return whether sums differ by no more than rounding of each element could make them."""
        if len(mine) != len(theirs):
            return False
        size = max(self._one.absolute, self._other.absolute) / max(len(mine), 1) + self._largest
        return bool((np.abs(mine - theirs) <= self._tolerance * size + _SMALLEST).all())


def _folded(sums: Floats, times: int) -> Floats:
    """Add up each so many sums in a row."""
    return np.asarray(np.add.reduceat(sums, np.arange(0, len(sums), times))) if len(sums) else sums


def level_notes(a: Run, b: Run) -> list[str]:
    """Say what the comparison had to do with, if one run has no fingerprints."""
    for side, run in (("a", a), ("b", b)):
        if run.environment.get("values") == "stats":
            return [f"{side} has statistics, which forgive any order of elements; "
                    "values='fingerprint' tells orders apart"]  # fmt: skip
    return []
