"""Figures from which on a rule of `health` finds something; each can be set by its name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from clew.address import nearest
from clew.errors import ClewError


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What counts as too much or too little; see docs/loss-does-not-go-down.md for each."""

    # norm of all gradients of a step, and how often the median of the steps before
    gradient_norm: float = 1e4
    gradient_jump: float = 100.0
    # size of a weight's gradients, of the largest among the weights
    vanishing: float = 1e-5
    # share of zeros in what an activation returns; share of its units that are zero always
    dead_share: float = 0.995
    dead_units: float = 0.5
    # slope of a sigmoid or tanh, on average, of its steepest
    saturated_slope: float = 0.02
    # norm of a step's change of a weight, of the norm of the weight
    update_large: float = 0.3
    update_small: float = 1e-8
    # loss, of the median of those before
    loss_jump: float = 3.0
    # train steps in a row with the same batch
    same_batches: float = 3
    # largest number that an image has when it is scaled
    image_range: float = 32.0

    def changed(self, given: dict[str, Any]) -> Thresholds:
        """Return thresholds with others in place of some; raise ClewError for unknown names."""
        known = [field.name for field in fields(self)]
        for name, value in given.items():
            if name not in known:
                near = nearest(name, known)
                meant = f"; did you mean {', '.join(near)}" if near else ""
                raise ClewError(f"health has no threshold {name!r}{meant}; there are: {known}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                raise ClewError(f"the threshold {name} is a number, not {value!r}")
        return replace(self, **{name: float(value) for name, value in given.items()})

    def to_dict(self) -> dict[str, float]:
        """Return the thresholds by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
