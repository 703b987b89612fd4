"""Find the module that loses more to rounding than the reference would.

Input: two models that compute the same, the second in a narrow dtype. Output: their `Diff`, in
which a module is named whose result, given what the reference had, is far worse than that of the
reference cast to the same dtype. Only models with modules of the same names are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from clew.analysis.diff.divergence import Diff, Divergence
from clew.analysis.diff.parting import WRONG
from clew.events.vocabulary import MODULE
from clew.replay.calling import Call
from clew.replay.casting import Precision, cast_copy, dtype_of
from clew.replay.grafting import error_of
from clew.replay.nested_tensors import changed, floats_in
from clew.run.event import Event
from clew.run.run import Run

# An error is too large if it is so many times that of the reference in the same dtype.
_TIMES = 8.0
# Of what one rounding may do, so much is never too large.
_ROUNDINGS = 2.0

# The number of a call of a module, by its path.
_Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a call of a module was given and returned."""

    inputs: list[Tensor]
    outputs: list[Tensor]


def rounding_divergence(a: Call, b: Call, precision: Precision, diff: Diff, run: Run) -> Diff:
    """Return the comparison, with the first module of `b` that loses too much as `first`."""
    if dtype_of(b.model) != precision.narrow:
        return diff
    reference = _cast_call(a, precision, precision.wide)
    normal = _cast_call(a, precision, precision.narrow)
    if reference is None or normal is None:
        return diff
    calls = _calls_of(reference)
    try:
        errors, usual = _local_errors(b, calls), _local_errors(normal, calls)
    except (RuntimeError, TypeError):  # the reference cannot compute in that dtype
        return diff
    if errors.keys() != usual.keys():
        return diff  # other modules: the error of each is one of more or of less
    for place, error in errors.items():
        expected = max(usual[place], _ROUNDINGS * precision.rounding)
        if error > _TIMES * expected:
            return _named(diff, run, b.run(), place, error, usual[place], precision)
    return diff


def _named(
    diff: Diff, run_a: Run, run_b: Run, place: _Place, error: float, usual: float,
    precision: Precision,
) -> Diff:  # fmt: skip
    a, b = (_event(run, place) for run in (run_a, run_b))
    said = (
        f"on a's inputs b's {place[0]} differs by {error:.0e} from a's result, and a's own in "
        f"{precision} by {usual:.0e}: it loses precision here"
    )
    return replace(diff, equal=False, first=Divergence(WRONG, a, b, (said,), ()))


def _event(run: Run, place: _Place) -> Event | None:
    for row in run.rows(MODULE).tolist():
        if (run.module_path(row), int(run.call[row])) == place:
            return run.event(row)
    return None


def _cast_call(call: Call, precision: Precision, dtype: Any) -> Call | None:
    """Return the call of a copy in this dtype, with the weights that the narrow one has."""
    assert isinstance(call.model, nn.Module)
    copied = cast_copy(call.model, dtype, precision.narrow)
    if copied is None:
        return None
    inputs = changed(
        precision.of(call.inputs), lambda x: x.to(dtype) if x.dtype == precision.wide else x
    )
    return replace(call, model=copied, inputs=inputs)


def _calls_of(call: Call) -> dict[_Place, _Seen]:
    """Run a model; return what its modules were given and returned, in the order they end."""
    found: dict[_Place, _Seen] = {}

    def seen(place: _Place, inputs: Any, outputs: Any) -> None:
        found[place] = _Seen(
            [one.detach().clone() for one in floats_in(inputs)],
            [one.detach().clone() for one in floats_in(outputs)],
        )

    _hooked(call, lambda place, inputs: inputs, seen)
    return found


def _local_errors(call: Call, calls: dict[_Place, _Seen]) -> dict[_Place, float]:
    """Run a model in which every module is given what it was given in the reference's run.

    Return how far what each returns is from what it returned there.
    """
    found: dict[_Place, float] = {}

    def given(place: _Place, inputs: Any) -> Any:
        known = calls.get(place)
        own = floats_in(inputs)
        if known is None or [x.shape for x in own] != [x.shape for x in known.inputs]:
            return inputs
        placed = {id(x): y.to(x.dtype) for x, y in zip(own, known.inputs, strict=True)}
        return changed(inputs, lambda x: placed.get(id(x), x))

    def seen(place: _Place, inputs: Any, outputs: Any) -> None:
        known = calls.get(place)
        own = floats_in(outputs)
        if known is not None and [x.shape for x in own] == [x.shape for x in known.outputs]:
            errors = [error_of(x, y) for x, y in zip(own, known.outputs, strict=True)]
            found[place] = max(errors, default=0.0)

    _hooked(call, given, seen)
    return found


def _hooked(
    call: Call, given: Callable[[_Place, Any], Any], seen: Callable[[_Place, Any, Any], None]
) -> None:
    """Run a model, with its modules given and telling what the two functions say."""
    model = call.module
    assert model is not None
    counts: dict[str, int] = {}
    running: dict[str, list[tuple[_Place, Any]]] = {}
    hooks = []

    def add(path: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            place = path, counts.get(path, 0)
            counts[path] = place[1] + 1
            inputs = given(place, (args, kwargs))
            running.setdefault(path, []).append((place, inputs))
            return inputs

        def after(_: nn.Module, args: Any, output: Any) -> None:
            seen(*running[path].pop(), output)

        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(after))

    for path, module in model.named_modules():
        add(path, module)
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
