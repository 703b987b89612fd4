"""Why an op returned NaN or Inf, judged by recorded statistics.

Input: an op event and its result that is not finite. Output: a sentence, empty if the reason is not
known.
"""

from __future__ import annotations

import math

from clew.events.model import Stats
from clew.events.number_text import measured
from clew.events.op_names import bare_op
from clew.run.event import Event
from clew.run.value import Value

# The largest finite number of each dtype.
LARGEST = {
    "float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308,
    "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0,
}  # fmt: skip
# So narrow that overflow is the likely reason for Inf, for any op.
NARROW = ("float16", "float8_e4m3fn", "float8_e5m2")

_SQUARING = frozenset({"square", "mul", "mm", "bmm", "addmm", "baddbmm", "matmul", "pow", "dot"})
_EXPONENTIALS = {"exp": 1.0, "expm1": 1.0, "exp2": math.log(2), "sinh": 1.0, "cosh": 1.0}
_LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
# Ops that are defined between two bounds, which are included or not.
_BOUNDED = {"acos": "[-1, 1]", "asin": "[-1, 1]", "atanh": "(-1, 1)", "erfinv": "(-1, 1)"}
_MOMENTS = frozenset({"std", "var", "std_mean", "var_mean", "native_batch_norm"})


def reason(event: Event, result: Value) -> str:
    """Write why an op returned a result that is not finite."""
    base = bare_op(event.name).rstrip("_").removeprefix("_foreach_")
    if result.stats is None:
        return ""
    checks = (
        _of_domain, _of_division, _of_power, _of_few, _of_matrix, _of_constant, _of_update,
        _of_range,
    )  # fmt: skip
    for say in checks:
        text = say(base, event, result)
        if text:
            return text
    return ""


def made_nan_of_inf(event: Event) -> str:
    """Write how an op made NaN from Inf."""
    base = bare_op(event.name).rstrip("_")
    if "softmax" in base:
        return f"a row that {base.strip('_')} took is -inf alone"
    if "attention" in base or "attn" in base:
        return "a row of the mask is -inf alone"
    if base in ("add", "sub", "sum", "mean", "cumsum"):
        return "Inf and -Inf were added"
    if base in ("mul", "mm", "bmm", "addmm", "baddbmm", "matmul", "dot"):
        return "Inf was multiplied by 0, or Inf and -Inf were added"
    if base == "div":
        return "Inf was divided by Inf"
    return ""


def _of_domain(base: str, event: Event, result: Value) -> str:
    """Explain ops that take only some numbers: logarithms, roots, inverse functions."""
    stats = stats_of(event, "0")
    if stats is None or stats.min is None or stats.max is None:
        return ""
    low, high = stats.min, stats.max
    if base in _LOGARITHMS and low <= _LOGARITHMS[base]:
        bound = number_text(_LOGARITHMS[base])
        return f"{base} of a value ≤ {bound}: min of input 0 is {number_text(low)}"
    if base == "sqrt" and low < 0:
        return f"sqrt of a negative value: min of input 0 is {number_text(low)}"
    if base == "rsqrt" and low <= 0:
        return f"rsqrt of a value ≤ 0: min of input 0 is {number_text(low)}"
    if base == "acosh" and low < 1:
        return f"acosh of a value < 1: min of input 0 is {number_text(low)}"
    if base == "logit" and (low <= 0 or high >= 1):
        return f"logit of a value outside (0, 1): {_span(low, high)}"
    if base in _BOUNDED and max(abs(low), abs(high)) >= 1:
        return f"{base} of a value outside {_BOUNDED[base]}: {_span(low, high)}"
    if base in _EXPONENTIALS:
        most = math.log(LARGEST.get(result.dtype, math.inf)) / _EXPONENTIALS[base]
        if high >= most - 1e-3:
            most_of = f"{number_text(high)}, the max of input 0,"
            return f"{base} of {most_of} is more than {result.dtype} holds"
    return ""


def _span(low: float, high: float) -> str:
    return f"input 0 is from {number_text(low)} to {number_text(high)}"


def _of_matrix(base: str, event: Event, result: Value) -> str:
    if base in ("_linalg_slogdet", "linalg_inv_ex", "_linalg_det"):
        return "the matrix is singular, or nearly so"
    return ""


def _of_update(base: str, event: Event, result: Value) -> str:
    """Explain what the step of an optimizer made."""
    if event.phase != "optimizer":
        return ""
    sizes = [size_of(value.stats) for value in event.inputs.values()]
    return (
        f"the update of the optimizer overflows: it took up to {number_text(max(sizes, default=0))}"
    )


def _of_division(base: str, event: Event, result: Value) -> str:
    if base not in ("div", "reciprocal", "remainder", "fmod", "floor_divide", "addcdiv"):
        return ""
    path = {"reciprocal": "0", "addcdiv": "2"}.get(base, "1")
    below = event.arguments.get(path)
    if isinstance(below, (int, float)) and not isinstance(below, bool) and below == 0:
        return "division by 0"
    stats = stats_of(event, path)
    if stats is None or not stats.zeros:
        return ""
    zeros = f"{stats.zeros:,} of {stats.count:,} elements of input {path} are 0"
    return ("0/0: " if _has_nan(result) else "division by zero: ") + zeros


def _of_power(base: str, event: Event, result: Value) -> str:
    stats = stats_of(event, "0")
    exponent = event.arguments.get("1")
    if base != "pow" or stats is None or not isinstance(exponent, (int, float)):
        return ""
    if exponent < 0 and stats.zeros:
        return (
            f"0 to the power of {number_text(exponent)}: {stats.zeros:,} elements of input 0 are 0"
        )
    if exponent != int(exponent) and stats.min is not None and stats.min < 0:
        low = number_text(stats.min)
        return f"a negative value to the power of {number_text(exponent)}: min of input 0 is {low}"
    return ""


def _of_few(base: str, event: Event, result: Value) -> str:
    """Explain results of too few elements: none to average, one for a standard deviation."""
    stats = stats_of(event, "0")
    if base in ("mean", "median", "nanmean") and stats is not None and stats.count == 0:
        return f"{base} of no elements"
    if base in _MOMENTS and stats is not None and _has_nan(result):
        each = stats.count // max(result.stats.count, 1) if result.stats is not None else 0
        if each <= 1:
            return f"{base} of {each} element{'' if each == 1 else 's'}"
    if base in ("native_layer_norm", "native_group_norm") and event.arguments.get("4", 1) == 0:
        return "the elements that it normalizes are equal, and eps is 0"
    if base in ("nll_loss_forward", "nll_loss2d_forward"):
        weight = event.outputs.get("1")
        total = None if weight is None or weight.stats is None else weight.stats.max
        if total == 0:
            return "every target is ignored: the total weight is 0"
    return ""


def _of_constant(base: str, event: Event, result: Value) -> str:
    given = nonfinite_arguments(event)
    if not given:
        return ""
    path, number = next(iter(given.items()))
    stats = stats_of(event, "0")
    if base == "mul" and _has_nan(result) and stats is not None and stats.zeros:
        return f"0 × {number}: {stats.zeros:,} of {stats.count:,} elements of input 0 are 0"
    return f"{number} was given as argument {path}"


def _of_range(base: str, event: Event, result: Value) -> str:
    """Explain numbers too large for the dtype of the result."""
    most = LARGEST.get(result.dtype)
    if most is None or result.stats is None or not result.stats.inf:
        return ""
    sizes = {path: size_of(value.stats) for path, value in event.inputs.items()}
    path, largest = max(sizes.items(), key=lambda item: item[1], default=("", 0.0))
    reached = largest * largest if base in _SQUARING else largest
    count = max((v.stats.count for v in event.inputs.values() if v.stats is not None), default=1)
    if result.dtype in NARROW or reached * count >= most:
        taken = f": the largest element of input {path} is {number_text(largest)}" if path else ""
        return f"overflow, {result.dtype} holds up to {number_text(most)}{taken}"
    return ""


def nonfinite_arguments(event: Event) -> dict[str, float]:
    """Return the Python numbers among an op's arguments that are not finite."""
    return {path: given for path, given in event.arguments.items() if is_nonfinite_number(given)}


def is_nonfinite_number(constant: object) -> bool:
    """Return whether an argument is a Python number that is not finite."""
    return isinstance(constant, float) and not math.isfinite(constant)


def stats_of(event: Event, path: str) -> Stats | None:
    """Return the statistics of one input of an op."""
    value = event.inputs.get(path)
    return None if value is None else value.stats


def size_of(stats: Stats | None) -> float:
    """Return the largest absolute value of some elements, 0 if it is not known."""
    if stats is None or stats.min is None or stats.max is None:
        return 0.0
    return max(abs(stats.min), abs(stats.max))


def _has_nan(result: Value) -> bool:
    return result.stats is not None and result.stats.nan > 0


def number_text(number: float) -> str:
    """Write a number as hints do."""
    return measured(number, 6)
