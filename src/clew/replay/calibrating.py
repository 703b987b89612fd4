"""`clew.calibrate`: how far a program's values are from each other when nothing is wrong.

Input: a function, and perhaps the model it runs. Output: a `Noise` for `clew.diff(..., tol=)`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from clew.analysis.diff.noise import Noise, noise_of_runs
from clew.errors import ClewError
from clew.replay.model_state import unchanged
from clew.replay.perturbing import perturb
from clew.replay.recorded_runs import check_enabled, run_of
from clew.run.run import Run


def calibrate(fn: Callable[[], object], n: int = 3, model: nn.Module | None = None) -> Noise:
    """Measure the noise of `fn()` over `n` runs that begin with the same random state.

    With `model` there are `n` more runs with its weights moved by one unit in the last place, at
    random: what rounding in another order of ops could do. Weights, buffers, gradients, modes and
    random generators are put back bit for bit, also after exceptions. Name the model as the traces
    do that are to be compared:

        noise = clew.calibrate(lambda: model(x), model=model)
        print(clew.diff(a, b, tol=noise))
    """
    check_enabled("clew.calibrate")
    if n < 1 or (n < 2 and model is None):
        raise ClewError(f"calibrate(n={n}): noise is measured between runs; give n=2 or more")
    if model is not None and not isinstance(model, nn.Module):
        raise ClewError(f"calibrate(model=...) takes a torch module, not {type(model).__name__}")
    runs = [_repeat(fn, model) for _ in range(n)]
    if model is None:
        return noise_of_runs(runs)
    return noise_of_runs(runs, perturbed_runs(lambda: run_of(fn, model), model, n))


def perturbed_runs(record: Callable[[], Run], model: nn.Module, n: int) -> list[Run]:
    """Record runs with perturbed weights, which are put back; none if nothing can be moved."""
    found = []
    for seed in range(n):
        with unchanged([model]):
            if perturb(model, seed):
                found.append(record())
    return found


def _repeat(fn: Callable[[], object], model: nn.Module | None) -> Run:
    with unchanged([model]):
        return run_of(fn, model)
