"""The rule about the loss: values that jump above all that came before."""

from __future__ import annotations

import numpy as np

from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import TrainingFacts
from clew.analysis.health.verdicts import HealthRule, judged, not_checked
from clew.events.number_text import measured
from clew.events.vocabulary import BACKWARD, NO_NODE

SPIKES = "loss spikes"
_THRESHOLD = "loss_jump"
# How many losses one is compared with, at least and at most.
_FEWEST, _MOST = 5, 50
# How many times the usual deviation from the median is no chance.
_DEVIATIONS = 6.0


def loss_spikes(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find losses that jump: far above the median of those before, and of their spread."""
    series = _losses(facts)
    if not series:
        why = "no loss was seen: a number that backward was called on, with values='stats'"
        return not_checked(SPIKES, why, _THRESHOLD)
    if max(map(len, series.values())) <= _FEWEST:
        return not_checked(SPIKES, f"fewer than {_FEWEST + 1} losses were recorded", _THRESHOLD)
    found = []
    for losses in series.values():
        before: list[float] = []
        for row, loss in losses:
            usual = float(np.median(before[-_MOST:])) if len(before) >= _FEWEST else None
            if usual is not None and _is_spike(loss, usual, before[-_MOST:], limits.loss_jump):
                text = (
                    f"the loss was {measured(loss)} in step {int(facts.run.step[row])}, "
                    f"{loss / usual:.1f} times the median of those before"
                )
                advice = "look at the batch of this step, and at the learning rate"
                address = facts.run.address(row)
                ratio = loss / usual
                found.append(
                    facts.finding(SPIKES, row, address, ratio, limits.loss_jump, text, advice)
                )
            else:
                before.append(loss)
    return judged(SPIKES, found, _THRESHOLD)


def _is_spike(loss: float, usual: float, before: list[float], jump: float) -> bool:
    spread = 1.4826 * float(np.median(np.abs(np.array(before) - usual)))
    far = loss - usual > _DEVIATIONS * max(spread, 0.05 * abs(usual))
    return usual > 0 and loss > jump * usual and far


def _losses(facts: TrainingFacts) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Return the losses of each rank and line, in order, as rows that show them and numbers.

    Autograd begins with `ones_like(loss)`. Without ops, outermost calls show theirs.
    """
    run = facts.run
    c, stats = run.columns, run.stats
    if facts.has_ops:
        rows = facts.ops_named({"ones_like"})
        rows = rows[(run.phase[rows] == BACKWARD) & (c.number[rows] == NO_NODE)]
        value = facts.first_input[rows]
    else:
        rows = facts.roots
        value = facts.first_result[rows]
        rows, value = rows[value >= 0], value[value >= 0]
        rows, value = rows[c.grad[value] > 0], value[c.grad[value] > 0]
    is_number = np.array([meta.shape == () for meta in c.metas] + [False], dtype=bool)
    kept = (value >= 0) & is_number[c.meta[value]] & np.isfinite(stats["mean"][value])
    found: dict[tuple[int, int], dict[int, list[tuple[int, float]]]] = {}
    for row, number in zip(rows[kept].tolist(), value[kept].tolist(), strict=True):
        made = run.producer_row(number)
        row = made if made >= 0 else row
        steps = found.setdefault((int(run.rank[row]), int(run.derived.source[row])), {})
        steps.setdefault(int(run.step[row]), []).append((row, float(stats["mean"][number])))
    # Several losses of a step, of parts of its batch or of a line search, count as their mean.
    return {
        key: [(of[0][0], float(np.mean([loss for _, loss in of]))) for of in steps.values()]
        for key, steps in found.items()
    }
