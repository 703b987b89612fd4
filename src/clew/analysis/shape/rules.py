"""Which dimension of which argument a dimension of an op's result comes from, and how.

Input: one call of an op, by shapes and constants, and a part of a dimension of its result. Output:
a `Step`. Families of ops with rules of their own are in the files beside; here are elementwise ops,
reductions, ops that keep the shape, ops that create tensors, and what to say of any other op.
"""

from __future__ import annotations

from clew.analysis.shape import arranging, regrouping, weighted_ops
from clew.analysis.shape.call import (
    ASSUMED,
    BROADCAST,
    CARRIED,
    CREATED,
    NOT_KNOWN,
    REDUCED,
    RESIZED,
    OpCall,
    Part,
    Rule,
    Step,
    normal,
    passed,
    passed_by_one,
)

# Ops that torch tags as pointwise, and others that broadcast their tensors in the same way. A test
# compares the list with torch's tags.
_ELEMENTWISE_TEXT = """
    __ilshift__ __ixor__ __lshift__ __rshift__ __xor__ __and__ __or__ _conj_physical abs acos
    acosh add addcdiv rrelu
    addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip clone
    conj_physical copysign cos cosh deg2rad digamma div elu eq erf erfc erfinv exp exp2 expm1
    float_power floor floor_divide fmax fmin fmod frac frexp gcd ge gelu gelu_backward gt
    hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isfinite isinf
    isnan isneginf isposinf lcm ldexp le leaky_relu lerp lgamma log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt
    masked_fill maximum minimum mish mul mvlgamma nan_to_num native_dropout_backward ne neg
    nextafter polygamma positive pow rad2deg reciprocal relu relu6 remainder round rsqrt rsub
    selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus
    softshrink special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
    special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_entr special_erfcx
    special_hermite_polynomial_h special_hermite_polynomial_he special_i0e special_i1
    special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py
    special_zeta sqrt square sub tan tanh tanh_backward threshold threshold_backward true_divide
    trunc where xlogy linalg_cross smooth_l1_loss huber_loss mse_loss binary_cross_entropy
    binary_cross_entropy_with_logits l1_loss soft_margin_loss
"""
ELEMENTWISE = frozenset(_ELEMENTWISE_TEXT.split())

# Ops whose result, or the first of several, has the shape of their first argument.
_SAME_SHAPE_TEXT = """
    softmax _softmax log_softmax _log_softmax _safe_softmax _softmax_backward_data
    _log_softmax_backward_data cumsum cumprod cummax cummin logcumsumexp sort argsort flip roll
    tril triu native_dropout dropout alpha_dropout feature_dropout bernoulli native_layer_norm
    layer_norm rms_norm _fused_rms_norm native_batch_norm batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm miopen_batch_norm
    instance_norm native_group_norm group_norm detach _to_copy to contiguous alias copy fill
    zero _copy_from index_put _index_put_impl _unsafe_index_put index_copy index_add index_fill
    index_reduce scatter scatter_add scatter_reduce masked_scatter put slice_scatter
    select_scatter diagonal_scatter as_strided_scatter uniform normal random exponential cauchy
    geometric log_normal _conj _neg_view resolve_conj resolve_neg renorm rrelu_with_noise
    log_sigmoid_forward glu_jvp fake_quantize_per_tensor_affine _native_multi_head_attention
    _transformer_encoder_layer_fwd _fft_c2c native_channel_shuffle channel_shuffle linalg_inv_ex
    matrix_exp lift linalg_cholesky_ex _make_dual _fw_primal set_data requires_grad
    as_strided _weight_norm_interface _pin_memory
"""
SAME_SHAPE = frozenset(_SAME_SHAPE_TEXT.split())

_REDUCTIONS_TEXT = """
    sum mean amax amin max min argmax argmin any all prod logsumexp var std var_mean std_mean
    norm linalg_vector_norm nansum nanmean median nanmedian mode kthvalue count_nonzero aminmax
"""
REDUCTIONS = frozenset(_REDUCTIONS_TEXT.split())

_CREATION_TEXT = """
    arange linspace logspace ones zeros full empty empty_strided empty_permuted rand randn
    randint randperm eye tril_indices triu_indices scalar_tensor hann_window hamming_window
    kaiser_window bartlett_window blackman_window lift_fresh from_file complex
    affine_grid_generator multinomial histc
"""
CREATION = frozenset(_CREATION_TEXT.split())


def explain(call: OpCall, part: Part) -> Step:
    """Say where a part of a dimension of a result comes from.

    >>> step = explain(OpCall("permute", {"0": (2, 3, 5)}, {"1": [0, 2, 1]}, (2, 5, 3)), Part(1, 5))
    >>> step.text, step.sources
    ('permuted from dim 2', (('0', Part(dim=2, size=5, inner=1)),))
    """
    rule = RULES.get(call.name)
    if call.overload in ("other", "binary") and call.name in ("max", "min"):
        rule = elementwise
    step = NOT_KNOWN if rule is None else rule(call, part)
    return same_place(call, part) if step == NOT_KNOWN else step


def elementwise(call: OpCall, part: Part) -> Step:
    """Step to the tensors that have this dimension in full, those of the full shape first."""
    size, rank = call.result[part.dim], len(call.result)
    full = [path for path, shape in call.tensors.items() if shape == call.result]
    rest = [path for path in call.tensors if path not in full]
    candidates, others = [(path, part.dim) for path in full], []
    for path in rest:
        dim = part.dim - (rank - len(call.tensors[path]))
        if dim >= 0 and call.tensors[path][dim] == size:
            candidates.append((path, dim))
        else:
            others.append("is not there" if dim < 0 else "is 1")
    if full or not others:
        return passed_by_one(call, part, candidates)
    text = f"broadcast: {size} here, while in another operand it {others[0]}"
    return passed_by_one(call, part, candidates, BROADCAST, text)


def same_shape(call: OpCall, part: Part) -> Step:
    shape = call.shape(0, "self")
    if shape != call.result:
        return NOT_KNOWN
    return passed(call, part, call.path_of(0, "self"), part.dim)


def created(call: OpCall, part: Part) -> Step:
    return Step(CREATED, f"created by {call.name} with size {call.result[part.dim]}")


def created_new(call: OpCall, part: Part) -> Step:
    """Step through `x.new_zeros(x.shape)`; of another shape only the sizes are known."""
    if call.shape(0, "self") != call.result:
        return created(call, part)
    text = f"assumed: {call.name} was given the shape of its tensor"
    return passed(call, part, call.path_of(0, "self"), part.dim, ASSUMED, text)


def created_like(call: OpCall, part: Part) -> Step:
    if call.shape(0, "self") != call.result:
        return created(call, part)
    return passed(call, part, call.path_of(0, "self"), part.dim)


def reduction(call: OpCall, part: Part) -> Step:
    """Step past the dimensions that were summed up; with `keepdim` they have size 1."""
    shape = call.shape(0, "self")
    if shape is None:
        return NOT_KNOWN
    if len(shape) == len(call.result):
        size = shape[part.dim]
        if call.result[part.dim] == size:
            return passed(call, part, "0", part.dim)
        return Step(REDUCED, f"reduced: {call.name} over {size}, kept as 1")
    asked = _reduced_dims(call)
    if asked is None:
        return NOT_KNOWN
    gone = {normal(dim, len(shape)) for dim in asked}
    left = [dim for dim in range(len(shape)) if dim not in gone]
    return passed(call, part, "0", left[part.dim]) if part.dim < len(left) else NOT_KNOWN


def _reduced_dims(call: OpCall) -> list[int] | None:
    """Return the dims of a reduction; norms take the order first, `kthvalue` the k."""
    second = call.name in ("norm", "linalg_vector_norm", "kthvalue")
    return call.ints(2 if second else 1, "dim")


def topk(call: OpCall, part: Part) -> Step:
    dim = normal(call.get(2, "dim", -1), len(call.result))
    if part.dim != dim:
        return passed(call, part, "0", part.dim)
    return Step(CREATED, f"created by {call.name} with k = {call.result[dim]}")


def glu(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    dim = normal(call.get(1, "dim", -1), len(call.result))
    text = f"halved: {shape[part.dim]} → {call.result[part.dim]}" if part.dim == dim else ""
    return passed(call, part, "0", part.dim, RESIZED if text else CARRIED, text)


def fft(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    if len(shape) != len(call.result) or shape[part.dim] == call.result[part.dim]:
        return passed(call, part, "0", part.dim)
    text = f"resized by the transform: {shape[part.dim]} → {call.result[part.dim]}"
    return passed(call, part, "0", part.dim, RESIZED, text)


def nll_loss(call: OpCall, part: Part) -> Step:
    """Step through a loss without reduction: it has the shape of the target."""
    if call.shape(1) != call.result:
        return NOT_KNOWN
    return passed(call, part, "1", part.dim)


def same_place(call: OpCall, part: Part) -> Step:
    """Assume that an op without a rule carries a dimension, if only one input can be its source.

    That is a tensor with the same size at the same place, counted from the left or from the right.
    The gradient of an op has the shape of the argument that it belongs to.
    """
    size, rank = call.result[part.dim], len(call.result)
    found = []
    for path, shape in call.tensors.items():
        places = dict.fromkeys((part.dim, part.dim - rank + len(shape)))
        found += [(path, dim) for dim in places if 0 <= dim < len(shape) and shape[dim] == size]
    if len({path for path, _ in found}) > 1 and "backward" in call.name:
        found = [(path, part.dim) for path, shape in call.tensors.items() if shape == call.result]
        found = found[:1]
    if len(found) != 1:
        return NOT_KNOWN
    return passed(call, part, *found[0], ASSUMED, "assumed: the only input with this size here")


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(SAME_SHAPE, same_shape),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(CREATION, created),
    **{f"{name}_like": created_like
       for name in ("zeros", "ones", "full", "empty", "rand", "randn", "randint")},
    **{f"new_{name}": created_new
       for name in ("zeros", "ones", "full", "empty", "empty_strided")},
    "topk": topk,
    "glu": glu,
    "_fft_r2c": fft,
    "_fft_c2r": fft,
    "nll_loss": nll_loss,
    "nll_loss_forward": nll_loss,
    "nll_loss2d_forward": nll_loss,
    **regrouping.RULES,
    **arranging.RULES,
    **weighted_ops.RULES,
}  # fmt: skip
