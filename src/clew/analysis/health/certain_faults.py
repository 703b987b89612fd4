"""What is certainly wrong with training or data: for the list that a person reads first.

Input: a `Run`. Output: `HealthFinding`s of the few rules that are never wrong, without the others.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.health.image_rules import reshaped, unscaled_images
from clew.analysis.health.mode_rules import certain_modes
from clew.analysis.health.parameter_rules import in_no_optimizer
from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import TrainingFacts
from clew.analysis.health.verdicts import HealthFinding
from clew.run.run import Run

_CERTAIN = (in_no_optimizer, unscaled_images, reshaped)


def certain_faults(run: Run) -> list[HealthFinding]:
    """Return what is certainly a fault, for the list that a person reads first."""
    facts, limits = TrainingFacts(run), Thresholds()
    with np.errstate(all="ignore"):  # a file may hold statistics of any size
        found = [one for check in _CERTAIN for one in check(facts, limits).findings]
    return [*certain_modes(facts), *(one for one in found if one.certain)]
