"""Judge a step that has ended by the triggers of a flight recorder.

Input: the `StepFacts` of a step, and those of the steps before. Output: `Firing`s, which say which
trigger, which figure, which threshold. Knows neither torch nor a trace.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from clew.events.model import Data
from clew.triggers import GradientSpike, LossSpike, NonFinite, StepFacts, Trigger, When

# Steps that a spike is compared with at least, however few the ring holds.
_LEAST_HISTORY = 50
# From the median absolute deviation to the standard deviation of normally distributed numbers.
_MAD_TO_STD = 1.4826
# A loss or norm that hardly moves has a deviation near 0, and any noise would be far away.
_LEAST_SHARE_OF_LOSS = 0.02
_LEAST_STD_OF_LOG = 0.1
# The largest gradients that a firing names.
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Firing(Data):
    """A trigger that fired: its name, at which step, and what it saw.

    `figure` and `threshold` are None where there are no numbers; `where` lists addresses.
    """

    trigger: str
    step: int
    text: str
    figure: float | None = None
    threshold: float | None = None
    where: tuple[str, ...] = ()


class History:
    """Losses and gradient norms of the last steps, as far as they are finite."""

    def __init__(self, keep: int) -> None:
        size = max(keep, _LEAST_HISTORY)
        self.losses: deque[float] = deque(maxlen=size)
        self.gradient_norms: deque[float] = deque(maxlen=size)

    def add(self, facts: StepFacts) -> None:
        """Add the figures of a step that was judged."""
        if facts.loss is not None and math.isfinite(facts.loss):
            self.losses.append(facts.loss)
        norm = facts.gradient_norm
        if norm is not None and math.isfinite(norm) and norm > 0:
            self.gradient_norms.append(norm)


def firing_of(trigger: Trigger, facts: StepFacts, history: History) -> Firing | None:
    """Return what a trigger says of a step, None if it does not fire or is not about steps."""
    if isinstance(trigger, NonFinite):
        return _nonfinite(trigger, facts)
    if isinstance(trigger, LossSpike):
        return _loss_spike(trigger, facts, history.losses)
    if isinstance(trigger, GradientSpike):
        return _gradient_spike(trigger, facts, history.gradient_norms)
    if isinstance(trigger, When):
        if not trigger.predicate(facts):
            return None
        return Firing(trigger.name, facts.step, f"the predicate {trigger.name!r} was true")
    return None


def _nonfinite(trigger: NonFinite, facts: StepFacts) -> Firing | None:
    where = facts.nonfinite
    if not trigger.outputs:
        where = tuple(name for name in where if name == "loss" or name.endswith(":grad"))
    if not where:
        return None
    outputs = [name for name in where if name != "loss" and not name.endswith(":grad")]
    gradients = [name for name in where if name.endswith(":grad")]
    places = [_counted(outputs, "module output"), "the loss" if "loss" in where else ""]
    places.append(_counted(gradients, "gradient"))
    *others, last = [place for place in places if place]
    text = "NaN or Inf in " + (f"{', '.join(others)} and {last}" if others else last)
    return Firing("nonfinite", facts.step, text, float(len(where)), 0.0, where)


def _loss_spike(trigger: LossSpike, facts: StepFacts, before: Iterable[float]) -> Firing | None:
    known, loss = list(before), facts.loss
    if loss is None or not math.isfinite(loss) or len(known) < trigger.warmup:
        return None
    median = statistics.median(known)
    if min(*known, loss) > 0:
        # Near its end a loss varies by factors, and chance alone gives many times the median.
        scaled, at, least = [math.log(one) for one in known], math.log(loss), _LEAST_SHARE_OF_LOSS
    else:
        scaled, at, least = known, loss, _LEAST_SHARE_OF_LOSS * abs(median)
    middle = statistics.median(scaled)
    mad = statistics.median(abs(one - middle) for one in scaled)
    spread = max(_MAD_TO_STD * mad, least)
    if spread == 0 or at - middle <= trigger.threshold * spread:
        return None
    figure = (at - middle) / spread
    text = (
        f"loss {loss:.4g} is {figure:.1f} deviations above the median {median:.4g} of the last "
        f"{len(known)} steps; the threshold is {trigger.threshold:g}"
    )
    return Firing("loss_spike", facts.step, text, figure, trigger.threshold, ("loss",))


def _gradient_spike(
    trigger: GradientSpike, facts: StepFacts, before: Iterable[float]
) -> Firing | None:
    known, norm = [math.log(one) for one in before], facts.gradient_norm
    if norm is None or not math.isfinite(norm) or norm <= 0 or len(known) < trigger.warmup:
        return None
    mean = statistics.fmean(known)
    spread = max(statistics.pstdev(known, mean), _LEAST_STD_OF_LOG)
    figure = (math.log(norm) - mean) / spread
    if figure <= trigger.threshold:
        return None
    text = (
        f"gradient norm {norm:.4g} has a z-score of {figure:.1f}, where {math.exp(mean):.4g} is "
        f"usual in the last {len(known)} steps; the threshold is {trigger.threshold:g}"
    )
    largest = sorted(facts.gradients, key=lambda name: -facts.gradients[name])[:_MOST_NAMES]
    return Firing("gradient_spike", facts.step, text, figure, trigger.threshold, tuple(largest))


def _counted(names: list[str], noun: str) -> str:
    if not names:
        return ""
    first = names[0] or "the whole model"
    return f"the {noun} {first}" if len(names) == 1 else f"{len(names)} {noun}s (first {first})"
