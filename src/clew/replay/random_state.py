"""The states of all random generators that a program draws from by default.

Input: nothing. Output: a `RandomState`, which puts them back: Python's, NumPy's, torch's on the CPU
and on each device of an accelerator that is in use.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Accelerators with one generator per device, and those with a single one.
_MANY, _SINGLE = ("cuda", "xpu"), ("mps",)


@dataclass(frozen=True, slots=True)
class RandomState:
    """States of random generators at one moment: for each, what sets it and what to."""

    states: tuple[tuple[Callable[[Any], object], Any], ...]

    def restore(self) -> None:
        """Put all generators back to this state."""
        for restore, state in self.states:
            restore(state)


def random_state() -> RandomState:
    """Return the present states of all default generators."""
    states: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    for name in _MANY:
        module = getattr(torch, name)
        # Asking for the state of a device would start an accelerator that nobody uses.
        if module.is_available() and module.is_initialized():
            states.append((module.set_rng_state_all, module.get_rng_state_all()))
    for name in _SINGLE:
        module = getattr(torch, name)
        if getattr(torch.backends, name).is_available():
            states.append((module.set_rng_state, module.get_rng_state()))
    return RandomState(tuple(states))
