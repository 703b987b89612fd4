"""What usually helps against NaN or Inf that an op made.

Input: the op event, its result and the reason that was found. Output: a sentence, empty if there is
no usual way.
"""

from __future__ import annotations

from clew.analysis.nonfinite_hints import NARROW
from clew.events.op_names import bare_op
from clew.run.event import Event
from clew.run.value import Value

_SAFE_FIRST = (
    "choose a safe number before the op, not after it: x = torch.where(ok, x, 1), then the op"
)
_ROW = "keep one place of every row unmasked, or mask with torch.finfo(dtype).min, which is finite"
_DIVISOR = "clamp the divisor, or add a small number to it: x / (y + 1e-8)"
_FORWARD = {
    "log": "clamp first: x.clamp(min=1e-8).log(); for probabilities use log_softmax or logsigmoid",
    "log1p": "clamp first, so that nothing is ≤ -1",
    "sqrt": "clamp first: x.clamp(min=0).sqrt(); a variance computed as a difference can be < 0",
    "rsqrt": "add a small number first: (x + 1e-8).rsqrt()",
    "exp": "subtract the largest element first, as softmax and logsumexp do, or clamp the input",
    "acos": "clamp first: x.clamp(-1 + 1e-6, 1 - 1e-6)",
    "pow": "clamp or add a small number first: (x + 1e-8) ** p",
    "div": _DIVISOR,
    "std": "use several elements, or correction=0",
    "mean": "skip the step if nothing is left to average, or divide by count.clamp(min=1)",
    "nll_loss_forward": "skip batches without a target, or sum and divide by count.clamp(min=1)",
    "native_layer_norm": "give the norm an eps > 0; elements that are all equal have no deviation",
}  # fmt: skip
_LIKE = {
    "log2": "log", "log10": "log", "asin": "acos", "atanh": "acos", "erfinv": "acos",
    "logit": "acos", "reciprocal": "div", "remainder": "div", "fmod": "div", "addcdiv": "div",
    "expm1": "exp", "exp2": "exp", "sinh": "exp", "cosh": "exp", "var": "std", "std_mean": "std",
    "var_mean": "std", "nll_loss2d_forward": "nll_loss_forward", "native_batch_norm": "std",
    "native_group_norm": "native_layer_norm",
}  # fmt: skip
_GRADIENT = {
    "sqrt": "add a small number before the root: (x + 1e-8).sqrt()",
    "linalg_vector_norm": "add a small number under the root, or use F.normalize, which has eps",
    "std": "add a small number to the variance before the root: (x.var() + 1e-8).sqrt()",
    "_linalg_svd": "break ties with a little noise, or use only the singular values",
    "_linalg_eigh": "break ties with a little noise, or use only the eigenvalues",
}


def remedy(event: Event, result: Value, reason: str) -> str:
    """Write what usually helps; `reason` is why the op gave what is not finite."""
    if "row" in reason and "-inf alone" in reason:
        return _ROW
    if event.phase == "optimizer":
        return "lower the learning rate, or clip gradients: torch.nn.utils.clip_grad_norm_"
    forward = event.forward
    if forward is not None:
        return _for_gradient(bare_op(forward.name).rstrip("_"), result, reason)
    base = bare_op(event.name).rstrip("_").removeprefix("_foreach_")
    if reason.startswith("overflow"):
        return _for_overflow(result)
    return _FORWARD.get(_LIKE.get(base, base), "") if reason else ""


def _for_gradient(base: str, result: Value, reason: str) -> str:
    if "left out" in reason:
        return _SAFE_FIRST
    if "overflow" in reason:
        return (
            "scale the loss with torch.amp.GradScaler, which skips such steps; if you do, a scale "
            "that is too large"
            if result.dtype in NARROW
            else "clip, or scale the loss down"
        )
    if not reason:
        return ""
    alike = _LIKE.get(base, base)
    return _GRADIENT.get(base) or _FORWARD.get(alike, "")


def _for_overflow(result: Value) -> str:
    if result.dtype in NARROW:
        return (
            "run this op in float32 (torch.autocast(..., enabled=False)) or bfloat16, or make its "
            "input smaller"
        )
    return "make its input smaller: normalize it, or lower the learning rate if weights have grown"
