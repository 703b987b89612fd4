"""How far values of two precisions are apart, and how far rounding alone may bring them.

Input: `Compared` runs of about the same code. Output: `Errors` of the values of `b`, from the sums
along their axes, and for an op the error that its result may have: that of what it took, times what
the op makes of small errors. Sums that nearly cancel and large exponents make much of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.orders import axis_columns
from clew.events.columns import Floats
from clew.events.fingerprint import SUMS
from clew.events.op_names import bare_op

# Fewer sums along an axis say little about the error of an element.
_FEWEST_SUMS = 4
_SQUARES = SUMS.index("squares")
_TINY = 1e-30
# A mask is no exponent.
_MOST_EXPONENT = 1e4

_ADDING = frozenset({"add", "sub", "rsub", "add_", "sub_", "addcmul"})
_JOINING = frozenset({"cat", "stack"})
_MATRICES = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution"})
_EXPONENTS = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "exp"})
_PERIODIC = frozenset({"sin", "cos"})
_MEANS = frozenset({"mean", "sum"})
_CENTRED = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "var_mean"})
_POWERS = frozenset({"pow"})
_PARTS = frozenset({
    "select", "slice", "split", "split_with_sizes", "unbind", "chunk", "narrow", "index", "gather",
    "index_select", "embedding",
})  # fmt: skip
# A norm gives its result, the means, and one over the deviations.
_WITH_SCALE = 3


@dataclass(frozen=True, slots=True)
class Errors:
    """The relative error of each value of `b`, NaN where it is not known.

    Errors that many elements share add up in the sums along one axis and not along another:
    `least` is the error by the axis that shows the least, `most` by that which shows the most.
    """

    least: Floats
    most: Floats


def errors_between(found: Compared) -> Errors | None:
    """Estimate errors of values at the same places; None if there are no fingerprints.

    Elements that are wrong independently of each other make the sums of slices wrong by as much as
    the whole, in the mean of squares.
    """
    a, b, graph = found.a.facts.orders, found.b.facts.orders, found.b.graph
    least: Floats = np.full(len(graph.maker), np.nan)
    most = least.copy()
    placed = np.append(found.pairs >= 0, True)[graph.maker]
    of_b = np.flatnonzero(placed & (found.b.partner >= 0) & ~found.b.facts.exact)
    of_a = found.b.partner[of_b]
    shape_a, shape_b = a.shape_numbers(of_a), b.shape_numbers(of_b)
    for number in np.unique(shape_b[shape_b >= 0]).tolist():
        shape = b.shapes[number]
        same = [n for n, known in enumerate(a.shapes) if known == shape]
        at = np.flatnonzero((shape_b == number) & np.isin(shape_a, same))
        if len(at):
            spread = _spread(shape, a.sums(of_a[at]), b.sums(of_b[at]))
            least[of_b[at]], most[of_b[at]] = spread
    return None if np.isnan(least).all() else Errors(least, most)


@np.errstate(all="ignore")
def _spread(shape: tuple[int, ...], a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the least and the largest error of values of one shape that an axis shows."""
    norm = np.sqrt(np.maximum(a[:, _SQUARES], b[:, _SQUARES]))
    axes = [(first, end) for first, end in axis_columns(shape) if end - first >= _FEWEST_SUMS]
    if not axes:
        unknown: Floats = np.full(len(a), np.nan)
        return unknown, unknown
    apart = [np.linalg.norm(a[:, i:k] - b[:, i:k], axis=1) / norm for i, k in axes]
    apart = [np.where(norm == 0, 0.0, one) for one in apart]
    return np.minimum.reduce(apart), np.maximum.reduce(apart)


class Gains:
    """What the ops of one run make of the errors of what they take."""

    def __init__(self, half: Half) -> None:
        self._graph, self._facts = half.graph, half.facts
        codes = [bare_op(name) for name in half.graph.names]
        self._names = [codes[code] for code in half.graph.name_codes.tolist()]
        self._rms = half.facts.norm / np.sqrt(np.maximum(half.facts.count, 1))

    def expected(self, op: int, result: int, level: Floats) -> float:
        """Return the error that a result of an op may have, by those of all values."""
        facts, name, rms = self._facts, self._names[op], self._rms
        takes = [v for v in self._graph.takes[op] if facts.known[v] and not facts.exact[v]]
        if not takes or not facts.known[result]:
            return max((float(level[v]) for v in takes), default=0.0)
        if name in _ADDING:
            apart = sum(float(level[v] * rms[v]) for v in takes)
            return apart / max(float(rms[result]), _TINY)
        if name in _JOINING:
            return max(float(level[v]) for v in takes)
        gain = _GAINS.get(name)
        total = sum(float(level[v]) for v in takes)
        return total * (1.0 if gain is None else max(1.0, gain(self, name, takes, result)))

    def _of_matrices(self, name: str, takes: list[int], result: int) -> float:
        """Return by how much products that cancel each other are larger than their sum."""
        if len(takes) < 2:
            return 1.0
        x, weight = takes[-2:] if name in ("addmm", "baddbmm") else takes[:2]
        metas, meta = self._graph.run.metas, self._graph.run.columns.meta
        shape = metas[meta[weight]].shape if name == "convolution" else metas[meta[x]].shape
        terms = float(np.prod(shape[1:])) if name == "convolution" else float(shape[-1])
        size = float(self._rms[x] * self._rms[weight]) * terms**0.5
        return float(size / max(float(self._rms[result]), _TINY))

    def _of_exponents(self, name: str, takes: list[int], result: int) -> float:
        """Return the size of the largest exponents, whose errors are those of the result."""
        rms = float(self._rms[takes[0]])
        return max(abs(float(self._facts.high[takes[0]])), rms if rms < _MOST_EXPONENT else 0.0)

    def _of_angles(self, name: str, takes: list[int], result: int) -> float:
        return max(abs(float(side[takes[0]])) for side in (self._facts.low, self._facts.high))

    def _of_means(self, name: str, takes: list[int], result: int) -> float:
        """Return by how much elements are larger than their mean."""
        counts = self._facts.count
        parts = counts[result] / max(counts[takes[0]], 1) if name == "sum" else 1.0
        return float(self._rms[takes[0]] / max(self._rms[result] * parts, _TINY))

    def _of_centred(self, name: str, takes: list[int], result: int) -> float:
        """Return by how much elements are larger than what is left without their mean."""
        facts, value = self._facts, takes[0]
        beside = self._graph.gives[int(self._graph.maker[result])]
        if result != beside[0]:
            return self._of_parts(name, takes, result)
        if len(beside) == _WITH_SCALE and facts.known[beside[-1]]:
            # What the rows were multiplied by.
            return float(self._rms[value] * self._rms[beside[-1]])
        square = float(self._rms[value]) ** 2
        left = square - float(facts.total[value] / max(facts.count[value], 1)) ** 2
        return float((square / max(left, _TINY)) ** 0.5)

    def _of_parts(self, name: str, takes: list[int], result: int) -> float:
        """Return by how much elements of the whole are larger than those of the part."""
        return float(self._rms[takes[0]] / max(float(self._rms[result]), _TINY))

    def _of_powers(self, name: str, takes: list[int], result: int) -> float:
        return 2.0


_GAINS: dict[str, Callable[[Gains, str, list[int], int], float]] = {
    **dict.fromkeys(_MATRICES, Gains._of_matrices),
    **dict.fromkeys(_EXPONENTS, Gains._of_exponents),
    **dict.fromkeys(_PERIODIC, Gains._of_angles),
    **dict.fromkeys(_MEANS, Gains._of_means),
    **dict.fromkeys(_CENTRED, Gains._of_centred),
    **dict.fromkeys(_POWERS, Gains._of_powers),
    **dict.fromkeys(_PARTS, Gains._of_parts),
}
