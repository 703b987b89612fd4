"""`clew.diff_models`: run two models, and say where the second parts from the first.

Input: two modules or functions with their inputs. Output: a `Diff`. Both are recorded, the noise is
measured on the first, and the module that is suspected is run on the inputs that the first had.
Models of less than float32 are compared as copies that compute in a wider dtype, so that rounding
does not hide what is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from clew.analysis.diff.candidates import candidates, place_before
from clew.analysis.diff.compared import Compared, compare
from clew.analysis.diff.differ import answer, comparable, described
from clew.analysis.diff.divergence import Diff, Divergence
from clew.analysis.diff.noise import NOISE, Noise, noise_of_runs
from clew.errors import ClewError
from clew.replay.calibrating import perturbed_runs
from clew.replay.calling import Call, call_of
from clew.replay.casting import Precision, cast_copy, floats_of, precision_of
from clew.replay.confirming import Grafts
from clew.replay.model_state import unchanged
from clew.replay.random_state import random_state
from clew.replay.recorded_runs import check_enabled
from clew.replay.rounding import rounding_divergence
from clew.replay.tables import merged, table_noise
from clew.run.run import Run

# So many places are checked before the first is named although a graft speaks against it.
_CHECKED = 8
# Runs with perturbed weights; one more repeats the reference as it is.
_PERTURBED = 2


def diff_models(ref: Any, ref_inputs: Any, new: Any, new_inputs: Any) -> Diff:
    """Run two models or functions on their inputs, and say where `new` parts from `ref`.

    Inputs are a tuple of positional or a dict of keyword arguments. Both are run several times,
    each time from the same random state: recorded, with perturbed weights to measure noise, and up
    to the module in question to confirm that it is at fault. Weights, buffers, gradients, modes and
    random generators are left as they were. The models may be of two precisions, such as float32
    and bfloat16:

        print(clew.diff_models(original, (x,), port, (x,)))
    """
    check_enabled("clew.diff_models")
    start = random_state()
    a, b = call_of(ref, ref_inputs, start, "ref"), call_of(new, new_inputs, start, "new")
    with unchanged([a.module, b.module]):
        precision = precision_of(ref, new)
        if precision is not None:
            found = _in_wide(a, b, precision)
            if found is not None:
                return found
        return _diff(a, b)[0]


def _in_wide(a: Call, b: Call, precision: Precision) -> Diff | None:
    """Compare copies that compute in a wide dtype; None if one cannot be made or cannot run."""
    try:
        best = _best_in_wide(a, b, precision)
    except (RuntimeError, TypeError):  # a dtype that is written in the code of the model
        return None
    if best is None:
        return None
    diff, run = best
    note = f"compared in {str(precision.wide).removeprefix('torch.')}, with weights of {precision}"
    diff = replace(diff, notes=(note, *diff.notes))
    return rounding_divergence(a, b, precision, diff, run) if diff.equal else diff


def _best_in_wide(a: Call, b: Call, precision: Precision) -> tuple[Diff, Run] | None:
    """Compare copies in the ways that what is no parameter can be rounded, until they agree.

    What one model keeps as a table the other may compute, and a parameter may be computed from
    several of the other model. So either both round their tables, or none does, or what only `b`
    has is as noisy as rounding makes it.
    """
    best: tuple[Diff, Run] | None = None
    for tables, is_noisy in ((True, False), (False, False), (True, True)):
        if not tables and not any(_has_tables(call) for call in (a, b)):
            continue
        wide_a, wide_b = (_wide(call, precision, tables) for call in (a, b))
        if wide_a is None or wide_b is None:
            return None
        more = None
        if is_noisy:
            again = partial(_wide, b, precision, True)
            more = table_noise(wide_a, wide_b, precision, again)
            if more is None:
                break
        found = _diff(wide_a, wide_b, str(precision), more)
        if best is None or found[0].equal or (not is_noisy and _is_better(found[0], best[0])):
            best = found
        if found[0].equal:
            break
    return best


def _is_better(found: Diff, other: Diff) -> bool:
    return found.matched.b > other.matched.b


def _has_tables(call: Call) -> bool:
    """Return whether a model has tensors that are no parameters."""
    if call.module is None:
        return False
    weights = {id(one) for one in call.module.parameters()}
    return any(id(one) not in weights for one in floats_of(call.module))


def _wide(call: Call, precision: Precision, buffers: bool) -> Call | None:
    assert isinstance(call.model, nn.Module)
    copied = cast_copy(call.model, precision.wide, precision.narrow, buffers)
    return None if copied is None else replace(call, model=copied, inputs=precision.of(call.inputs))


def _diff(a: Call, b: Call, narrow: str = "", more: Noise | None = None) -> tuple[Diff, Run]:
    """Record both, measure the noise of the first, compare; return that, and the run of the first.

    A place where a graft shows that the error comes from before it is passed over. Values of the
    dtype `narrow`, to which the code of a model casts, make everything as noisy as they are. `more`
    is noise of values of the second run.
    """
    run_a, run_b, notes = comparable(a.run(), b.run())
    is_narrow = any(meta.dtype == narrow for run in (run_a, run_b) for meta in run.metas)
    if is_narrow:
        noise: Noise | float | None = NOISE[narrow]
    else:
        noise = _noise(a, run_a) if more is None else merged(_noise(a, run_a), more)
    found = compare(run_a, run_b, None, noise)
    first, passed = _confirmed(found, Grafts(found, a, b))
    return answer(found, first, noise, [*notes, *passed]), run_a


def _confirmed(found: Compared, grafts: Grafts) -> tuple[Divergence | None, list[str]]:
    """Return the first place where runs part and that no graft speaks against, if there is one.

    Also return what was said of places that were passed over: where rounding, which is all that
    their inputs differ by, becomes a larger error.
    """
    passed: dict[str, None] = {}
    likeliest = None
    for number, place in enumerate(candidates(found)):
        first = described(found, place)
        likeliest = likeliest or first
        verdict = grafts.verdict(first)
        if verdict is None:
            return first, []
        while verdict.earlier >= 0:
            first = described(found, place_before(found, verdict.earlier))
            before = grafts.verdict(first, is_cleared=True)
            if before is None or before.is_confirmed or before.earlier < 0:
                break
            verdict = before
        if verdict.is_confirmed or verdict.earlier >= 0:
            return replace(first, evidence=(*first.evidence, verdict.said)), []
        passed[verdict.said] = None
        if number + 1 >= _CHECKED:
            return likeliest, list(passed)
    return None, list(passed)


def _noise(call: Call, run: Run) -> Noise | None:
    """Measure the noise of a call that was recorded; None if there is nothing to measure."""
    moved = [] if call.module is None else perturbed_runs(call.run, call.module, _PERTURBED)
    try:
        return noise_of_runs([run, call.run()], moved)
    except ClewError:  # no op returned numbers
        return None
