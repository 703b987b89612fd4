"""A model or function with the inputs it is to be called with.

Input: what to call, and a tuple of positional or a dict of keyword arguments. Output: a `Call`,
which gives it a copy of the inputs each time and can be recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from clew.errors import ClewError
from clew.replay.model_state import unchanged
from clew.replay.nested_tensors import changed, own_copy, tensors_in
from clew.replay.random_state import RandomState
from clew.replay.recorded_runs import VALUES, recorded
from clew.run.run import Run


@dataclass(frozen=True, slots=True)
class Call:
    """Something to call with the same inputs, from the same random state, as often as needed."""

    model: Callable[..., object]
    inputs: Any
    start: RandomState

    def __call__(self) -> object:
        """Call it once; what it writes to its inputs and buffers is lost."""
        with self._ready() as call:
            return call()

    @property
    def module(self) -> nn.Module | None:
        """Return what is called if it is a module, or the module whose method is called."""
        found = getattr(self.model, "__self__", self.model)
        return found if isinstance(found, nn.Module) else None

    def run(self, values: str = VALUES) -> Run:
        """Record a call."""
        # All that is done around the call is done outside the trace.
        with self._ready() as call:
            return recorded(call, self.module, values)[0]._current_run()

    @contextmanager
    def _ready(self) -> Iterator[Callable[[], object]]:
        """Give what calls the model once, from the same state, which is put back."""
        given = copied(self.inputs)
        call = (
            partial(self.model, **given) if isinstance(given, dict) else partial(self.model, *given)
        )
        with unchanged([self.module], weights=False):
            self.start.restore()
            yield call


def copied(inputs: Any) -> Any:
    """Copy inputs, as a model may write to them; objects such as caches too, where possible."""
    memo = {id(tensor): own_copy(tensor) for tensor in tensors_in(inputs)}
    try:
        return copy.deepcopy(inputs, memo)
    except Exception:  # whatever an object raises that cannot be copied
        return changed(inputs, own_copy)


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
