"""`clew.diff_models`: run two models, and say where the second parts from the first.

Input: two modules or functions with their inputs. Output: a `Diff`. Both are recorded, the noise is
measured on the first, and the module that is suspected is run on the inputs that the first had.
Models of less than float32 are compared as copies that compute in a wider dtype, so that rounding
does not hide what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import Tensor, nn

from clew.analysis.diff.candidates import candidates
from clew.analysis.diff.compared import compare
from clew.analysis.diff.differ import answer, comparable, described
from clew.analysis.diff.divergence import Diff
from clew.analysis.diff.noise import NOISE, Noise, noise_of_runs
from clew.errors import ClewError
from clew.replay.calibrating import perturbed_runs
from clew.replay.calling import Call, call_of
from clew.replay.casting import Precision, cast_copy, precision_of
from clew.replay.confirming import Grafts
from clew.replay.model_state import unchanged
from clew.replay.random_state import random_state
from clew.replay.recording import check_enabled
from clew.replay.rounding import rounding_divergence
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
    with unchanged([ref, new]):
        precision = precision_of(ref, new)
        if precision is not None:
            found = _in_wide(a, b, precision)
            if found is not None:
                return found
        return _diff(a, b)[0]


def _in_wide(a: Call, b: Call, precision: Precision) -> Diff | None:
    """Compare copies that compute in a wide dtype; None if one cannot be made or cannot run.

    What one of them keeps as a buffer the other may compute, so parameters alone are rounded if the
    copies differ otherwise. If these agree in both, it remains to see what is lost by rounding.
    """
    best: tuple[Diff, Run] | None = None
    has_buffers = any(b.is_floating_point() for call in (a, b) for b in _buffers(call))
    for buffers in (True, False) if has_buffers else (True,):
        pair = [_wide(call, precision, buffers) for call in (a, b)]
        if pair[0] is None or pair[1] is None:
            return None
        try:
            found = _diff(pair[0], pair[1], str(precision))
        except (RuntimeError, TypeError):  # a dtype that is written in the code of the model
            return None
        if best is None or found[0].equal or found[0].matched.b > best[0].matched.b:
            best = found
        if found[0].equal:
            break
    assert best is not None
    diff, run = best
    note = f"compared in {str(precision.wide).removeprefix('torch.')}, with weights of {precision}"
    diff = replace(diff, notes=(note, *diff.notes))
    return rounding_divergence(a, b, precision, diff, run) if diff.equal else diff


def _wide(call: Call, precision: Precision, buffers: bool) -> Call | None:
    assert isinstance(call.model, nn.Module)
    copied = cast_copy(call.model, precision.wide, precision.narrow, buffers)
    return None if copied is None else replace(call, model=copied, inputs=precision.of(call.inputs))


def _buffers(call: Call) -> list[Tensor]:
    return [] if call.module is None else list(call.module.buffers())


def _diff(a: Call, b: Call, narrow: str = "") -> tuple[Diff, Run]:
    """Record both, measure the noise of the first, compare; return that, and the run of the first.

    A place where a graft shows that the error comes from before it is passed over. Values of the
    dtype `narrow`, to which the code of a model casts, make everything as noisy as they are.
    """
    run_a, run_b, notes = comparable(a.run(), b.run())
    is_narrow = any(meta.dtype == narrow for run in (run_a, run_b) for meta in run.metas)
    noise = NOISE[narrow] if is_narrow else _noise(a, run_a)
    found = compare(run_a, run_b, None, noise)
    grafts = Grafts(found, a, b)
    passed: list[str] = []
    named = None
    for place in islice(candidates(found), _CHECKED):
        first = described(found, place)
        verdict = grafts.verdict(first)
        if verdict is None or verdict.is_confirmed:
            said = [] if verdict is None else [verdict.said]
            named = replace(first, evidence=(*first.evidence, *said))
            break
        passed.append(verdict.said)
    return answer(found, named, noise, [*notes, *_unique(passed)]), run_a


def _unique(said: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(said))


def _noise(call: Call, run: Run) -> Noise | None:
    """Measure the noise of a call that was recorded; None if there is nothing to measure."""
    moved = [] if call.module is None else perturbed_runs(call, call.module, _PERTURBED)
    try:
        return noise_of_runs([run, call.run()], moved)
    except ClewError:  # no op returned numbers
        return None
