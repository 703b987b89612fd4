"""How far two training runs may drift apart from update to update when nothing is wrong.

Input: the graphs and facts of two runs. Output: for each value the error that counts as noise in its
iteration, which grows with the measured error of the parameters that the iteration begins with. It
grows no more after the first iteration that adds more than rounding does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.distance import Floats, ValueFacts, distances
from clew.analysis.diff.iterations import Iterations
from clew.events.columns import Ints

# By how much an iteration may increase the error of the parameters it begins with.
GROWTH = 12.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The error of the parameters before each iteration, and that noise of values in it."""

    before: list[float]
    levels: list[float]

    def per_value(self, iterations: Iterations) -> Floats:
        """Return for each value the least noise of its iteration."""
        of_op = iterations.of_op
        known = np.array([*self.levels, 0.0])
        per_op = known[np.minimum(of_op, len(self.levels))]
        return np.asarray(np.concatenate([per_op, [0.0]])[iterations.graph.maker])


def drift_of(
    a: Iterations, facts_a: ValueFacts, b: Iterations, facts_b: ValueFacts, least: float
) -> Drift:
    """Measure how the parameters of two runs drift apart; `least` is the noise without drift."""
    versions_a, versions_b = dict(a.given), dict(b.given)
    error = parameter_error(versions_a, facts_a, versions_b, facts_b)
    # Parameters that differ from the beginning are a difference, not drift.
    before, levels = [error], [max(least, GROWTH * error) if error <= least else least]
    for number in range(min(a.count, b.count)):
        versions_a |= a.written[number]
        versions_b |= b.written[number]
        error = parameter_error(versions_a, facts_a, versions_b, facts_b)
        if error > levels[-1]:
            break
        before.append(error)
        levels.append(max(least, GROWTH * error))
    return Drift(before, levels)


def parameter_error(
    a: dict[str, int], facts_a: ValueFacts, b: dict[str, int], facts_b: ValueFacts
) -> float:
    """Return the relative error of all parameters together, those of small norm count little."""
    of_a, of_b = _common(a, b)
    far = distances(facts_a, of_a, facts_b, of_b)
    norm = facts_a.norm[of_a]
    known = ~np.isnan(far) & ~facts_b.exact[of_b]
    if not known.any() or not norm[known].any():
        return 0.0
    squares = (np.minimum(far[known], 1.0) * norm[known]) ** 2
    return float(np.sqrt(squares.sum() / (norm[known] ** 2).sum()))


def _common(a: dict[str, int], b: dict[str, int]) -> tuple[Ints, Ints]:
    names = [name for name in a if name in b]
    return (
        np.array([a[name] for name in names], dtype=np.int64),
        np.array([b[name] for name in names], dtype=np.int64),
    )

