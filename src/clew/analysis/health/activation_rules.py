"""Rules about activations: units that return zero always, and sigmoids that are flat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clew.address import written
from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import RECORD_OPS, TrainingFacts, in_steps
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.errors import ClewError
from clew.events.columns import Flags, Floats, Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import FORWARD, MODULE
from clew.run.value_stats import numbers_with_data

DEAD, SATURATED = "dead units", "saturated activations"
_RELU_OPS = frozenset({"relu", "relu_", "threshold", "threshold_"})
_RELU_CLASSES = frozenset({"ReLU", "ReLU6", "Threshold"})
_FLAT_OPS = frozenset({"sigmoid", "sigmoid_", "tanh", "tanh_"})
_FLAT_CLASSES = frozenset({"Sigmoid", "Tanh"})
_CHANNEL_OPS = ("convolution", "native_batch_norm", "cudnn_batch_norm")
# Fewer numbers than this say nothing of a layer, fewer samples nothing of a unit.
_FEWEST_NUMBERS, _FEWEST_SAMPLES = 64, 32
# Units are not counted in more data than this.
_MOST_ELEMENTS = 50_000_000


def dead_units(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find ReLUs that return nothing but zeros, and those with many such units."""
    threshold = "dead_share, dead_units"
    rows = _rows(facts, _RELU_OPS, _RELU_CLASSES)
    if not facts.has_stats:
        return not_checked(DEAD, "no statistics were taken; record with values='stats'", threshold)
    rows = rows[facts.run.stats["count"][facts.first_result[rows]] > 0]
    if not len(rows):
        return not_checked(DEAD, "no ReLU was recorded with statistics", threshold)
    data = set(numbers_with_data(facts.run.columns.kept).tolist())
    found: list[HealthFinding] = []
    units_seen = True
    for group in _groups(facts, rows):
        whole = _dead_layer(facts, limits, group)
        values = facts.first_result[group].tolist()
        has_data = data.issuperset(values)
        units_seen &= has_data
        found += whole or (_dead_channels(facts, limits, group) if has_data else [])
    note = "" if units_seen else "only whole layers were checked; values='full' checks each unit"
    return judged(DEAD, found, threshold, note)


def _rows(facts: TrainingFacts, ops: frozenset[str], classes: frozenset[str]) -> Ints:
    """Return the rows of some activations: of ops where there are any, else of module calls."""
    rows = facts.ops_named(ops) if facts.has_ops else facts.calls_of(classes)
    rows = rows[facts.run.phase[rows] == FORWARD]
    return np.asarray(rows[facts.first_result[rows] >= 0])


def _groups(facts: TrainingFacts, rows: Ints) -> Iterator[Ints]:
    """Yield the rows of each activation: those of one module and one line."""
    if not len(rows):
        return
    derived = facts.run.derived
    key = np.stack([facts.run.rank[rows], derived.module[rows], derived.source[rows]])
    _, at = np.unique(key, axis=1, return_inverse=True)
    order = np.argsort(at.reshape(-1), kind="stable")
    ends = np.flatnonzero(np.diff(at.reshape(-1)[order])) + 1
    yield from (rows[part] for part in np.split(order, ends))


def _dead_layer(facts: TrainingFacts, limits: Thresholds, group: Ints) -> list[HealthFinding]:
    stats = facts.run.stats
    out, taken = facts.first_result[group], facts.first_input[group]
    count = int(stats["count"][out].sum())
    share = float(stats["zeros"][out].sum()) / max(count, 1)
    if count < _FEWEST_NUMBERS or share < limits.dead_share or not _is_negative(facts, taken):
        return []
    text = f"{_called(facts, group)} returned {share:.2%} zeros in {_steps(facts, group)}"
    return [_dead(facts, group, share, limits.dead_share, text)]


def _is_negative(facts: TrainingFacts, taken: Ints) -> bool:
    """Return whether what activations took was below zero, and not zero itself."""
    stats = facts.run.stats
    taken = taken[taken >= 0]
    count = stats["count"][taken]
    known = len(taken) > 0 and bool((count > 0).all())
    return known and bool(((stats["min"][taken] < 0) & (stats["zeros"][taken] * 2 < count)).all())


def _dead_channels(facts: TrainingFacts, limits: Thresholds, group: Ints) -> list[HealthFinding]:
    run = facts.run
    if run.stats["count"][facts.first_result[group]].sum() > _MOST_ELEMENTS:
        return []
    alive: Any = None
    samples = 0
    for row in group.tolist():
        try:
            array = run.value(int(facts.first_result[row])).array()
        except ClewError:
            return []
        if array.ndim < 2:
            return []
        dim = _unit_dim(facts, row, array.ndim)
        here = (array != 0).any(axis=tuple(d for d in range(array.ndim) if d != dim))
        if alive is not None and len(alive) != len(here):
            return []
        alive = here if alive is None else alive | here
        samples += array.size // max(len(here), 1)
    dead = int((~alive).sum())
    share = dead / max(len(alive), 1)
    if samples < _FEWEST_SAMPLES or share < limits.dead_units:
        return []
    text = (
        f"{dead:,} of {len(alive):,} units of {_called(facts, group)} returned only zeros "
        f"in {_steps(facts, group)}"
    )
    return [_dead(facts, group, share, limits.dead_units, text)]


def _unit_dim(facts: TrainingFacts, row: int, ndim: int) -> int:
    """Return the dimension that counts units: channels of a convolution, else features."""
    if ndim == 3:
        taken = int(facts.first_input[row])
        made = facts.run.producer_row(taken) if taken >= 0 else -1
        is_channels = made >= 0 and bare_op(facts.run.name(made)) in _CHANNEL_OPS
        return 1 if is_channels else 2
    return 1


def _dead(
    facts: TrainingFacts, group: Ints, share: float, threshold: float, text: str
) -> HealthFinding:
    advice = (
        "lower the learning rate, look at the bias of the layer before it, or use LeakyReLU or GELU"
    )
    return facts.finding(
        DEAD, int(group[-1]), _address(facts, group), share, threshold, text, advice
    )


def saturated(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find sigmoids and tanhs inside the model that are flat where they are used.

    The mean slope follows from statistics: of a sigmoid y it is mean(y) - mean(y²), of a tanh
    1 - mean(y²).
    """
    if not facts.has_stats:
        why = "no statistics were taken; record with values='stats'"
        return not_checked(SATURATED, why, "saturated_slope")
    run = facts.run
    rows = _rows(facts, _FLAT_OPS, _FLAT_CLASSES)
    rows = rows[run.stats["count"][facts.first_result[rows]] > 0]
    if not len(rows):
        why = f"no sigmoid or tanh was recorded with statistics; {RECORD_OPS}"
        return not_checked(SATURATED, why, "saturated_slope")
    found = []
    for group in _groups(facts, rows[_is_inside(facts, rows)]):
        slope = _slopes(facts, group)
        worst = float(slope.max())
        if np.isfinite(slope).all() and worst < limits.saturated_slope:
            text = (
                f"{_called(facts, group)} is flat: its mean slope is at most {worst:.1e} of the "
                f"steepest, in {_steps(facts, group)}"
            )
            advice = (
                "almost no gradient passes; scale its input down, normalise before it, "
                "or lower the learning rate"
            )
            row = int(group[np.argmax(slope)])
            found.append(
                facts.finding(
                    SATURATED, row, _address(facts, group), worst, limits.saturated_slope,
                    text, advice,
                )
            )  # fmt: skip
    return judged(SATURATED, found, "saturated_slope")


def _slopes(facts: TrainingFacts, group: Ints) -> Floats:
    stats, out = facts.run.stats, facts.first_result[group]
    square = stats["norm"][out] ** 2 / stats["count"][out]
    is_tanh = "tanh" in facts.run.name(int(group[0])).lower()
    slope = 1 - square if is_tanh else 4 * (stats["mean"][out] - square)
    # Rounding makes a slope of 0 a little more or less.
    return np.maximum(slope, 0)


def _is_inside(facts: TrainingFacts, rows: Ints) -> Flags:
    """Return which activations feed other layers: those of confident predictions are flat too.

    Such a result is that of the whole model, or was made outside any module.
    """
    run = facts.run
    root = facts.root_of[rows]
    inside = run.columns.kind[root] == MODULE
    given = run.tensors.is_output & np.isin(run.tensors.event, np.unique(root))
    returned = run.columns.storage[run.tensors.value[given]]
    is_returned = np.isin(run.columns.storage[facts.first_result[rows]], returned)
    return np.asarray(inside & ~is_returned)


def _called(facts: TrainingFacts, group: Ints) -> str:
    run, row = facts.run, int(group[0])
    if run.columns.kind[row] == MODULE:
        return f"{run.name(row)} {run.module_path(row) or 'the root module'}"
    owner = int(run.owner_row[row])
    name = bare_op(run.name(row)).rstrip("_")
    if owner < 0:
        return name
    path = run.module_path(owner) or "the root module"
    is_own = run.name(owner) in _RELU_CLASSES | _FLAT_CLASSES
    return f"{run.name(owner)} {path}" if is_own else f"{name} in {path}"


def _address(facts: TrainingFacts, group: Ints) -> str:
    run, row = facts.run, int(group[0])
    owner = int(run.owner_row[row])
    is_own = owner >= 0 and run.name(owner) in _RELU_CLASSES | _FLAT_CLASSES
    return written(run.module_path(owner) or "") if is_own else run.address(row)


def _steps(facts: TrainingFacts, group: Ints) -> str:
    return in_steps(facts.run.step[group])
