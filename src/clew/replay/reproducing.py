"""`clew.determinism`: whether a program does the same when it is run again.

Input: a function. Output: a `Diff` of two of its runs, which began with the same random state.
"""

from __future__ import annotations

from collections.abc import Callable

from clew.analysis.diff.divergence import Diff
from clew.analysis.diff.reruns import diff_reruns
from clew.errors import ClewError
from clew.replay.random_state import random_state
from clew.replay.recorded_runs import check_enabled, run_of


def determinism(fn: Callable[[], object], n: int = 2) -> Diff:
    """Run `fn()` `n` times from the same random state; find the first op that differs bit for bit.

    The first op that took the same values and returned others is named, or the first that was given
    other inputs. `fn` must make itself whatever it changes, such as a model that it trains:

        print(clew.determinism(lambda: model(x)))
    """
    check_enabled("clew.determinism")
    if n < 2:
        raise ClewError(f"determinism(n={n}): it takes two runs or more to compare")
    before = random_state()
    try:
        first = run_of(fn)
        for _ in range(n - 1):
            before.restore()
            found = diff_reruns(first, run_of(fn))
            if not found.equal:
                break
    finally:
        before.restore()
    return found
