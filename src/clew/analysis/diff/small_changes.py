"""Ops of two runs that agree, but for another number or text whose effect is below the noise.

Input: `Compared`. Output: an op of each run, and the result of that of `b`. Noise allows for
rounding, but another epsilon or another form of GELU is none, however little it changes. It must
change something: an op that took what agrees bit for bit gives other bits, or one that took what
agrees up to rounding adds far more than rounding. A change that another one makes up for, such as
a factor moved to another line, has a large effect on its op, so that it is none of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clew.analysis.diff.arguments import constants_of
from clew.analysis.diff.compared import Compared
from clew.analysis.diff.distance import distances
from clew.analysis.diff.noise import ROUNDING, per_dtype

# An effect larger than this is not small: it shows in what comes out, or is made up for elsewhere.
_SMALL = 1e-2
# What an op adds to the errors of what it took is no rounding from this on, as parts of both.
_JUMP = 8.0
_ROUNDED = 1e-7


def small_change(found: Compared, until: int | None = None) -> tuple[int, int, int] | None:
    """Return the first ops with another number or text and the result it changes; None for none.

    `until` is the op of `b` to end before.
    """
    changes = _Changes(found)
    b = found.b
    for op_b, op_a in changes.counterparts(len(b.graph) if until is None else until):
        if changes.are_other(op_a, op_b):
            value = changes.changed_result(op_a, op_b)
            if value >= 0:
                return op_a, op_b, value
    return None


class _Changes:
    """Looks at pairs of ops; what is given to ops is compared once for ops alike."""

    def __init__(self, found: Compared) -> None:
        self._found = found
        self._known: dict[tuple[int, ...], bool] = {}
        self._rounding = per_dtype(found.b.graph, ROUNDING)
        self._is_paired = bool((found.pairs >= 0).any())

    def counterparts(self, until: int) -> Iterator[tuple[int, int]]:
        """Give ops of `b` whose result is not quite its partner's, and the ops that gave those."""
        a, b, pairs = self._found.a, self._found.b, self._found.pairs
        off = np.flatnonzero((b.far > 0) & (b.far <= _SMALL) & (b.partner >= 0))
        ops = np.unique(b.graph.maker[off[b.graph.maker[off] >= 0]])
        for op_b in ops[ops < until].tolist():
            if self._is_paired:
                op_a = int(pairs[op_b])
            else:
                op_a = int(a.graph.maker[b.partner[b.graph.gives[op_b][0]]])
            if op_a >= 0:
                yield op_b, op_a

    def are_other(self, op_a: int, op_b: int) -> bool:
        """Return whether two ops of one name got other numbers or texts."""
        a, b = self._found.a.graph, self._found.b.graph
        row_a, row_b = int(a.rows[op_a]), int(b.rows[op_b])
        gives = b.gives[op_b]
        rounding = max(float(self._rounding[gives[0]]) if gives else 0.0, ROUNDING["float32"])
        key = (
            int(a.name_codes[op_a]), int(b.name_codes[op_b]),
            int(a.run.columns.template[row_a]), int(b.run.columns.template[row_b]),
            int(rounding * 1e18),
        )  # fmt: skip
        if key not in self._known:
            same_name = a.run.name(row_a) == b.run.name(row_b)
            given = constants_of(a.run, row_a), constants_of(b.run, row_b)
            self._known[key] = same_name and _are_other(*given, rounding)
        return self._known[key]

    def changed_result(self, op_a: int, op_b: int) -> int:
        """Return the result that differs although all that both ops took agrees; -1 for none."""
        a, b = self._found.a, self._found.b
        takes_a, takes_b = (np.array(half.graph.takes[op], dtype=np.int64)
                            for half, op in ((a, op_a), (b, op_b)))  # fmt: skip
        gives_a, gives_b = a.graph.gives[op_a], b.graph.gives[op_b]
        if len(takes_a) != len(takes_b) or len(gives_a) != len(gives_b):
            return -1
        before = distances(a.facts, takes_a, b.facts, takes_b)
        given = np.isnan(before)  # without statistics: as right as it is known to be
        if not b.right[takes_b].all() or (before[~given] > b.noise[takes_b][~given]).any():
            return -1
        worst = float(before[~given].max(initial=0.0))
        least = _JUMP * max(worst, _ROUNDED) if worst > 0 else 0.0
        after = distances(a.facts, np.array(gives_a), b.facts, np.array(gives_b))
        changed = [v for v, far in zip(gives_b, after.tolist(), strict=True)
                   if least < far <= _SMALL]  # fmt: skip
        return changed[0] if changed else -1


def _are_other(a: dict[str, Any], b: dict[str, Any], rounding: float) -> bool:
    """Return whether numbers differ by more than rounding, or texts, given to two ops.

    In double precision, too, a number may have been rounded to float32. One that only one op got
    may be the default of the other; a text that is changes no bit.
    """
    return any(_differ(a.get(path), b.get(path), rounding) for path in dict.fromkeys([*a, *b]))


def _differ(x: object, y: object, rounding: float) -> bool:
    if isinstance(x, str) or isinstance(y, str):
        return x != y
    one, other = _number(x), _number(y)
    # Whole numbers are axes and sizes. NaN differs from nothing.
    if one is None or other is None or (one.is_integer() and other.is_integer()):
        return False
    return abs(one - other) > rounding * max(abs(one), abs(other))


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return float(given)
