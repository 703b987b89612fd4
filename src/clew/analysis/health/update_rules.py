"""The rule about the size of updates: how far a step moves a weight, relative to the weight."""

from __future__ import annotations

import math

import numpy as np

from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import (
    NO_STATISTICS,
    RECORD_OPS,
    ParameterTable,
    TrainingFacts,
    in_steps,
)
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.events.columns import IN, Flags, Floats, Ints, Leaf
from clew.events.vocabulary import OPTIMIZER

UPDATES = "update size"
_THRESHOLDS = "update_large, update_small"
# Optimizers that move each element by about the learning rate, whatever the gradient.
_BY_RATE = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax"})

# A weight below this part of the usual size was made small on purpose.
_SMALL = 0.3


def update_size(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find weights that each step changes by more, or by far less, than is usual.

    The change is exact for optimizers that add a multiple of one tensor, such as SGD. Those of the
    Adam family change each element by at most about the learning rate.
    """
    weights = facts.weights
    if not facts.groups:
        return not_checked(UPDATES, "no optimizer made a step while it was recorded", _THRESHOLDS)
    if not len(weights):
        return not_checked(UPDATES, f"no parameters were recorded; {RECORD_OPS}", _THRESHOLDS)
    norm = facts.run.stats["norm"][weights.value]
    if not np.isfinite(norm).any():
        return not_checked(UPDATES, NO_STATISTICS, _THRESHOLDS)
    sized = facts.is_matrix[weights.name] & (norm > 0) & ~_began_small(facts)[weights.name]
    table = weights.only(sized)
    exact = _added(facts)
    ratios: dict[tuple[int, int], list[tuple[float, int, bool]]] = {}
    for at in range(len(table)):
        name, rank, row = int(table.name[at]), int(table.rank[at]), int(table.row[at])
        change = exact.get((rank, int(table.step[at]), name))
        is_exact = change is not None
        if change is None:
            change = _by_rate(facts, table, at)
        size = float(facts.run.stats["norm"][table.value[at]])
        if change is not None:
            ratios.setdefault((rank, name), []).append((change / size, row, is_exact))
    if not ratios:
        why = "the sizes of this optimizer's updates do not follow from statistics"
        return not_checked(UPDATES, why, _THRESHOLDS)
    found = [one for key, steps in ratios.items() for one in _judge(facts, limits, key[1], steps)]
    return judged(UPDATES, found, _THRESHOLDS)


def update_norms(facts: TrainingFacts, norm: Floats) -> dict[tuple[int, int, int], float]:
    """Return the norms of recorded updates by rank, step and name, given those of all values.

    They are those captured as `:update`, else those of optimizers that add a multiple of one
    tensor, such as SGD.
    """
    found = _added(facts)
    table = facts.updates
    norms = norm[table.value]
    for at in np.flatnonzero(np.isfinite(norms)).tolist():
        key = int(table.rank[at]), int(table.step[at]), int(table.name[at])
        found[key] = float(norms[at])
    return found


def _began_small(facts: TrainingFacts) -> Flags:
    """Return which parameters were near zero when they were first seen.

    They have no size yet that an update could be compared with. Layers of torch begin with numbers
    of about 0.58 / sqrt(inputs).
    """
    run, weights = facts.run, facts.weights
    shapes = [meta.shape or () for meta in run.columns.metas]
    inputs = np.array([math.prod(shape[1:]) for shape in shapes] + [1], dtype=float)
    usual = 0.58 / np.sqrt(np.maximum(inputs, 1))[run.columns.meta[weights.value]]
    found = np.zeros(len(facts.names), dtype=bool)
    # In reverse, so that the first step has the last word.
    order = np.argsort(weights.step, kind="stable")[::-1]
    found[weights.name[order]] = (facts.rms(weights.value) < _SMALL * usual)[order]
    return found


def _added(facts: TrainingFacts) -> dict[tuple[int, int, int], float]:
    """Return the norm of what `parameter.add_(tensor, alpha)` added, by rank, step and name."""
    run = facts.run
    c, tensors = run.columns, run.tensors
    rows = facts.ops_named({"add_"})
    rows = rows[(run.phase[rows] == OPTIMIZER) & (tensors.counts[rows] >= 2)]
    second = (np.cumsum(tensors.counts) - tensors.counts)[rows] + 1
    rows, second = rows[~tensors.is_output[second]], second[~tensors.is_output[second]]
    taken = facts.first_input[rows]
    named = c.value_name[taken] >= 0
    rows, value, name = rows[named], tensors.value[second][named], c.value_name[taken[named]]
    with np.errstate(over="ignore", invalid="ignore"):
        norm = run.stats["norm"][value] * np.abs(_alphas(facts, rows))
    keys = zip(run.rank[rows].tolist(), run.step[rows].tolist(), name.tolist(), strict=True)
    pairs = zip(keys, norm.tolist(), strict=True)
    return {key: size for key, size in pairs if math.isfinite(size)}


def _alphas(facts: TrainingFacts, rows: Ints) -> Floats:
    """Return the factor `alpha` given to some ops, 1 where none was."""
    c = facts.run.columns
    templates, at = np.unique(c.template[rows], return_inverse=True)
    given = [
        next((leaf.constant for leaf in c.templates[number].leaves if _is_alpha(leaf)), 1.0)
        for number in templates.tolist()
    ]
    numbers = [float(one) if isinstance(one, int | float) else 1.0 for one in given]
    return np.array(numbers or [1.0])[at]


def _is_alpha(leaf: Leaf) -> bool:
    return leaf.role == IN and leaf.path == "alpha"


def _by_rate(facts: TrainingFacts, table: ParameterTable, at: int) -> float | None:
    """Return the most that an optimizer of the Adam family changes a weight by, about."""
    rank, name = int(table.rank[at]), facts.names[int(table.name[at])]
    group = facts.group_of(name, rank)
    is_updated = (rank, int(table.step[at]), int(table.name[at])) in facts.updated
    if group is None or group.optimizer not in _BY_RATE or not is_updated:
        return None
    rate = facts.rate(group, int(table.row[at]))
    count = float(facts.run.stats["count"][table.value[at]])
    return None if rate is None else rate * float(np.sqrt(count))


def _judge(
    facts: TrainingFacts, limits: Thresholds, name: int, steps: list[tuple[float, int, bool]]
) -> list[HealthFinding]:
    ratios = np.array([ratio for ratio, _, _ in steps])
    usual = float(np.median(ratios))
    named = facts.names[name]
    ran = in_steps(facts.run.step[[row for _, row, _ in steps]])
    about = "" if all(exact for _, _, exact in steps) else "up to about "
    if len(steps) > 1 and usual > limits.update_large:
        row = steps[int(np.argmax(ratios))][1]
        text = f"each step changes {named} by {about}{usual:.0%} of its norm in {ran}"
        advice = "lower the learning rate; about 0.1% is usual"
        return [facts.finding(UPDATES, row, named, usual, limits.update_large, text, advice)]
    if 0 < usual < limits.update_small:
        row = steps[0][1]
        text = f"each step changes {named} by {about}{usual:.0e} of its norm in {ran}"
        advice = "raise the learning rate, or look at the gradients; about 1e-3 is usual"
        return [facts.finding(UPDATES, row, named, usual, limits.update_small, text, advice)]
    return []
