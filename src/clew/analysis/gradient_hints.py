"""Why an op of the backward pass returned NaN or Inf: where the gradient of its forward op ends.

Input: an op event that has a forward op, and its result that is not finite. Output: a sentence,
empty if the reason is not known.
"""

from __future__ import annotations

from clew.analysis.nonfinite_hints import LARGEST, NARROW, number_text, size_of, stats_of
from clew.events.model import Stats
from clew.events.op_names import bare_op
from clew.run.event import Event
from clew.run.value import Value

_LOGARITHMS = ("log", "log2", "log10", "xlogy", "log1p")
_NORMS = ("linalg_vector_norm", "norm", "hypot", "_cdist_forward", "dist")
_EQUALS = {"_linalg_svd": "singular values", "_linalg_eigh": "eigenvalues"}
_LEFT_OUT = (
    "; where the value itself is left out, by torch.where or a mask, its gradient is 0 × Inf, NaN"
)


def gradient_reason(event: Event, result: Value) -> str:
    """Write why the gradient of a forward op is not finite."""
    forward = event.forward
    if forward is None or result.stats is None:
        return ""
    base = bare_op(forward.name).rstrip("_")
    for say in (_at_zero, _at_one, _of_power, _of_equals, _of_overflow):
        text = say(base, forward, event, result)
        if text:
            return text
    return ""


def _at_zero(base: str, forward: Event, event: Event, result: Value) -> str:
    """Explain roots, logarithms, norms and quotients where something is 0."""
    if base in ("sqrt", "std", *_NORMS):
        given, what = _output(forward), f"results of {_said(base)}"
    elif base in _LOGARITHMS and base != "log1p":
        given, what = stats_of(forward, "1" if base == "xlogy" else "0"), f"inputs of {base}"
    elif base in ("div", "reciprocal", "rsqrt", "atan2"):
        given = stats_of(forward, "1" if base == "div" else "0")
        what = "divisors" if base == "div" else f"inputs of {base}"
    else:
        return ""
    if given is None or not given.zeros:
        return ""
    text = f"the gradient of {_said(base)} at 0 is not finite: {_zeros(given)} {what} are 0"
    is_direct = base in ("sqrt", "log", "log2", "log10", "div", "reciprocal")
    return text + (_LEFT_OUT if is_direct and _is_left_out(event, result) else "")


def _at_one(base: str, forward: Event, event: Event, result: Value) -> str:
    """Explain inverse functions at the ends of what they take."""
    given = stats_of(forward, "0")
    if base not in ("acos", "asin", "atanh", "acosh", "log1p") or given is None:
        return ""
    if given.min is None or given.max is None:
        return ""
    low, high = given.min, given.max
    is_there = low <= 1 if base == "acosh" else low <= -1 if base == "log1p" else (
        max(abs(low), abs(high)) >= 1
    )  # fmt: skip
    if not is_there:
        return ""
    where = {"acosh": "1", "log1p": "-1"}.get(base, "±1")
    return (
        f"the gradient of {base} at {where} is not finite: its input is from {number_text(low)} to "
        f"{number_text(high)}"
    )


def _of_power(base: str, forward: Event, event: Event, result: Value) -> str:
    exponent, given = forward.arguments.get("1"), stats_of(forward, "0")
    if base != "pow" or given is None or not isinstance(exponent, (int, float)):
        return ""
    if exponent >= 1 or not given.zeros:
        return ""
    power = number_text(exponent)
    text = f"the gradient of x ** {power} at 0 is not finite: {_zeros(given)} elements of x are 0"
    return text + (_LEFT_OUT if _is_left_out(event, result) else "")


def _of_equals(base: str, forward: Event, event: Event, result: Value) -> str:
    if base not in _EQUALS:
        return ""
    return f"equal {_EQUALS[base]} have no finite gradient of their vectors"


def _of_overflow(base: str, forward: Event, event: Event, result: Value) -> str:
    """Explain gradients too large for a narrow dtype."""
    if result.dtype not in NARROW or result.stats is None or not result.stats.inf:
        return ""
    largest = max((size_of(value.stats) for value in event.inputs.values()), default=0.0)
    return (
        f"the gradient of {_said(base)} overflows: {result.dtype} holds up to "
        f"{number_text(LARGEST[result.dtype])}, and it took up to {number_text(largest)}"
    )


def _is_left_out(event: Event, result: Value) -> bool:
    """Return whether a gradient of 0 became NaN."""
    return (
        result.stats is not None
        and result.stats.nan > 0
        and any(v.stats is not None and v.stats.zeros for v in list(event.inputs.values())[:1])
    )


def _output(event: Event) -> Stats | None:
    first = next(iter(event.outputs.values()), None)
    return None if first is None else first.stats


def _said(base: str) -> str:
    names = {"linalg_vector_norm": "a norm", "norm": "a norm", "_cdist_forward": "cdist",
             "div": "a division", "_to_copy": "a cast"}  # fmt: skip
    return names.get(base, base.strip("_"))


def _zeros(stats: Stats) -> str:
    return f"{stats.zeros:,} of {stats.count:,}"
