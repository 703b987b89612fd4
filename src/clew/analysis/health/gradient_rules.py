"""Rules about gradients: those that grow without bounds, and those that fade on their way back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import (
    NO_STATISTICS,
    RECORD_GRADIENTS,
    TrainingFacts,
    in_steps,
)
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.events.number_text import measured

EXPLODING, VANISHING = "exploding gradients", "vanishing gradients"
# A norm below this is no explosion, however small those before it were.
_SMALL_NORM = 10.0
# How many steps a jump is compared with, at least and at most.
_FEWEST, _MOST = 4, 50


def exploding(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find steps whose gradients are not finite, too large, or much larger than before."""
    missing = _missing(facts)
    if missing:
        return not_checked(EXPLODING, missing, "gradient_norm, gradient_jump")
    found = [one for rank in facts.run.ranks for one in _explosions(facts, limits, rank)]
    return judged(EXPLODING, found, "gradient_norm, gradient_jump")


def _missing(facts: TrainingFacts) -> str:
    """Return why gradients cannot be judged, or ""."""
    table = facts.gradients
    if not len(table):
        return f"no gradients were recorded; {RECORD_GRADIENTS}"
    known = facts.run.stats["count"][table.value] >= 0
    return "" if known.any() else NO_STATISTICS


def _explosions(facts: TrainingFacts, limits: Thresholds, rank: int) -> Iterator[HealthFinding]:
    table = facts.gradients.only(facts.gradients.rank == rank)
    stats = facts.run.stats
    broken = (stats["nan"] + stats["inf"])[table.value] > 0
    squares = np.where(broken, 0, stats["norm"][table.value]) ** 2
    before: list[float] = []
    for step in np.unique(table.step).tolist():
        mine = np.flatnonzero(table.step == step)
        worst = int(mine[np.argmax(np.where(broken[mine], np.inf, np.nan_to_num(squares[mine])))])
        row, name = int(table.row[worst]), facts.names[int(table.name[worst])]
        norm = float(np.sqrt(np.nansum(squares[mine])))
        usual = float(np.median(before[-_MOST:])) if len(before) >= _FEWEST else None
        what = ""
        if broken[mine].any():
            counted = int(broken[mine].sum())
            norm, threshold = float("inf"), limits.gradient_norm
            what = f"{counted:,} of {len(mine):,} gradients held NaN or Inf in step {step}"
        elif norm > limits.gradient_norm:
            threshold = limits.gradient_norm
            what = f"the norm of all gradients was {measured(norm)} in step {step}"
        elif usual is not None and norm > max(limits.gradient_jump * usual, _SMALL_NORM):
            threshold = limits.gradient_jump
            what = (
                f"the norm of all gradients was {measured(norm)} in step {step}, "
                f"{norm / max(usual, 1e-300):,.0f} times the median of the steps before"
            )
        if what:
            yield facts.finding(
                EXPLODING, row, f"{name}:grad", norm, threshold, f"{what}, largest in {name}",
                "lower the learning rate, clip gradients with torch.nn.utils.clip_grad_norm_, "
                "or look at the batch of this step",
            )  # fmt: skip
        else:
            before.append(norm)


def vanishing(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find weights whose gradients are tiny next to those of other weights, in every step."""
    missing = _missing(facts)
    if missing:
        return not_checked(VANISHING, missing, "vanishing")
    found = [one for rank in facts.run.ranks for one in _faded(facts, limits, rank)]
    return judged(VANISHING, found, "vanishing")


def _faded(facts: TrainingFacts, limits: Thresholds, rank: int) -> Iterator[HealthFinding]:
    """Yield the weights that fade; a bias may have no influence, such as one before a batch norm.

    A gradient of exactly zero in the first steps is no sign: what comes after a weight may begin at
    zero.
    """
    table = facts.gradients
    table = table.only((table.rank == rank) & facts.is_matrix[table.name])
    size = facts.rms(table.value)
    if not np.isfinite(size).any():
        return
    steps, at = np.unique(table.step, return_inverse=True)
    largest = np.zeros(len(steps))
    np.fmax.at(largest, at, np.where(np.isfinite(size), size, np.nan))
    share = np.divide(size, largest[at], out=np.full(len(size), np.nan), where=largest[at] > 0)
    best = np.full(len(facts.names), -1.0)
    np.fmax.at(best, table.name, share)
    counted = np.bincount(table.name, minlength=len(facts.names))
    faded = (best > 0) & (best < limits.vanishing)
    for name in np.flatnonzero(faded).tolist():
        mine = np.flatnonzero(table.name == name)
        worst = int(mine[np.nanargmax(share[mine])])
        top = facts.names[_largest_of(table.name, table.step == table.step[worst], size)]
        yield facts.finding(
            VANISHING, int(table.row[worst]), f"{facts.names[name]}:grad", best[name],
            limits.vanishing,
            f"the gradient of {facts.names[name]} is at most {best[name]:.1e} of that of {top}, "
            f"per element, in {in_steps(table.step[mine])}"
            + (" (one step only)" if counted[name] == 1 else ""),
            "put a normalisation layer or a residual connection between them, "
            "use another activation, or initialise the weights for this depth",
        )  # fmt: skip


def _largest_of(name: np.ndarray, mine: np.ndarray, size: np.ndarray) -> int:
    rows = np.flatnonzero(mine)
    return int(name[rows[np.nanargmax(size[rows])]])
