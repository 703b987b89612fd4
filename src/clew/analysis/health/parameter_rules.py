"""Rules about parameters: those that no optimizer has, that get no gradient, that never change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import (
    NO_STATISTICS,
    RECORD_GRADIENTS,
    RECORD_OPS,
    ParameterGroup,
    ParameterTable,
    TrainingFacts,
    in_steps,
)
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.events.vocabulary import MODULE

NO_OPTIMIZER = "parameters in no optimizer"
NO_GRADIENT = "parameters without gradient"
UNCHANGED = "unchanged parameters"
_NARROW = ("bfloat16", "float16")
_UNNAMED = "?"
# A bias whose gradient is smaller than this part of the largest may have no influence at all.
_NEGLIGIBLE = 1e-3
# Updates below this part of a weight may not change a bit of it in float32.
_SMALLEST = 1e-6


def in_no_optimizer(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find parameters that get gradients and that no optimizer holds which made a step."""
    missing = _missing(facts)
    if missing:
        return not_checked(NO_OPTIMIZER, missing)
    table = facts.gradients
    found = []
    for rank in facts.run.ranks:
        held = {name for group in facts.groups if group.rank == rank for name in group.parameters}
        if not held:
            continue
        names = np.unique(table.name[table.rank == rank]).tolist()
        left = [name for name in names if facts.names[name] not in held]
        for name in left:
            mine = np.flatnonzero((table.name == name) & (table.rank == rank))
            text = (
                f"{facts.names[name]} got a gradient in {in_steps(table.step[mine])}, "
                "and no optimizer that made a step has it"
            )
            advice = (
                "give it to the optimizer, which must be made after the layers it is to train; "
                "or set requires_grad_(False)"
            )
            found.append(
                facts.finding(
                    NO_OPTIMIZER, int(table.row[mine[0]]), facts.names[name], len(mine), 0, text,
                    advice, certain=len(left) == len(names),
                )
            )  # fmt: skip
    return judged(NO_OPTIMIZER, found, note=_unnamed_note(facts))


def _missing(facts: TrainingFacts) -> str:
    if not facts.groups:
        return "no optimizer made a step while it was recorded"
    return "" if len(facts.gradients) else f"no gradients were recorded; {RECORD_GRADIENTS}"


def _unnamed_note(facts: TrainingFacts) -> str:
    unnamed = any(_UNNAMED in group.parameters for group in facts.groups)
    return "an optimizer has parameters that belong to no recorded module" if unnamed else ""


def without_gradient(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find parameters of an optimizer that got no gradient though their module ran."""
    missing = _missing(facts)
    if missing:
        return not_checked(NO_GRADIENT, missing)
    found: list[HealthFinding] = []
    uncalled: list[str] = []
    for group in facts.groups:
        table = facts.gradients.only(facts.gradients.rank == group.rank)
        if not len(table):
            continue
        got = {facts.names[name] for name in np.unique(table.name).tolist()}
        for name in sorted(group.parameters - got - {_UNNAMED} - (group.frozen or frozenset())):
            row = _call_of(facts, name, group.rank)
            if row < 0:
                uncalled.append(name)
            elif (one := _without(facts, name, group, row)) is not None:
                found.append(one)
    note = ""
    if uncalled:
        those = ", ".join(uncalled[:3]) + (", …" if len(uncalled) > 3 else "")
        note = f"{len(uncalled):,} parameters belong to modules that were not called: {those}"
    return judged(NO_GRADIENT, found, note=note)


def _call_of(facts: TrainingFacts, name: str, rank: int) -> int:
    """Return the first call of the module that holds a parameter, -1 if it was not called."""
    run = facts.run
    c = run.columns
    owner = next((owner for path, owner, _ in c.parameters if path == name), -1)
    if owner < 0:
        return -1
    number = c.modules[owner].number
    rows = [at for at, module in enumerate(c.modules) if module.number == number]
    calls = np.flatnonzero((c.kind == MODULE) & np.isin(c.subject, rows) & (run.rank == rank))
    return int(calls[0]) if len(calls) else -1


def _without(
    facts: TrainingFacts, name: str, group: ParameterGroup, row: int
) -> HealthFinding | None:
    weights = facts.weights
    code = facts.names.index(name) if name in facts.names else -1
    mine = np.flatnonzero((weights.name == code) & (weights.rank == group.rank))
    steps = facts.steps if len(facts.steps) else np.unique(facts.gradients.step)
    used = len(mine) > 0
    if used and not facts.run.columns.grad[weights.value[mine]].any():
        return None
    if not used and (group.frozen is None or not facts.has_ops):
        return None
    how = "was used" if used else "was used by no op"
    advice = (
        "look for detach(), no_grad(), .data, argmax or a conversion to NumPy on its way to "
        "the loss; leave it out of the optimizer if it is not to be trained"
        if used
        else "use it in forward, or remove it"
    )
    text = f"{name} {how} and got no gradient in {in_steps(steps)}, though {group.optimizer} has it"
    at = int(weights.row[mine[0]]) if used else row
    return facts.finding(NO_GRADIENT, at, name, 0, 1, text, advice)


def unchanged(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find parameters with gradients that an optimizer has and that keep every bit."""
    missing = _missing(facts)
    if missing:
        return not_checked(UNCHANGED, missing)
    weights = facts.weights
    if not len(weights) or not facts.updated:
        return not_checked(UNCHANGED, f"no updates of parameters were recorded; {RECORD_OPS}")
    if not (facts.run.stats["count"][weights.value] >= 0).any():
        return not_checked(UNCHANGED, NO_STATISTICS)
    if len(np.unique(weights.step)) < 3:
        return not_checked(UNCHANGED, "fewer than 3 steps were recorded")
    found = [one for rank in facts.run.ranks for one in _unchanged(facts, rank)]
    return judged(UNCHANGED, found)


def _unchanged(facts: TrainingFacts, rank: int) -> Iterator[HealthFinding]:
    weights = facts.weights.only(facts.weights.rank == rank)
    of_rank = facts.gradients.rank == rank
    gradients, size = facts.gradients.only(of_rank), facts.least_gradient[of_rank]
    largest = float(np.max(size[np.isfinite(size)], initial=0.0))
    for name in np.unique(gradients.name).tolist():
        group = facts.group_of(facts.names[name], rank)
        mine = np.flatnonzero(weights.name == name)
        if group is None or len(mine) < 2:
            continue
        first, last = int(mine[0]), int(mine[-1])
        between = np.flatnonzero(
            (gradients.name == name)
            & (gradients.step >= weights.step[first])
            & (gradients.step < weights.step[last])
        )
        moved = size[between] > (0 if facts.is_matrix[name] else _NEGLIGIBLE * largest)
        moved &= [(rank, step, name) in facts.updated for step in gradients.step[between].tolist()]
        digests = [facts.digest(int(weights.value[at])) for at in (first, last)]
        if moved.sum() < 2 or digests[0] is None or digests[0] != digests[1]:
            continue
        rates = [facts.rate(group, int(gradients.row[at])) for at in between[moved].tolist()]
        is_zero = all(rate == 0 for rate in rates)
        if sum(rate != 0 for rate in rates) < 2 and not (is_zero and len(rates) > 2):
            continue
        most = max((rate or 0.0) for rate in rates) * float(np.max(size[between[moved]]))
        yield _still(facts, weights.only(np.array([last])), rates, most)


def _still(
    facts: TrainingFacts, weight: ParameterTable, rates: list[float | None], most: float
) -> HealthFinding:
    """Return the finding of a weight that stayed; `most` is about how far it was to move."""
    name, row = facts.names[int(weight.name[0])], int(weight.row[0])
    dtype = facts.run.value(int(weight.value[0])).dtype
    size = float(facts.rms(weight.value)[0])
    text = f"{name} did not change in {len(rates):,} steps of its optimizer"
    if all(rate == 0 for rate in rates):
        text, advice = f"{text}: its learning rate is 0", "set a learning rate above 0"
    elif dtype in _NARROW:
        text += f": its updates are too small to add in {dtype}"
        advice = "keep the weights in float32 and use autocast"
    elif most < _SMALLEST * size:
        text += f": its updates are too small to add in {dtype}"
        advice = "see vanishing gradients, or raise the learning rate"
    else:
        advice = "look for something that writes it back after each step"
    return facts.finding(UNCHANGED, row, name, 0, 0, text, advice)
