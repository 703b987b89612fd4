"""How a value of one run relates to that of the other, where there is a simple relation.

Input: facts of two values. Output: a phrase such as `b is a × 0.5`, empty if there is none.
"""

from __future__ import annotations

import math

import numpy as np

from clew.analysis.diff.distance import ValueFacts
from clew.events.columns import Floats
from clew.events.fingerprint import Fingerprint

_CLOSE = 1e-4
_SAME = 1e-6
# A shorter axis shows a shift or a vector along it by chance.
_SHORTEST = 4


def relation(a: ValueFacts, of_a: int, b: ValueFacts, of_b: int) -> str:
    """Write how two values relate, judged by their statistics and fingerprints."""
    if a.count[of_a] != b.count[of_b] or a.count[of_a] <= 1:
        return ""
    norms = float(a.norm[of_a]), float(b.norm[of_b])
    if not norms[0] and norms[1]:
        return "a is zero"
    if not norms[1] and norms[0]:
        return "b is zero"
    if not norms[0]:
        return ""
    shifted, biased = _along_axes(a.orders[of_a], b.orders[of_b])
    if shifted:
        return shifted
    factor = norms[1] / norms[0]
    ends_a, ends_b = ((float(f.low[n]), float(f.high[n])) for f, n in ((a, of_a), (b, of_b)))
    total_a, total_b = float(a.total[of_a]), float(b.total[of_b])
    for sign in (1.0, -1.0):
        scaled = sorted(end * factor * sign for end in ends_a)
        sums = _close(total_a * factor * sign, total_b, norms[1])
        if sums and all(
            _close(x, y, max(map(abs, ends_b))) for x, y in zip(scaled, ends_b, strict=True)
        ):
            return _scaled(factor * sign, ends_a == ends_b)
    return biased


def _scaled(factor: float, same_ends: bool) -> str:
    if math.isclose(factor, 1.0, rel_tol=_SAME):
        return "b seems to have the elements of a in another order" if same_ends else ""
    if math.isclose(factor, 1.0, rel_tol=10 * _CLOSE):
        return ""
    if math.isclose(factor, -1.0, rel_tol=_CLOSE):
        return "b is a with the other sign"
    return f"b is a × {factor:.6g}"


def _close(x: float, y: float, size: float) -> bool:
    return abs(x - y) <= _CLOSE * max(size, 1e-30)


def _along_axes(one: Fingerprint | None, other: Fingerprint | None) -> tuple[str, str]:
    """Write what the sums along the axes say of a shift and of a bias."""
    if one is None or other is None or one.shape != other.shape:
        return "", ""
    return _shifted(one, other), _biased(one, other)


def _shifted(one: Fingerprint, other: Fingerprint) -> str:
    """Write along which axis the slices of one come a place later in the other."""
    for axis, size in enumerate(one.shape):
        mine, theirs = _sums(one, axis), _sums(other, axis)
        # In blocks of several slices a shift by one does not show.
        if len(mine) != size or len(theirs) != size or size < _SHORTEST or _are_equal(mine):
            continue
        if _are_close(mine[:-1], theirs[1:]):
            return f"b seems to be a shifted by one along dimension {axis}"
        if _are_close(mine[1:], theirs[:-1]):
            return f"b seems to be a shifted by one backwards along dimension {axis}"
    return ""


def _biased(one: Fingerprint, other: Fingerprint) -> str:
    """Write along which axis alone the sums of the slices change, as they do with a bias."""
    uneven = []
    for axis, size in enumerate(one.shape):
        mine, theirs = _sums(one, axis), _sums(other, axis)
        if len(mine) != len(theirs) or not len(mine) or size % len(mine):
            return ""
        more = theirs - mine
        if np.ptp(more) > _CLOSE * max(np.abs(theirs).max(), np.abs(mine).max()):
            uneven.append(axis)
    others = [size for axis, size in enumerate(one.shape) if axis not in uneven]
    if len(uneven) != 1 or one.shape[uneven[0]] < _SHORTEST or max(others, default=0) < _SHORTEST:
        return ""
    if not _explains_squares(one, other, uneven[0]):
        return ""
    return f"b seems to be a + a vector along dimension {uneven[0]}, as of a bias"


def _explains_squares(one: Fingerprint, other: Fingerprint, axis: int) -> bool:
    """Return whether adding a vector also gives the other's sum of squares, where that is known."""
    mine, theirs = _sums(one, axis), _sums(other, axis)
    if len(mine) != one.shape[axis]:
        return True  # a sum is of several slices
    slice_size = one.count / len(mine)
    vector = (theirs - mine) / slice_size
    expected = one.squares + float(np.sum(2 * vector * mine + slice_size * vector**2))
    return _close(expected, other.squares, other.squares)


def _sums(fingerprint: Fingerprint, axis: int) -> Floats:
    return np.array(fingerprint.marginals[axis], dtype=np.float64)


def _are_equal(sums: Floats) -> bool:
    return bool(np.ptp(sums) <= _CLOSE * np.abs(sums).max())


def _are_close(mine: Floats, theirs: Floats) -> bool:
    return bool(np.abs(mine - theirs).max() <= _CLOSE * np.abs(theirs).max())
