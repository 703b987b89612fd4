"""Which values of two runs are the same, whatever op made them.

Input: the facts of both runs. Output: for each value of one the nearest equal value of the other,
or -1. Values that say little (a single number, all elements equal) match nothing.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.distance import Floats, ValueFacts, distances
from clew.events.columns import Ints

# Of many values of one size and norm, so many neighbours are compared.
_NEIGHBOURS = 16


def match(a: ValueFacts, b: ValueFacts, noise_a: Floats, noise_b: Floats) -> Ints:
    """Return for each value of `b` an equal one of `a`, up to the noise of the noisier of both."""
    found: Ints = np.full(len(b.count), -1, dtype=np.int64)
    best: Floats = np.full(len(b.count), np.inf)
    mine_a, mine_b = (np.flatnonzero(facts.says_much & ~facts.exact) for facts in (a, b))
    if not len(mine_a) or not len(mine_b):
        return found
    order = mine_a[np.lexsort((a.norm[mine_a], a.count[mine_a]))]
    # One key for size and norm, so that neighbours in it are candidates.
    keys = a.count[order] * 4.0 + _within(a.norm[order])
    wanted = b.count[mine_b] * 4.0 + _within(b.norm[mine_b])
    at = np.searchsorted(keys, wanted)
    for offset in range(-_NEIGHBOURS, _NEIGHBOURS):
        near = at + offset
        ok = (near >= 0) & (near < len(order))
        ia, ib = order[near[ok]], mine_b[ok]
        far = distances(a, ia, b, ib)
        better = (far <= np.maximum(noise_a[ia], noise_b[ib])) & (far < best[ib])
        best[ib[better]] = far[better]
        found[ib[better]] = ia[better]
    return found


def _within(norm: Floats) -> Floats:
    """Squeeze a norm between 0 and 1, in order."""
    logs = np.log2(np.maximum(norm, 1e-300))
    return np.asarray((logs + 1000.0) / 2048.0)
