"""How far two training runs are from each other, step by step.

Input: `Compared` training runs. Output: a `StepError` for each iteration that both have.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.compared import Compared
from clew.analysis.diff.distance import ValueFacts, distances
from clew.analysis.diff.divergence import StepError
from clew.analysis.diff.drift import parameter_error
from clew.analysis.diff.iterations import shared_labels
from clew.analysis.diff.noise import NOISE


def step_errors(found: Compared) -> tuple[StepError, ...]:
    """Compare losses and parameters of the iterations that both runs have."""
    a, b = found.iterations
    labels = shared_labels(a, b)
    versions = dict(a.given), dict(b.given)
    rows = []
    levels = found.drift.levels if found.drift is not None else [NOISE["float32"]]
    for number in range(min(a.count, b.count)):
        versions[0].update(a.written[number])
        versions[1].update(b.written[number])
        losses = _loss(found.a.facts, a.losses[number]), _loss(found.b.facts, b.losses[number])
        loss = None
        if losses[0] is not None and losses[1] is not None:
            loss = abs(losses[0] - losses[1]) / max(abs(losses[0]), abs(losses[1]), 1e-30)
        every = parameter_error(versions[0], found.a.facts, versions[1], found.b.facts)
        worst, error = _worst(found, *versions)
        level = levels[number] if number < len(levels) else levels[0]
        agrees = max(loss or 0.0, every) <= level
        rows.append(StepError(labels[number], losses, loss, every, worst, error, agrees))
    return tuple(rows)


def _loss(facts: ValueFacts, values: list[int]) -> float | None:
    """Return the mean of the losses of an iteration that are numbers."""
    known = [float(facts.total[v]) for v in values if facts.count[v] == 1]
    return float(np.mean(known)) if known else None


def _worst(found: Compared, a: dict[str, int], b: dict[str, int]) -> tuple[str, float | None]:
    """Return the parameter or buffer that is furthest off, and its error."""
    names = [name for name in a if name in b]
    if not names:
        return "", None
    of_a, of_b = (np.array([one[name] for name in names]) for one in (a, b))
    far = distances(found.a.facts, of_a, found.b.facts, of_b)
    if np.isnan(far).all():
        return "", None
    at = int(np.nanargmax(far))
    return names[at], float(far[at])
