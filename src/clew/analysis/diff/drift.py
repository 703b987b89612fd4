"""How far two training runs may drift apart from step to step when nothing is wrong.

Input: the iterations and facts of two runs. Output: for each value the error that counts as noise
in its iteration, which grows with the measured error of what the model returned in the iterations
before. It grows no more after the first iteration that adds more than rounding does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.distance import ValueFacts, distances
from clew.analysis.diff.iterations import Iterations
from clew.events.columns import Floats, Ints

# By how much the error may grow from one iteration to the next.
GROWTH = 12.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The error of what the model returned, and the noise of values, by iteration."""

    errors: list[float]
    levels: list[float]

    def level(self, number: int) -> float:
        """Return the noise of an iteration."""
        return self.levels[min(number, len(self.levels) - 1)]

    @property
    def agreed(self) -> int:
        """Return how many iterations surely agree, the last one's update aside."""
        shown = len(self.errors) - 1 if self.errors[-1] > self.levels[-1] else len(self.errors)
        return max(shown - 1, 0)

    def per_value(self, iterations: Iterations) -> Floats:
        """Return for each value the least noise of its iteration, 0 for values from outside."""
        known = np.array([*self.levels, 0.0])
        per_op = known[np.minimum(iterations.of_op, len(self.levels))]
        return np.asarray(np.concatenate([per_op, [0.0]])[iterations.graph.maker])


def drift_of(
    a: Iterations, facts_a: ValueFacts, b: Iterations, facts_b: ValueFacts, least: float
) -> Drift:
    """Measure how two runs drift apart; `least` is the noise without drift."""
    errors: list[float] = []
    levels: list[float] = []
    for number in range(min(len(a.written), len(b.written))):
        levels.append(max(least, GROWTH * max(errors, default=0.0)))
        returned = a.outputs[number] or a.losses[number], b.outputs[number] or b.losses[number]
        errors.append(_error(returned[0], facts_a, returned[1], facts_b))
        if errors[-1] > levels[-1]:
            break
    return Drift(errors, levels)


def measured(
    drift: Drift, a: Iterations, facts_a: ValueFacts, b: Iterations, facts_b: ValueFacts,
    far: Floats,
) -> Floats:  # fmt: skip
    """Return the noise of each value of `b` as the iterations that agree show it at its place.

    Rounding is all that some values hold: the gradient of a bias before a norm, and what Adam makes
    of it. What is as large as that in iterations that do no harm is noise later too. `far` is how
    far each value is from its partner.
    """
    found: Floats = np.zeros(len(far))
    if not any(drift.errors[: drift.agreed]):
        return found  # bit for bit the same
    graph, place = b.graph, b.place_of_op
    most: dict[tuple[int, int], float] = {}
    for op in np.flatnonzero(b.of_op < drift.agreed).tolist():
        for at, value in enumerate(graph.gives[op]):
            if far[value] > 0:
                key = int(place[op]), at
                most[key] = max(most.get(key, 0.0), float(far[value]))
    for op in range(len(graph)):
        for at, value in enumerate(graph.gives[op]):
            found[value] = most.get((int(place[op]), at), 0.0)
    of_names = _measured_names(drift, a, facts_a, b, facts_b)
    for written in b.written:
        for name, value in written.items():
            found[value] = max(found[value], of_names.get(name, 0.0))
    return np.where(GROWTH * found > 1, np.inf, GROWTH * found)


def _measured_names(
    drift: Drift, a: Iterations, facts_a: ValueFacts, b: Iterations, facts_b: ValueFacts
) -> dict[str, float]:
    """Return how far the versions of parameters and buffers are apart while the runs agree."""
    found: dict[str, float] = {}
    for mine, theirs in zip(a.written[: drift.agreed], b.written, strict=False):
        of_a, of_b = _common(mine, theirs)
        far = np.nan_to_num(distances(facts_a, of_a, facts_b, of_b))
        for name, error in zip([n for n in mine if n in theirs], far.tolist(), strict=True):
            found[name] = max(found.get(name, 0.0), error)
    return found


def _error(a: list[int], facts_a: ValueFacts, b: list[int], facts_b: ValueFacts) -> float:
    """Return the largest relative error of values that correspond, 0 if none is known."""
    if len(a) != len(b):
        return 0.0
    far = distances(facts_a, np.array(a, dtype=np.int64), facts_b, np.array(b, dtype=np.int64))
    return float(np.nanmax(far)) if len(far) and not np.isnan(far).all() else 0.0


def parameter_error(
    a: dict[str, int], facts_a: ValueFacts, b: dict[str, int], facts_b: ValueFacts
) -> float:
    """Return the relative error of all parameters together; those of small norm count little."""
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
