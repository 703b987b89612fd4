"""In which ways the axes of one tensor can be those of another: transposed, merged or split.

Input: two shapes. Output: layouts, each a list of groups of axes that correspond.
"""

from __future__ import annotations

import functools
from itertools import permutations
from typing import TypeAlias

# Of tensors with more axes than this, not every way to pair them is tried.
_MOST_AXES = 5

# Axes of one tensor that together are axes of another.
AxisGroup: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@functools.lru_cache(maxsize=256)
def straight(axes: int) -> tuple[AxisGroup, ...]:
    return tuple(((axis,), (axis,)) for axis in range(axes))


@functools.lru_cache(maxsize=4096)
def layouts_of(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[AxisGroup, ...], ...]:
    """Return every way in which one shape is the other, transposed, with axes merged or split.

    Where several axes together are several others, the sums along them cannot be compared: there is
    no such way.
    """
    axes_one, axes_other = ([i for i, n in enumerate(s) if n != 1] for s in (one, other))
    if len(axes_one) > _MOST_AXES or len(axes_other) > _MOST_AXES:
        return ()
    if len(axes_one) > len(axes_other):
        turned = layouts_of(other, one)
        return tuple(tuple((mine, theirs) for theirs, mine in groups) for groups in turned)
    found = dict.fromkeys(
        _grouped(one, tuple(axes_one), other, order) for order in permutations(axes_other)
    )
    return tuple(g for g in found if all(len(a) == 1 or len(b) == 1 for a, b in g))


def _grouped(
    one: tuple[int, ...], axes_one: tuple[int, ...], other: tuple[int, ...],
    axes_other: tuple[int, ...],
) -> tuple[AxisGroup, ...]:  # fmt: skip
    """Return the smallest groups of axes that have as many indices in both, in this order."""
    groups: list[AxisGroup] = []
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
