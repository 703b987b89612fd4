"""Dimensions through a whole module call, for traces that have no ops.

Input: a call of a module, by the class and the shapes of its arguments. Output: a `Step`. Only
classes of torch.nn have rules; of any other module only what `same_place` allows is assumed.
"""

from __future__ import annotations

from clew.analysis.shape.call import (
    ASSUMED,
    CARRIED,
    CREATED,
    NOT_KNOWN,
    RESIZED,
    UNKNOWN,
    OpCall,
    Part,
    Step,
    passed,
)
from clew.analysis.shape.regrouping import regroup
from clew.analysis.shape.rules import same_place

_CHANNELS = tuple(f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3))
_TABLES = ("Embedding", "EmbeddingBag")
_SAME_TEXT = """
    ReLU ReLU6 GELU SiLU Tanh Sigmoid Softmax LogSoftmax LeakyReLU ELU SELU Mish Softplus
    Hardtanh Hardswish Hardsigmoid PReLU Identity Dropout Dropout1d Dropout2d Dropout3d
    AlphaDropout LayerNorm RMSNorm GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm
    InstanceNorm1d InstanceNorm2d InstanceNorm3d TransformerEncoderLayer TransformerDecoderLayer
    TransformerEncoder TransformerDecoder
"""
_SAME = frozenset(_SAME_TEXT.split())


def explain_module(call: OpCall, part: Part, path: str) -> Step:
    """Say where a dimension of a module's output comes from, as far as its class tells."""
    shape, last = call.shape(0), len(call.result) - 1
    if call.name in _SAME and shape == call.result:
        return passed(call, part, "0", part.dim)
    if call.name == "Linear" and part.dim == last:
        return Step(CREATED, f"created: out_features of {path}")
    if call.name in _CHANNELS and part.dim == 1:
        return Step(CREATED, f"created: out_channels of {path}")
    if call.name in _TABLES and part.dim == last:
        return Step(CREATED, f"created: embedding_dim of {path}")
    if call.name in ("Flatten", "Unflatten"):
        return regroup(call, part)
    if call.name in ("Linear", *_TABLES):
        return passed(call, part, "0", part.dim)
    if call.name in _CHANNELS or "Pool" in call.name:
        return _kernel(call, part)
    step = same_place(call, part)
    if step == NOT_KNOWN:
        return Step(UNKNOWN, f"made inside {path or 'the root module'}, not known how")
    return Step(ASSUMED, f"assumed carried through {path or 'the root module'}", step.sources)


def _kernel(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    if len(shape) != len(call.result):
        return NOT_KNOWN
    before, after = shape[part.dim], call.result[part.dim]
    how = CARRIED if before == after else RESIZED
    return passed(call, part, "0", part.dim, how, f"resized: {before} → {after}")
