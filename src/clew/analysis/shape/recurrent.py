"""Dimensions through a whole call of a recurrent layer or cell, whatever ops it ran inside.

Input: a call by its class, settings, and the shapes of its arguments and weights. Output: a `Step`.
A state that was given has the same batch and width, but neither comes from it: the batch is that of
the input, the width that of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.analysis.shape.call import (
    CONCATENATED,
    CREATED,
    NOT_KNOWN,
    TAKEN,
    OpCall,
    Part,
    Step,
    passed,
    whole,
)

LAYERS = ("GRU", "LSTM", "RNN")
CELLS = tuple(f"{name}Cell" for name in LAYERS)


def recurrent_weights(cls: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the weights whose dim 1 is the width of the result.

    >>> recurrent_weights("GRU", {"num_layers": 2, "bidirectional": True})
    ['weight_hh_l1', 'weight_hh_l1_reverse']
    """
    if cls in CELLS:
        return ["weight_hh"]
    last = f"weight_hh_l{settings.get('num_layers', 1) - 1}"
    return [last, f"{last}_reverse"] if settings.get("bidirectional") else [last]


def explain_recurrent(call: OpCall, part: Part, settings: Mapping[str, Any]) -> Step:
    """Say where a dimension of a result comes from; `call.tensors` has the weights by name."""
    given = call.shape(0)
    if given is None or settings.get("proj_size"):
        return NOT_KNOWN
    is_state = call.name in LAYERS and not call.path.startswith("0")
    if part.dim == len(call.result) - 1:
        return _width(call, part, settings, is_state)
    if not is_state:
        return passed(call, part, "0", part.dim)
    if part.dim == 0:
        return Step(CREATED, "one for each layer and direction")
    return passed(call, part, "0", 0 if settings.get("batch_first") else 1)


def _width(call: OpCall, part: Part, settings: Mapping[str, Any], is_state: bool) -> Step:
    names = [name for name in recurrent_weights(call.name, settings) if name in call.tensors]
    if not names:
        return Step(CREATED, "created: hidden_size of the layer")
    if len(names) == 1 or is_state:
        text = "dim 1 of the recurrent weight, the hidden size"
        return passed(call, part, names[0], 1, TAKEN, text)
    sizes = " + ".join(str(call.tensors[name][1]) for name in names)
    sources = tuple((name, whole(call.tensors[name], 1)) for name in names)
    return Step(CONCATENATED, f"concatenated: {sizes}, one for each direction", sources)
