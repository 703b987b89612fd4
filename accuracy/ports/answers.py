"""What Clew answers about two traces. The only place that calls it."""

from __future__ import annotations

from typing import Any

from torch import nn

import clew
from clew import Trace
from clew.run.event import Event

# How traces are recorded that are to be compared.
VALUES = "stats"

# Kind, and the events of both runs.
Answer = tuple[str, Event | None, Event | None]


def recorded(model: nn.Module, inputs: tuple[Any, ...]) -> Trace:
    """Record one call of a model."""
    with clew.trace(model, values=VALUES) as trace:
        model(*inputs)
    return trace


def parting_of_models(
    ref: nn.Module, ref_inputs: tuple[Any, ...], new: nn.Module, new_inputs: tuple[Any, ...]
) -> Answer | None:
    """Return where two models part first, None if they do not."""
    first = clew.diff_models(ref, ref_inputs, new, new_inputs).first
    return None if first is None else (first.kind, first.a, first.b)


def parting_of(trace_a: Trace, trace_b: Trace) -> Answer | None:
    """Return where two traces part first, None if they do not."""
    first = clew.diff(trace_a, trace_b).first
    return None if first is None else (first.kind, first.a, first.b)
