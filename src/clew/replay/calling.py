"""A model or function with the inputs it is to be called with.

Input: what to call, and a tuple of positional or a dict of keyword arguments. Output: a `Call`,
which gives it a copy of the inputs each time and can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from clew.errors import ClewError
from clew.replay.model_state import unchanged
from clew.replay.nested import changed, own_copy
from clew.replay.random_state import RandomState
from clew.replay.recording import VALUES, recorded
from clew.run.run import Run


@dataclass(frozen=True, slots=True)
class Call:
    """Something to call with the same inputs, from the same random state, as often as needed."""

    model: Callable[..., object]
    inputs: Any
    start: RandomState

    def __call__(self) -> object:
        """Call it once; what it writes to its inputs and buffers is lost."""
        given = changed(self.inputs, own_copy)
        with unchanged([self.model], weights=False):
            self.start.restore()
            return self.model(**given) if isinstance(given, dict) else self.model(*given)

    @property
    def module(self) -> nn.Module | None:
        """Return what is called if it is a module."""
        return self.model if isinstance(self.model, nn.Module) else None

    def run(self, values: str = VALUES) -> Run:
        """Record a call."""
        return recorded(self, self.model, values)[0]._current_run()


def call_of(model: object, inputs: object, start: RandomState, name: str) -> Call:
    """Check what was given; ClewError says what is expected instead."""
    if not callable(model):
        raise ClewError(f"diff_models({name}=...): {type(model).__name__} cannot be called")
    if not isinstance(inputs, (tuple, list, dict)):
        raise ClewError(
            f"diff_models({name}_inputs=...) takes a tuple of positional or a dict of keyword "
            f"arguments, not {type(inputs).__name__}; write ({name}_inputs,)"
        )
    return Call(model, dict(inputs) if isinstance(inputs, dict) else tuple(inputs), start)
