"""Changes of a shape that make it fit: pure functions from sizes to the text of a method call.

Each returns None unless exactly one change of its sort fits.
"""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]


def flattening(shape: Shape, last: int) -> str | None:
    """Return the `flatten` after which the last dimension has a size.

    >>> flattening((2, 8, 4, 4), 128), flattening((2, 8), 8)
    ('.flatten(1)', None)
    """
    starts = [at for at in range(1, len(shape) - 1) if prod(shape[at:]) == last]
    return f".flatten({starts[0]})" if starts else None


def to_last(shape: Shape, last: int) -> str | None:
    """Return the change of order after which the last dimension has a size.

    >>> to_last((2, 8, 5), 8), to_last((2, 3, 4, 5), 3), to_last((8, 2), 8), to_last((8, 8, 5), 8)
    ('.transpose(1, 2)', '.permute(0, 2, 3, 1)', '.T', None)
    """
    count = len(shape)
    there = [dim for dim in range(count - 1) if shape[dim] == last]
    if len(there) != 1 or shape[-1] == last:
        return None
    dim = there[0]
    if count == 2:
        return ".T"
    if dim == 0:
        return None  # it would mix the samples of a batch
    return _moved(count, dim, count - 1)


def channels_first(shape: Shape, channels: int) -> str | None:
    """Return the change of order from channels last to channels first, with or without a batch.

    A video may have its frames before its channels.

    >>> channels_first((2, 8, 8, 3), 3), channels_first((2, 9, 4), 4)
    ('.permute(0, 3, 1, 2)', '.transpose(1, 2)')
    >>> channels_first((2, 16, 3, 8, 8), 3)
    '.transpose(1, 2)'
    """
    if len(shape) == 5 and shape[2] == channels and shape.count(channels) == 1:
        return _moved(5, 2, 1)
    if len(shape) < 3 or shape[-1] != channels or channels in shape[1:-1]:
        return None
    return _moved(len(shape), len(shape) - 1, 1)


def _moved(count: int, dim: int, to: int) -> str:
    """Write the move of one dimension to another position."""
    if abs(dim - to) == 1:
        return f".transpose({min(dim, to)}, {max(dim, to)})"
    order = [at for at in range(count) if at != dim]
    order.insert(to, dim)
    return f".permute({', '.join(map(str, order))})"


def ones_inserted(shape: Shape, other: Shape) -> str | None:
    """Return the `unsqueeze`, or index with None, after which a shape broadcasts to another.

    >>> ones_inserted((4,), (4, 8)), ones_inserted((3,), (2, 3, 8, 8)), ones_inserted((4,), (4, 4))
    ('.unsqueeze(1)', '[:, None, None]', None)
    """
    if not shape or len(shape) > len(other):
        return None
    found = set()
    for count in range(1, len(other) - len(shape) + 1):
        for at in range(len(shape) + 1):
            wide = (*shape[:at], *(1,) * count, *shape[at:])
            if _gives(wide, other) and not _gives(shape, other):
                found.add((at, count))
    if not found:
        return None
    least = min(count for _, count in found)
    fewest = sorted(at for at, count in found if count == least)
    if len(fewest) != 1:
        return None
    at = fewest[0]
    if least == 1:
        return f".unsqueeze({at})"
    if at != len(shape):
        return None
    return f"[{', '.join([':'] * at + ['None'] * least)}]"


def _gives(shape: Shape, other: Shape) -> bool:
    """Return whether a shape broadcasts to just another."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(size in (1, there) for size, there in pairs)


def swapped_dims(shape: Shape, other: Shape) -> str | None:
    """Return the `transpose` that makes two shapes equal.

    >>> swapped_dims((2, 3, 5), (2, 5, 3)), swapped_dims((3, 2), (2, 3))
    ('.transpose(1, 2)', '.T')
    """
    if len(shape) != len(other) or shape == other:
        return None
    found = []
    for one, two in combinations(range(len(shape)), 2):
        turned = list(shape)
        turned[one], turned[two] = turned[two], turned[one]
        if tuple(turned) == other:
            found.append((one, two))
    if len(found) != 1:
        return None
    return ".T" if len(shape) == 2 else f".transpose({found[0][0]}, {found[0][1]})"


def missing_dim(shape: Shape, other: Shape) -> int | None:
    """Return the one dimension that a shape lacks to be another.

    >>> missing_dim((2, 5), (2, 1, 5)), missing_dim((2, 2), (2, 2, 2))
    (1, None)
    """
    if len(shape) + 1 != len(other):
        return None
    found = [dim for dim in range(len(other)) if (*other[:dim], *other[dim + 1 :]) == shape]
    return found[0] if len(found) == 1 else None
