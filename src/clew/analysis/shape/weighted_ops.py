"""Dimensions through ops with weights or kernels: matmul, convolution, pooling, attention, RNNs.

Input: a call of such an op and a part of a dimension of its result. Output: a `Step`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clew.analysis.shape.call import (
    CARRIED,
    CREATED,
    MERGED,
    NOT_KNOWN,
    REPEATED,
    RESIZED,
    TAKEN,
    OpCall,
    Part,
    Rule,
    Step,
    passed,
    passed_by_one,
    product,
    whole,
)


def product_of(first: int, second: int) -> Rule:
    """Make the rule of matrix products by the positions of their factors."""

    def rule(call: OpCall, part: Part) -> Step:
        return _matmul(call, part, str(first), str(second))

    return rule


def _matmul(call: OpCall, part: Part, first: str, second: str) -> Step:
    left, right = call.tensors.get(first), call.tensors.get(second)
    if left is None or right is None:
        return NOT_KNOWN
    rows = len(call.result) - (len(right) > 1) - 1
    if len(right) > 1 and part.dim == len(call.result) - 1:
        text = f"dim {len(right) - 1} of the matrix it is multiplied by"
        return passed(call, part, second, len(right) - 1, TAKEN, text)
    if len(left) > 1 and part.dim == rows:
        return passed(call, part, first, len(left) - 2)
    return _batch(call, part, [(first, len(left) - 2), (second, len(right) - 2)], rows)


def _batch(call: OpCall, part: Part, sides: Sequence[tuple[str, int]], end: int) -> Step:
    """Step to the factors that have a batch dimension with its full size."""
    placed = [(path, part.dim - end + batch, batch) for path, batch in sides]
    size = call.result[part.dim]
    found = [(p, dim) for p, dim, b in placed if 0 <= dim < b and call.tensors[p][dim] == size]
    return passed_by_one(call, part, found)


def linear(call: OpCall, part: Part) -> Step:
    if part.dim == len(call.result) - 1 and len(call.shape(1, "weight") or ()) == 2:
        path = call.path_of(1, "weight")
        return passed(call, part, path, 0, TAKEN, "dim 0 of the weight, its output features")
    return passed(call, part, "0", part.dim)


def outer(call: OpCall, part: Part) -> Step:
    path = str(part.dim)
    return passed(call, part, path, 0, TAKEN, "one of the two vectors has it")


def cdist(call: OpCall, part: Part) -> Step:
    rank = len(call.result)
    if part.dim == rank - 1:
        return passed(call, part, "1", rank - 2, TAKEN, "one for each row of the second tensor")
    return passed(call, part, "0", part.dim)


def convolution(call: OpCall, part: Part) -> Step:
    weight = call.shape(1, "weight")
    if weight is None or len(weight) != len(call.result):
        return NOT_KNOWN
    if part.dim == 0:
        return passed(call, part, "0", 0)
    path = call.path_of(1, "weight")
    transposed = _is_transposed(call)
    if part.dim == 1:
        dim = 1 if transposed else 0
        return passed(call, part, path, dim, TAKEN, f"dim {dim} of the weight, its output channels")
    return _resized(call, part, weight[part.dim], part.dim - 2, _SETTINGS.get(call.name, {}))


# Positions of the settings of each kernel that convolves or pools.
_CONV = {"stride": 3, "padding": 4, "dilation": 5}
_SETTINGS: dict[str, dict[str, int]] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _CONV),
    **{f"conv{n}d": _CONV for n in (1, 2, 3)},
    "mkldnn_convolution": {"padding": 3, "stride": 4, "dilation": 5},
    "cudnn_convolution": {"padding": 2, "stride": 3, "dilation": 4},
    "thnn_conv2d": {"stride": 4, "padding": 5},
    "_slow_conv2d_forward": {"stride": 4, "padding": 5},
}


def _is_transposed(call: OpCall) -> bool:
    if "transpose" in call.name:
        return True
    return call.name in ("convolution", "_convolution") and bool(call.get(6, "transposed", False))


def _resized(
    call: OpCall, part: Part, kernel: int | None, axis: int, positions: dict[str, int]
) -> Step:
    """Step through a kernel that slides along a dimension; one that keeps the size changes none."""
    shape = call.shape(0) or ()
    if len(shape) != len(call.result):
        return NOT_KNOWN
    before, after = shape[part.dim], call.result[part.dim]
    if before == after:
        return passed(call, part, "0", part.dim)
    said = [] if kernel is None else [f"kernel {kernel}"]
    for name, position in positions.items():
        setting = _at(call.ints(position, name), axis)
        if name == "stride" and setting is None and "pool" in call.name:
            setting = kernel
        plain_one = {"stride": 1, "padding": 0, "dilation": 1}[name]
        said += [f"{name} {setting}"] if setting not in (None, plain_one) else []
    text = f"resized: {before} → {after}" + (f" ({', '.join(said)})" if said else "")
    return passed(call, part, "0", part.dim, RESIZED, text)


def _at(numbers: list[int] | None, axis: int) -> int | None:
    """Return the setting of an axis; one number stands for all."""
    if not numbers:
        return None
    return numbers[axis] if axis < len(numbers) else numbers[-1]


def pool(call: OpCall, part: Part) -> Step:
    axes = _axes(call)
    axis = part.dim - (len(call.result) - axes)
    if axis < 0:
        return passed(call, part, "0", part.dim)
    kernel = _at(call.ints(1, "kernel_size"), axis)
    return _resized(call, part, kernel, axis, {"stride": 2, "padding": 3})


def to_size(call: OpCall, part: Part) -> Step:
    """Step through pooling and interpolation to a size that was given."""
    axis = part.dim - (len(call.result) - _axes(call))
    if axis < 0:
        return passed(call, part, "0", part.dim)
    shape = call.shape(0) or ()
    if len(shape) == len(call.result) and shape[part.dim] == call.result[part.dim]:
        return passed(call, part, "0", part.dim)
    before = f" from {shape[part.dim]}" if len(shape) == len(call.result) else ""
    return Step(CREATED, f"created: resized to {call.result[part.dim]}{before}, the size given")


def upsample(call: OpCall, part: Part) -> Step:
    """Step through interpolation, whose size may have been computed from that of the argument."""
    axis = part.dim - (len(call.result) - _axes(call))
    shape = call.shape(0) or ()
    if axis < 0 or len(shape) != len(call.result):
        return passed(call, part, "0", part.dim)
    text = f"resized: {shape[part.dim]} → {call.result[part.dim]}"
    how = CARRIED if shape[part.dim] == call.result[part.dim] else RESIZED
    return passed(call, part, "0", part.dim, how, text)


def _axes(call: OpCall) -> int:
    """Return along how many dimensions a kernel works, by the name of the op: `max_pool2d`."""
    found = re.search(r"(\d)d", call.name)
    return int(found[1]) if found else 0


def attention(call: OpCall, part: Part) -> Step:
    """Step through attention: all dims are the query's, but the last is the value's."""
    last = len(call.result) - 1
    query, value = call.path_of(0, "query"), call.path_of(2, "value")
    shape = call.tensors.get(query)
    if shape is None:
        return NOT_KNOWN
    is_weights = call.path == "1" and len(call.result) == len(shape)
    if part.dim == last and is_weights:
        return passed(call, part, call.path_of(1, "key"), last - 1, TAKEN, "one for each key")
    if part.dim == last and len(call.result) == len(shape) and call.path != "1":
        if (call.tensors.get(value) or ())[last:] == shape[last:]:
            return passed(call, part, query, last)
        return passed(call, part, value, last, TAKEN, "the last dim of the value")
    return passed(call, part, query, part.dim)


def rnn_layer(call: OpCall, part: Part) -> Step:
    """Step through oneDNN's layer: `[steps, batch, hidden]`, or a last state, `[batch, hidden]`."""
    at = part.dim + (3 - len(call.result))
    if not 0 <= at <= 2:
        return NOT_KNOWN
    if at == 2:
        return passed(call, part, "2", 1, TAKEN, "dim 1 of the recurrent weight, the hidden size")
    return passed(call, part, "0", at)


def rnn_cell(call: OpCall, part: Part) -> Step:
    """Step through a fused cell: results have the shape of the hidden state."""
    hidden = call.shape(2) or ()
    return passed(call, part, "2", part.dim) if call.result == hidden else NOT_KNOWN


def windows(call: OpCall, part: Part) -> Step:
    """Step through `im2col`: `[batch, channels × kernel, windows]`."""
    shape = call.shape(0) or ()
    kernel = call.ints(1, "kernel_size") or []
    if len(shape) != 4 or len(call.result) != 3:
        return NOT_KNOWN
    if part.dim == 0:
        return passed(call, part, "0", 0)
    if part.dim == 1:
        text = f"repeated: {call.result[1]} = {product([shape[1], *kernel])}, a window per channel"
        return passed(call, part, "0", 1, REPEATED, text)
    text = f"merged from dims 2 and 3: {call.result[2]} windows"
    return Step(MERGED, text, (("0", whole(shape, 2)), ("0", whole(shape, 3))))


def trilinear(call: OpCall, part: Part) -> Step:
    """Step through the product of three tensors, each with dims of 1 put in, summed over some."""
    put_in = [set(call.ints(at, f"expand{at - 2}") or []) for at in (3, 4, 5)]
    rank = len(call.shape(0) or ()) + len(put_in[0])
    kept = [dim for dim in range(rank) if dim not in (call.ints(6, "sumdim") or [])]
    at = kept[part.dim]
    found = [
        (str(number), at - sum(dim < at for dim in dims))
        for number, dims in enumerate(put_in)
        if at not in dims
    ]
    size = call.result[part.dim]
    return passed_by_one(call, part, [(p, dim) for p, dim in found if call.tensors[p][dim] == size])


def grid_sample(call: OpCall, part: Part) -> Step:
    if part.dim < 2:
        return passed(call, part, "0", part.dim)
    return passed(call, part, "1", part.dim - 1, TAKEN, "the grid has it")


_ATTENTION = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
_PRODUCTS = (
    "mm", "bmm", "matmul", "mv", "dot", "vdot", "_int_mm", "_scaled_mm", "_grouped_mm",
)  # fmt: skip
_CONVOLUTIONS = (
    *_SETTINGS, "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "_convolution_mode",
    "_conv_depthwise2d", "conv_depthwise3d", "slow_conv3d", "slow_conv_transpose2d",
    "slow_conv_transpose3d", "slow_conv_dilated2d", "slow_conv_dilated3d", "miopen_convolution",
    "cudnn_convolution_transpose", "mps_convolution",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_PRODUCTS, product_of(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), product_of(1, 2)),
    "linear": linear,
    "mkldnn_linear": linear,
    "outer": outer,
    "ger": outer,
    "_cdist_forward": cdist,
    **dict.fromkeys(_CONVOLUTIONS, convolution),
    **{f"{kind}_pool{n}d": pool for kind in ("max", "avg", "lp") for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": pool for n in (1, 2, 3)},
    **{f"{lead}adaptive_{kind}_pool{n}d": to_size
       for lead in ("", "_") for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"{lead}upsample_{kind}{n}d{tail}": upsample
       for lead in ("", "_") for tail in ("", "_aa") for n in (1, 2, 3)
       for kind in ("nearest", "nearest-exact", "nearest_exact", "linear", "bilinear", "bicubic",
                    "trilinear")},
    **dict.fromkeys(_ATTENTION, attention),
    "mkldnn_rnn_layer": rnn_layer,
    "_thnn_fused_lstm_cell": rnn_cell,
    "_thnn_fused_gru_cell": rnn_cell,
    "im2col": windows,
    "_trilinear": trilinear,
    "grid_sampler_2d": grid_sample,
    "grid_sampler_3d": grid_sample,
}  # fmt: skip
