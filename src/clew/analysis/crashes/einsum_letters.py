"""Letters of an `einsum` that do not fit the tensors they stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.scene import GivenTensor, Scene


def einsum_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which letter has two sizes, or which tensor has another number of dimensions."""
    equation = _equation(scene)
    if equation is None:
        return None
    inputs = equation.partition("->")[0].split(",")
    tensors = list(scene.arguments)
    if len(inputs) != len(tensors) or "." in equation:
        return None
    for letters, tensor in zip(inputs, tensors, strict=True):
        if len(letters) != len(tensor.shape):
            letter = "letter" if len(letters) == 1 else "letters"
            says = f"{letters!r} has {len(letters)} {letter}, {tensor.name} is {tensor.look}"
            return Cause((says,), _with_ellipsis(equation, letters, tensor, inputs, tensors))
    return _two_sizes(inputs, tensors)


def _equation(scene: Scene) -> str | None:
    """Return the equation, if it is written in the call."""
    failed = scene.failed
    if failed is None or not failed.positional or not failed.function.endswith("einsum"):
        return None
    try:
        found = ast.literal_eval(failed.positional[0].text)
    except (ValueError, SyntaxError):
        return None
    return found.replace(" ", "") if isinstance(found, str) else None


def _two_sizes(inputs: Sequence[str], tensors: Sequence[GivenTensor]) -> Cause | None:
    seen: dict[str, tuple[GivenTensor, int]] = {}
    for letters, tensor in zip(inputs, tensors, strict=True):
        for dim, letter in enumerate(letters):
            first, at = seen.setdefault(letter, (tensor, dim))
            sizes = {first.shape[at], tensor.shape[dim]} - {1}
            if len(sizes) > 1:
                says = (
                    f"{letter!r} is {first.shape[at]} in dimension {at} of {first.name}, "
                    f"{tensor.shape[dim]} in dimension {dim} of {tensor.name}"
                )
                return Cause((says,), None, ((first, at), (tensor, dim)))
    return None


def _with_ellipsis(
    equation: str,
    letters: str,
    tensor: GivenTensor,
    inputs: Sequence[str],
    tensors: Sequence[GivenTensor],
) -> str | None:
    """Return the equation with `...` for a first letter that only this tensor and the result have.

    It stands for any number of dimensions, if the rest of the letters fit.
    """
    _, arrow, result = equation.partition("->")
    first, rest = letters[:1], letters[1:]
    is_own = sum(one.count(first) for one in inputs) == 1 and result.count(first) == 1
    if not arrow or not first or not is_own or not result.startswith(first):
        return None
    if len(tensor.shape) <= len(letters):
        return None
    last = tensor.shape[len(tensor.shape) - len(rest) :]
    sizes = dict(zip(rest, last, strict=True))
    for other, one in zip(inputs, tensors, strict=True):
        if one is not tensor:
            pairs = zip(other, one.shape, strict=False)
            if len(other) != len(one.shape) or any(sizes.get(a, n) != n for a, n in pairs):
                return None
    return repr(equation.replace(first, "..."))
