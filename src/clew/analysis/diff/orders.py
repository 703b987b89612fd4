"""Whether values with the same elements have them in the same order, up to layout.

Input: fingerprints, read from a run or computed from its data when they are asked for. Output: an
`Order` for each pair of values. Transposes, and reshapes that merge or split axes, keep the order;
a permutation along one axis does not, and neither do elements that are only the same set of
numbers. Pairs of the same two shapes are compared together, as a run has few shapes and many
values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from enum import IntEnum
from math import prod

import numpy as np

from clew.analysis.diff.axis_layouts import AxisGroup, layouts_of, straight
from clew.errors import BadTrace
from clew.events.columns import Flags, Floats, Ints
from clew.events.fingerprint import MOST_AXES, MOST_BINS, SUMS, Fingerprint, bins_of, block_of
from clew.run.run import Run
from clew.run.value import fingerprint_in, packed_in

# Relative error of an element up to which sums of slices count as equal, by dtype: ten times what
# counts as rounding over a whole run, as only another order is looked for.
_ROUNDED = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-1, "bfloat16": 5e-1}
_SMALLEST = 1e-300
# Sums along an axis that differ by less, in parts of the largest number, are about equal.
_TELLING = 1e-2
_ABSOLUTE = SUMS.index("absolute")
# So many pairs are compared together, to bound the memory.
_MOST_PAIRS = 1 << 14


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
        self._packed: dict[int, Floats] = {}
        # The number of the shape of each value whose fingerprint was read; -1 if it has none.
        self._shape: dict[int, int] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self.shapes: list[tuple[int, ...]] = []
        low, high = (np.nan_to_num(run.stats[name]) for name in ("min", "max"))
        # The largest number of each value.
        self.largest: Floats = np.maximum(np.abs(low), np.abs(high))
        of_metas = [_ROUNDED.get(meta.dtype, 0.0) for meta in run.metas]
        # The relative error of an element that says nothing about the order, for each value.
        self.tolerance: Floats = np.array([*of_metas, 0.0])[run.columns.meta]

    def shape_numbers(self, values: Ints) -> Ints:
        """Read the fingerprints of values; return the number of each one's shape, -1 without."""
        known, listed = self._shape, values.tolist()
        missing = list(dict.fromkeys(value for value in listed if value not in known))
        if missing:
            known.update(dict.fromkeys(missing, -1))
            for value, packed in self._read(missing):
                shape = _shape_in(packed)
                if shape is not None:
                    self._packed[value] = packed
                    known[value] = self._shapes.setdefault(shape, len(self._shapes))
            self.shapes = list(self._shapes)
        return np.array([known[value] for value in listed], dtype=np.int64)

    def _read(self, values: list[int]) -> Iterator[tuple[int, Floats]]:
        """Give the packed fingerprints of values that have one, or data to compute it from."""
        whole = getattr(self._kept, "fingerprints", None)
        recorded: dict[int, Floats] = {} if whole is None else whole(values)
        yield from recorded.items()
        for value in values:
            kept = self._kept.get(value) if value not in recorded else None
            packed = None if kept is None else packed_in(kept)
            if packed is not None:
                yield value, np.frombuffer(packed, "<f8")

    def __getitem__(self, value: int) -> Fingerprint | None:
        """Return the fingerprint of a value, None if there is none."""
        kept = self._kept.get(value)
        try:
            return None if kept is None else fingerprint_in(kept)
        except BadTrace:  # damaged: the rest can be compared
            return None

    def sums(self, values: Ints) -> Floats:
        """Return the packed sums of values of one shape, a row each, without their shape."""
        rows = np.stack([self._packed[value] for value in values.tolist()])
        return np.asarray(rows[:, 1 + int(rows[0, 0]) :])


def _shape_in(packed: Floats) -> tuple[int, ...] | None:
    """Return the shape in a packed fingerprint, None if it is damaged."""
    axes = float(packed[0]) if len(packed) else -1.0
    return _checked(packed[: 1 + int(axes)].tobytes(), len(packed)) if 0 <= axes < 256 else None


@functools.lru_cache(maxsize=4096)
def _checked(head: bytes, length: int) -> tuple[int, ...] | None:
    sizes: list[float] = np.frombuffer(head, "<f8")[1:].tolist()
    if any(not 0 <= size < 1 << 53 or size != int(size) for size in sizes):
        return None
    shape = tuple(map(int, sizes))
    sums = sum(bins_of(size) for size in shape[-MOST_AXES:])
    return shape if length == 1 + len(shape) + len(SUMS) + sums else None


@np.errstate(all="ignore")
def orders_of(
    a: Orders, of_a: Ints, b: Orders, of_b: Ints, errors: Floats, in_place: bool = False
) -> Ints:
    """Return the `Order` of each pair of values, whose relative errors are known.

    With `in_place` the first axis of one is that of the other, and so on: a transposed tensor of
    the same shape is another one.
    """
    found: Ints = np.full(len(of_a), int(Order.UNKNOWN), dtype=np.int64)
    shape_a, shape_b = a.shape_numbers(of_a), b.shape_numbers(of_b)
    tolerance = np.maximum.reduce([a.tolerance[of_a], b.tolerance[of_b], 4 * errors])
    for at in _of_equal_shapes(shape_a, shape_b):
        one, other = a.shapes[int(shape_a[at[0]])], b.shapes[int(shape_b[at[0]])]
        if prod(one) != prod(other):
            continue
        largest = a.largest[of_a[at]], b.largest[of_b[at]]
        pairs = _Pairs(one, a.sums(of_a[at]), other, b.sums(of_b[at]), largest, tolerance[at])
        found[at] = pairs.orders(in_place)
    return found


@np.errstate(all="ignore")
def apart_in_place(a: Orders, of_a: Ints, b: Orders, of_b: Ints) -> Floats:
    """Return how far sums along an axis of pairs are apart at most, in parts of their largest
    number; NaN where shapes differ, or the sums along an axis are about equal, so that they would
    not tell one order along it from another.
    """
    found: Floats = np.full(len(of_a), np.nan)
    shape_a, shape_b = a.shape_numbers(of_a), b.shape_numbers(of_b)
    for at in _of_equal_shapes(shape_a, shape_b):
        shape = a.shapes[int(shape_a[at[0]])]
        if shape != b.shapes[int(shape_b[at[0]])]:
            continue
        one, other = a.sums(of_a[at]), b.sums(of_b[at])
        size = np.maximum(a.largest[of_a[at]], b.largest[of_b[at]]) + _SMALLEST
        found[at] = np.abs(one - other)[:, len(SUMS) :].max(axis=1, initial=0.0) / size
        for first, last in axis_columns(shape):
            spread = np.ptp(one[:, first:last], axis=1) if last > first + 1 else np.inf
            found[at[spread < _TELLING * size]] = np.nan
    return found


def _of_equal_shapes(shape_a: Ints, shape_b: Ints) -> Iterable[Ints]:
    """Give the pairs of each two shapes, some thousands at a time."""
    known = np.flatnonzero((shape_a >= 0) & (shape_b >= 0))
    if not len(known):
        return
    keys = shape_a[known] * (int(shape_b[known].max()) + 1) + shape_b[known]
    order = np.argsort(keys, kind="stable")
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    for mine in np.split(known[order], ends):
        yield from np.split(mine, range(_MOST_PAIRS, len(mine), _MOST_PAIRS))


def order_of(
    a: Orders, value_a: int, b: Orders, value_b: int, error: float = 0.0, in_place: bool = False
) -> Order:
    """Return how the elements of two values are ordered, as `orders_of` does."""
    pair = np.array([value_a]), np.array([value_b])
    return Order(int(orders_of(a, pair[0], b, pair[1], np.array([error]), in_place)[0]))


class _Pairs:
    """Sums of pairs of values of two shapes; what was found of axes is remembered, as many layouts
    share them.
    """

    def __init__(
        self, one: tuple[int, ...], sums_one: Floats, other: tuple[int, ...], sums_other: Floats,
        largest: tuple[Floats, Floats], tolerance: Floats,
    ) -> None:  # fmt: skip
        self._shapes = one, other
        self._sums = sums_one, sums_other
        self._largest = largest
        self._tolerance = tolerance
        self._agrees: dict[AxisGroup, Flags] = {}

    def orders(self, in_place: bool) -> Ints:
        """Return the order of each pair."""
        one, other = self._shapes
        found: Ints = np.full(len(self._tolerance), int(Order.SCRAMBLED), dtype=np.int64)
        if one == other:
            same = self._are_alike()
            in_line = found if same.all() else self._in_layout(straight(len(one)))
            same |= in_line == Order.SAME
            if in_place or same.all():
                return np.where(same, int(Order.SAME), in_line)
            found[same] = Order.SAME
        layouts = layouts_of(one, other)
        if not layouts:
            return np.where(found == Order.SAME, found, int(Order.UNKNOWN))
        for layout in layouts:
            found = np.maximum(found, self._in_layout(layout))
            if (found == Order.SAME).all():
                break
        return found

    def _are_alike(self) -> Flags:
        """Return which pairs, of one shape, have about the same sums along all axes."""
        one, other = self._sums
        if one.shape[1] == len(SUMS):
            return np.ones(len(one), dtype=bool)
        # The sums of the longest axes may differ least.
        allowed = self._tolerance * (one[:, _ABSOLUTE] / MOST_BINS + self._largest[0])
        apart = np.abs(one[:, len(SUMS) :] - other[:, len(SUMS) :]).max(axis=1)
        return np.asarray(apart <= allowed + _SMALLEST)

    def _in_layout(self, layout: tuple[AxisGroup, ...]) -> Ints:
        """Return the order that the pairs have if their axes correspond in this way."""
        agrees = [self._group_agrees(group) for group in layout]
        off = np.sum([~one for one in agrees], axis=0) if agrees else np.zeros(len(self._tolerance))
        found = np.where(off == 0, int(Order.SAME), int(Order.SCRAMBLED))
        for group, right in zip(layout, agrees, strict=True):
            alone = (off == 1) & ~right
            if alone.any():
                found[alone & self._is_permuted(group, len(layout))] = Order.PERMUTED
        return found

    def _is_permuted(self, group: AxisGroup, groups: int) -> Flags:
        """Return for which pairs an axis, all others of which agree, has another order."""
        (mine, theirs), count = group, len(self._tolerance)
        if len(mine) > 1 or len(theirs) > 1 or block_of(self._shapes[0][mine[0]]) > 1:
            # Their sums do not tell what is in a block; all other axes agree, so it is this one.
            return np.full(count, groups > 1)
        one, other = self._marginal(0, mine[0]), self._marginal(1, theirs[0])
        return self._are_close(np.sort(one, axis=1), np.sort(other, axis=1))

    def _group_agrees(self, group: AxisGroup) -> Flags:
        known = self._agrees.get(group)
        if known is None:
            mine, theirs = group
            if len(mine) == 1:
                known = self._is_split(0, mine[0], theirs)
            else:
                known = self._is_split(1, theirs[0], mine)
            self._agrees[group] = known
        return known

    def _marginal(self, side: int, axis: int) -> Floats:
        """Return the sums along an axis, a row for each pair; of no columns if not known."""
        first, last = axis_columns(self._shapes[side])[axis]
        return self._sums[side][:, first:last]

    def _is_split(self, side: int, axis: int, axes: tuple[int, ...]) -> Flags:
        """Return which pairs may have an axis of one side as several of the other, the first of
        which is the outermost.
        """
        size, shape = self._shapes[side][axis], self._shapes[1 - side]
        sums, parts = self._marginal(side, axis), [self._marginal(1 - side, i) for i in axes]
        every = np.ones(len(sums), dtype=bool)
        if not sums.shape[1] or not all(part.shape[1] for part in parts):
            return every
        if sums.shape[1] != size:
            return self._is_outermost(sums, size, parts[0], shape[axes[0]])
        table = sums.reshape(len(sums), *(shape[i] for i in axes))
        for at, part in enumerate(parts):
            line = table.sum(axis=tuple(k + 1 for k in range(len(axes)) if k != at))
            every &= self._are_close(_folded(line, block_of(line.shape[1])), part)
        return every

    def _is_outermost(self, sums: Floats, size: int, part: Floats, count: int) -> Flags:
        """Return whether sums along `count` indices may be those along an axis that they cut."""
        block, wanted = block_of(size), size // count * block_of(count)
        if wanted % block == 0:
            return self._are_close(_folded(sums, wanted // block), part)
        if block % wanted == 0:
            return self._are_close(sums, _folded(part, block // wanted))
        return np.ones(len(sums), dtype=bool)

    def _are_close(self, mine: Floats, theirs: Floats) -> Flags:
        """Return which sums differ by no more than rounding of each element could make them."""
        if mine.shape[1] != theirs.shape[1]:
            return np.zeros(len(mine), dtype=bool)
        absolute = np.maximum(*(sums[:, _ABSOLUTE] for sums in self._sums))
        size = absolute / max(mine.shape[1], 1) + np.maximum(*self._largest)
        allowed = self._tolerance * size + _SMALLEST
        return np.asarray((np.abs(mine - theirs) <= allowed[:, None]).all(axis=1))


@functools.lru_cache(maxsize=4096)
def axis_columns(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return which columns have the sums along each axis."""
    at, found = len(SUMS), [(0, 0)] * max(len(shape) - MOST_AXES, 0)
    for size in shape[-MOST_AXES:]:
        found.append((at, at + bins_of(size)))
        at += bins_of(size)
    return found


def _folded(sums: Floats, times: int) -> Floats:
    """Add up each so many sums in a row."""
    if times == 1 or not sums.shape[1]:
        return sums
    return np.asarray(np.add.reduceat(sums, np.arange(0, sums.shape[1], times), axis=1))


def level_notes(a: Run, b: Run) -> list[str]:
    """Say what the comparison had to do with, if one run has no fingerprints."""
    for side, run in (("a", a), ("b", b)):
        if run.environment.get("values") == "stats":
            return [f"{side} has statistics, which forgive any order of elements; "
                    "values='fingerprint' tells orders apart"]  # fmt: skip
    return []
