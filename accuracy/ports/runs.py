"""Run pairs of programs, ask where they part, and judge the answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from accuracy.ports.answers import Answer, parting_of, parting_of_models, recorded
from accuracy.ports.judging import Spot, grade
from accuracy.ports.planting import DECODER, OUTSIDE, SMALL, Architecture, Bug, Size, file_of
from clew import Trace
from clew.run.event import Event

# Outputs that differ by less than this do not show a bug.
_FELT = 1e-7


@dataclass(frozen=True)
class Case:
    """A pair of runs: a clean reference, and its copy or port with bugs in some layers.

    The first of `bugs` is the one that is run first, so the one to be named. Without bugs the pair
    is clean. `types` are the dtypes of both.
    """

    group: str
    architecture: Architecture
    bugs: tuple[tuple[int, Bug], ...] = ()
    size: Size = SMALL
    as_port: bool = False
    types: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32)

    @property
    def name(self) -> str:
        """Return the architecture, and each bug with its layer."""
        code = "port" if self.as_port else "same"
        planted = " ".join(f"{bug.name}@{layer}" for layer, bug in self.bugs)
        return f"{self.architecture.name} {code} {planted or 'clean'}"


@dataclass(frozen=True)
class Outcome:
    """How an answer to a case was graded, its text, its time, and how much the outputs differ."""

    group: str
    name: str
    is_clean: bool
    grade: str
    said: str
    seconds: float
    effect: float


def outcome(case: Case) -> Outcome:
    """Run one case and judge the answer."""
    one = case.architecture
    clean, trace_a, result_a = _reference(one.name, case)
    faults = {layer: bug.name for layer, bug in case.bugs}
    model = one.copy(clean, case.size, faults, as_port=case.as_port).to(case.types[1])
    trace_b, result_b = run(model, one.inputs(), case.types[1])
    far = effect(result_a, result_b)
    if case.types[0] == case.types[1]:
        answer, seconds = asked(trace_a, trace_b)
    else:
        answer, seconds = asked_of_models(case, clean, model)
    if not case.bugs:
        found = graded_clean(answer)
        return Outcome(case.group, case.name, True, found, said(answer), seconds, far)
    layer, bug = case.bugs[0]
    a = Spot(file_of(one.reference), bug.name, one.place(layer, False))
    made = one.port if case.as_port else one.reference
    b = Spot(file_of(made), bug.name, one.place(layer, case.as_port))
    found = grade(answer, a, b, bug.omits)
    return Outcome(case.group, case.name, False, found, said(answer), seconds, far)


def asked(trace_a: Trace, trace_b: Trace) -> tuple[Answer | None, float]:
    """Return where two traces part, and the time it took to find out."""
    start = time.perf_counter()
    answer = parting_of(trace_a, trace_b)
    return answer, time.perf_counter() - start


def asked_of_models(case: Case, clean: nn.Module, new: nn.Module) -> tuple[Answer | None, float]:
    """Return where a reference and a model of another precision part, and the time it took."""
    one = case.architecture
    ref = one.copy(clean, case.size).to(case.types[0])
    given = [typed(one.inputs(), dtype) for dtype in case.types]
    start = time.perf_counter()
    torch.manual_seed(7)
    with torch.no_grad():
        answer = parting_of_models(ref, given[0], new, given[1])
    return answer, time.perf_counter() - start


def graded_clean(answer: Answer | None) -> str:
    """Grade the answer to a clean pair, which must be none."""
    return "quiet" if answer is None else "alarm"


_kept: dict[Any, tuple[nn.Module, Trace, Tensor]] = {}


def _reference(name: str, case: Case) -> tuple[nn.Module, Trace, Tensor]:
    """Return the clean reference in float32, and a recorded run of it in the type asked for."""
    key = name, case.size, case.types[0]
    if key not in _kept:
        if len(_kept) > 4:
            _kept.clear()
        clean = case.architecture.clean(case.size)
        model = case.architecture.copy(clean, case.size).to(case.types[0])
        _kept[key] = clean, *run(model, case.architecture.inputs(), case.types[0])
    return _kept[key]


def run(model: nn.Module, inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[Trace, Tensor]:
    """Record a model's call, and call it again for its result."""
    given = typed(inputs, dtype)
    torch.manual_seed(7)
    with torch.no_grad():
        trace = recorded(model, given)
        torch.manual_seed(7)
        return trace, model(*given)


def typed(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return inputs with their floating point numbers in a dtype."""
    return tuple(
        x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs
    )


def effect(a: Tensor, b: Tensor) -> float:
    """Return the relative error of the outputs."""
    if a.shape != b.shape:
        return float("inf")
    return float((a.double() - b.double()).norm() / a.double().norm())


def said(answer: Answer | None) -> str:
    """Write an answer in one line."""
    if answer is None:
        return "no difference"
    kind, a, b = answer
    return f"{kind}: A {_where(a)} | B {_where(b)}"


def _where(event: Event | None) -> str:
    if event is None:
        return "-"
    line = event.source
    text = f"{line.line}: {line.text}" if line else "?"
    return f"{event.name} in {event.module or 'root'} at {text}"


def is_felt(found: Outcome) -> bool:
    """Return whether the bug shows in the output at all."""
    return found.is_clean or not found.effect <= _FELT


def bugs_of(
    group: str,
    architectures: Iterable[Architecture],
    *,
    as_port: bool,
    size: Size = SMALL,
    **more: Any,
) -> list[Case]:
    """List a case for each bug in each of its layers."""
    return [
        Case(group, one, ((layer, bug),), size, as_port, **more)
        for one in architectures
        for bug in one.bugs
        if (bug.cross if as_port else bug.same)
        for layer in bug.layers
        if layer == OUTSIDE or layer % DECODER < size.layers
    ]
