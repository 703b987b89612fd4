"""Tables that a model keeps in a narrow dtype, such as angles of positions, and what that costs.

Input: copies of two models that compute in a wide dtype. Output: the noise that rounding such
tables of the second causes in its values. A reference that computes the same numbers does not round
them. A parameter that was computed from several of the reference is such a table, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isclose

import torch
from torch import Tensor, nn

from clew.analysis.diff.noise import Noise, noise_of_runs
from clew.errors import ClewError
from clew.replay.calling import Call
from clew.replay.casting import Precision, floats_of
from clew.replay.derived_weights import derived

_RUNS = 2
# Sums of tensors with the same elements differ by no more.
_SAME = 1e-6


def table_noise(
    a: Call, b: Call, precision: Precision, again: Callable[[], Call | None]
) -> Noise | None:
    """Measure what another rounding of the tables of `b` would change; None if it has none.

    `again` makes one more copy of `b`, which can be changed.
    """
    if a.module is None or b.module is None or not _tables(b.module, a.module):
        return None
    runs = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(_RUNS):
        other = again()
        if other is None or other.module is None:
            return None
        for table in _tables(other.module, a.module):
            signs = torch.randint(0, 2, table.shape, generator=generator) * 2.0 - 1
            table.data.mul_(1 + precision.rounding * signs.to(table))
        runs.append(other.run())
    try:
        return noise_of_runs([b.run()], runs)
    except ClewError:  # no op returned numbers
        return None


def merged(noise: Noise | None, more: Noise) -> Noise:
    """Return the noise of values of two runs; what both have is as noisy as in the noisier."""
    if noise is None:
        return more
    values = dict(noise.values)
    for key, level in more.values.items():
        values[key] = max(level, values.get(key, 0.0))
    return replace(noise, values=values)


def _tables(model: nn.Module, reference: nn.Module) -> list[Tensor]:
    """Return the tensors of a model that the reference lacks; of its parameters those that are not
    only put together of parameters of the reference.
    """
    weights = {id(one) for one in model.parameters()}
    theirs = floats_of(reference)
    known = [_facts(one) for one in theirs]
    lacking = [
        one for one in floats_of(model) if not any(_is_same(_facts(one), other) for other in known)
    ]
    tables = [one for one in lacking if id(one) not in weights]
    return tables + derived([one for one in lacking if id(one) in weights], theirs)


def _facts(tensor: Tensor) -> tuple[int, float, float]:
    data = tensor.detach().double()
    return data.numel(), float(data.sum()), float(data.norm())


def _is_same(x: tuple[int, float, float], y: tuple[int, float, float]) -> bool:
    return (
        x[0] == y[0]
        and isclose(x[2], y[2], rel_tol=_SAME)
        and isclose(x[1], y[1], rel_tol=_SAME, abs_tol=_SAME * max(x[2], y[2]))
    )
