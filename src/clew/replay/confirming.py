"""Confirm where two models part, by running the module in question on the other's inputs.

Input: a comparison of two recorded calls. Output: for a place where they may part a `Verdict`: what
the module of `b` around it makes of what `a` had there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from clew.analysis.diff.compared import Compared
from clew.analysis.diff.distance import ValueFacts
from clew.analysis.diff.divergence import Divergence
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.noise import value_keys
from clew.errors import ClewError
from clew.events.columns import IN, OUT
from clew.events.vocabulary import MODULE
from clew.replay.calling import Call
from clew.replay.grafting import arranged, error_of, graft
from clew.run.event import Event
from clew.run.run import Run


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a graft showed: whether the module is to blame, and the sentence that says so.

    `earlier` is a value that the module took and that differs beyond noise, -1 if there is none.
    """

    is_confirmed: bool
    said: str
    earlier: int = -1


class Grafts:
    """Grafts of modules of `b` on the values that `a` had in the same place."""

    def __init__(self, found: Compared, call_a: Call, call_b: Call) -> None:
        self._found = found
        self._call_a = call_a
        self._call_b = call_b

    def verdict(self, first: Divergence, is_cleared: bool = False) -> Verdict | None:
        """Run the smallest module call around a place; None if there is none that can be.

        `is_cleared`: a graft of a later module showed that what this one gave it was wrong.
        """
        if self._call_b.module is None:
            return None
        for row in self._around(first):
            verdict = self._judged(row, is_cleared)
            if verdict is not None:
                return verdict
        return None

    def _around(self, first: Divergence) -> Iterator[int]:
        """Give the calls of `b` around a place, innermost first, but for the whole model."""
        run = self._found.b.graph.run
        event = first.b
        if event is None and first.a is not None:
            # What `b` lacks would be in the call that has the name of the one of `a`.
            calls = {run.address(row): row for row in run.rows(MODULE).tolist()}
            above = (calls.get(one.address, -1) for one in _calls_around(first.a))
            yield from (row for row in above if row >= 0 and run.module_path(row))
        elif event is not None:
            yield from (one.row for one in _calls_around(event) if one.module)

    def _judged(self, row: int, is_wrong: bool) -> Verdict | None:
        b = self._found.b
        run = b.graph.run
        path = run.module_path(row)
        takes, gives = _floats(run, row, IN), _floats(run, row, OUT)
        if path is None or not gives or not all(b.right[v] for v in takes):
            return None
        done = graft(self._call_b, path, int(run.call[row]), [self._of_a(v) for v in takes])
        error = None if done is None or not done.results else self._error(row, done.results)
        if done is None or error is None:
            return None
        if error > max(float(b.noise[v]) for v in gives):
            return Verdict(
                True, f"on a's inputs b's {path} still differs by {error:.0e}: confirmed"
            )
        is_wrong = is_wrong or not all(b.right[v] for v in gives)
        if not is_wrong or not any(done.input_errors):
            return None  # what is wrong does not show in the result of this call
        said = f"on a's inputs b's {path} gives a's result to {error:.0e}"
        earlier = [
            value
            for value, apart in zip(takes, done.input_errors, strict=True)
            if apart > b.noise[value] and b.graph.maker[value] >= 0
        ]
        return Verdict(False, f"{said}: the error comes from before it", *earlier[:1])

    def _error(self, row: int, results: list[Tensor]) -> float | None:
        """Return how far results are from those of the same call of `a`, or from any of its values.

        None if they cannot be compared.
        """
        a, b = self._found.a.graph.run, self._found.b.graph.run
        address = b.address(row)
        same = [one for one in a.rows(MODULE).tolist() if a.address(one) == address]
        if not same:
            return max(_nearest(self._found.a.facts, result) for result in results)
        wanted = [self._data(v) for v in _floats(a, same[0], OUT)]
        if len(wanted) != len(results):
            return None
        errors = []
        for target, result in zip(wanted, results, strict=True):
            turned = None if target is None else arranged(target, result)
            if turned is None:
                return None
            errors.append(error_of(result, turned))
        return max(errors)

    def _of_a(self, value: int) -> Tensor | None:
        """Return the tensor of `a` that a value of `b` corresponds to, None for what is given."""
        partner = int(self._found.b.partner[value])
        return None if partner < 0 else self._data(partner)

    def _data(self, value: int) -> Tensor | None:
        """Return the tensor of a value of `a`."""
        key = self._keys.get(value)
        number = None if key is None else self._full_keys.get(key)
        if number is None:
            return None
        try:
            found: Tensor = self._full.value(number).tensor()
        except ClewError:
            return None
        return found

    @cached_property
    def _full(self) -> Run:
        """Record `a` once more, with all data."""
        return self._call_a.run("full")

    @cached_property
    def _full_keys(self) -> dict[str, int]:
        return value_keys(FlowGraph(self._full))

    @cached_property
    def _keys(self) -> dict[int, str]:
        return {value: key for key, value in value_keys(self._found.a.graph).items()}


def _calls_around(event: Event) -> Iterator[Event]:
    """Give the module calls that an event ran in, innermost first."""
    above = event.parent
    while above is not None:
        if above.kind == "module":
            yield above
        above = above.parent


def _floats(run: Run, row: int, role: str) -> list[int]:
    """Return the tensors of floating point numbers that a call took or returned."""
    return [
        number
        for leaf, number in run.direct_values(row)
        if leaf.role == role and "float" in run.value(number).dtype
    ]


def _nearest(facts: ValueFacts, tensor: Tensor) -> float:
    """Return how far a tensor is from the value nearest to it, judged by statistics."""
    x = tensor.detach().to("cpu", torch.float64).flatten()
    same = np.flatnonzero((facts.count == x.numel()) & (facts.nonfinite == 0))
    if not len(same) or not bool(x.isfinite().all()):
        return math.inf
    root, norm = math.sqrt(x.numel()), float(x.norm())
    scale = np.maximum(np.maximum(facts.norm[same], norm), np.finfo(np.float64).tiny)
    low, high = float(x.min()), float(x.max())
    size = np.maximum(scale / root, max(abs(low), abs(high)))
    far = np.maximum.reduce([
        np.abs(facts.total[same] - float(x.sum())) / scale,
        np.abs(facts.norm[same] - norm) * root / scale,
        np.abs(facts.low[same] - low) / size,
        np.abs(facts.high[same] - high) / size,
    ])  # fmt: skip
    return float(far.min())
