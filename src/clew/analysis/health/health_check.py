"""Check the health of a run: every rule, in the order in which people ask.

Input: a `Run` and thresholds by name. Output: `Health`. To add a rule: a function from
`TrainingFacts` and `Thresholds` to a `HealthRule`, and a line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from clew.analysis.health.activation_rules import dead_units, saturated
from clew.analysis.health.gradient_rules import exploding, vanishing
from clew.analysis.health.image_rules import channels_last, reshaped, unscaled_images
from clew.analysis.health.input_rules import edited_inputs, repeated_batches
from clew.analysis.health.loss_rules import loss_spikes
from clew.analysis.health.mode_rules import wrong_mode
from clew.analysis.health.parameter_rules import in_no_optimizer, unchanged, without_gradient
from clew.analysis.health.sample_rules import bad_samples
from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import TrainingFacts
from clew.analysis.health.update_rules import update_size
from clew.analysis.health.verdicts import Health, HealthRule
from clew.run.run import Run

Check: TypeAlias = Callable[[TrainingFacts, Thresholds], HealthRule]

RULES: tuple[Check, ...] = (
    wrong_mode,
    in_no_optimizer,
    without_gradient,
    unchanged,
    exploding,
    vanishing,
    update_size,
    loss_spikes,
    dead_units,
    saturated,
    repeated_batches,
    edited_inputs,
    bad_samples,
    unscaled_images,
    reshaped,
    channels_last,
)
# Rules that may find what is certainly a fault, besides the one about modes.


def health_of(run: Run, given: dict[str, Any]) -> Health:
    """Return what every rule says of a run; `given` are thresholds that differ."""
    limits = Thresholds().changed(given)
    facts = TrainingFacts(run)
    with np.errstate(all="ignore"):  # a file may hold statistics of any size
        rules = tuple(check(facts, limits) for check in RULES)
    return Health(rules, limits.to_dict(), len(run.steps))
