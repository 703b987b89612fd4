"""How a value of one run relates to that of the other, where there is a simple relation.

Input: facts of two values. Output: a phrase such as `b is a × 0.5`, empty if there is none.
"""

from __future__ import annotations

import math

from clew.analysis.diff.distance import ValueFacts

_CLOSE = 1e-4
_SAME = 1e-6


def relation(a: ValueFacts, of_a: int, b: ValueFacts, of_b: int) -> str:
    """Write how two values relate, judged by their statistics."""
    if a.count[of_a] != b.count[of_b] or a.count[of_a] <= 1:
        return ""
    norms = float(a.norm[of_a]), float(b.norm[of_b])
    if not norms[0] and norms[1]:
        return "a is zero"
    if not norms[1] and norms[0]:
        return "b is zero"
    if not norms[0]:
        return ""
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
    return ""


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
