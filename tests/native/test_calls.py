"""Module calls that the engine follows through `nn.Module._call_impl`, without any hook."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import clew
from tests.native.engine import faults, native_trace, needs_engine

pytestmark = needs_engine

X = torch.ones(2, 4)


class Within(nn.Module):
    """A Linear, and something to do before and after it is called."""

    def __init__(self, act: Any = None) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = act or (lambda: None)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.act()
        return self.fc(x) * scale


def global_hooks() -> int:
    return len(torch_module._global_forward_pre_hooks) + len(torch_module._global_forward_hooks)


def paths(trace: clew.Trace) -> list[str]:
    return [str(call.module) for call in trace.modules]


def test_nothing_can_be_seen_of_it() -> None:
    found: list[Any] = []
    function, call = nn.Module._call_impl, nn.Module.__call__
    model = Within(lambda: found.append((global_hooks(), nn.Module._call_impl, nn.Module.__call__)))
    with native_trace(model) as t:
        model(X, scale=2.0)
    assert found == [(0, function, call)]
    assert [(path, call.error) for path, call in zip(paths(t), t.modules, strict=True)] == [
        ("", None), ("fc", None),
    ]  # fmt: skip
    outer, inner = t.modules
    assert inner.parent == outer
    assert "scale" in str(outer.arguments)
    assert outer.outputs[""].shape == (2, 4)
    model(X)  # recorded by nobody
    assert len(t.modules) == 2
    assert not faults(t)


def test_the_traceback_is_that_of_an_untraced_run() -> None:
    def fail() -> None:
        raise ValueError("no")

    def lines() -> list[tuple[str, str]]:
        try:
            model(X)
        except ValueError as error:
            return [(one.name, one.filename) for one in traceback.extract_tb(error.__traceback__)]
        raise AssertionError

    model = Within(fail)
    expected = lines()
    with native_trace(model) as t:
        seen = lines()
    assert seen == expected
    assert [call.error for call in t.modules] == ["ValueError: no"]
    assert not faults(t)


def test_an_interrupt_leaves_a_call_without_an_end() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    model, whole = nn.Sequential(Within(stop)), nn.Sequential(Within())
    with native_trace() as t:
        with pytest.raises(KeyboardInterrupt):
            model(X)
        whole(X)
    assert [call.error for call in t.modules] == [None] * 5
    assert [call.outputs == {} for call in t.modules] == [True, True, False, False, False]
    assert t.modules[2].parent is None
    assert not faults(t)


def test_a_call_that_only_hooks_can_record() -> None:
    """Those around it and after it are whole, and nothing stays installed."""

    class Past(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            x = self.second._call_impl(*(x,))
            return self.third(x)

    model = nn.Sequential(Past(), nn.ReLU())
    with native_trace(model) as t:
        model(X)
        model(X)
    expected = ["", "0", "0.first", "0.second", "0.third", "1"]
    assert paths(t) == expected * 2
    assert all(call.outputs for call in t.modules)
    parents = [None, *(t.modules[i] for i in (0, 1, 1, 1, 0))]
    assert [call.parent for call in t.modules][:6] == parents
    assert global_hooks() == 0
    assert not faults(t)


@pytest.mark.parametrize("is_caught", [True, False])
def test_an_interrupt_of_a_call_that_only_hooks_can_record(is_caught: bool) -> None:
    """It stays without an end, inside those around it, which were recorded without hooks."""

    def stop() -> None:
        raise KeyboardInterrupt

    class Past(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Within(stop)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(KeyboardInterrupt if is_caught else ()):
                self.inner._call_impl(*(x,))
            return x + 1

    model, whole = nn.Sequential(Past()), Within()
    with native_trace({"model": model, "whole": whole}) as t:
        with contextlib.suppress(KeyboardInterrupt):
            model(X)
        whole(X)
    assert paths(t) == ["model", "model.0", "model.0.inner", "whole", "whole.fc"]
    assert [bool(call.outputs) for call in t.modules] == [is_caught, is_caught, False, True, True]
    outer, past, _, last, _ = t.modules
    assert [call.parent for call in t.modules] == [None, outer, past, None, last]
    assert not faults(t)


def test_a_call_that_python_makes_without_the_pointer() -> None:
    """Python 3.11 runs a function that is called with plain arguments by itself."""

    class Past(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner._call_impl(x) + 1

    model = Past()
    with native_trace(model) as t:
        model(X)
        model(X)
    assert paths(t) == ["", "inner", "inner.0"] * 2
    assert [call.parent for call in t.modules[:3]] == [None, *t.modules[:2]]
    assert all(call.outputs for call in t.modules)
    assert global_hooks() == 0
    assert not faults(t)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_jit_trace_inside() -> None:
    model = Within()
    with native_trace(model) as t:
        model(X)
        torch.jit.trace(model, (X,), check_trace=False)
        model(X)
    assert paths(t)[:2] == paths(t)[-2:] == ["", "fc"]
    assert global_hooks() == 0
    assert not faults(t)


def test_traces_inside_each_other() -> None:
    found: list[clew.Trace] = []

    def record() -> None:
        with native_trace() as inner:
            nn.Sequential(nn.ReLU())(X)
        found.append(inner)

    model = Within(record)
    with native_trace(model) as t:
        model(X)
    assert len(t.modules) == 4
    assert len(found[0].modules) == 2
    assert [call.parent for call in found[0].modules] == [None, found[0].modules[0]]
    assert not faults(t)
    assert not faults(found[0])


def test_a_trace_that_ends_inside_a_call_it_saw_begin() -> None:
    trace = native_trace()
    t = trace.__enter__()
    model = Within(lambda: trace.__exit__(None, None, None))
    result = model(X)
    assert torch.equal(result, model.fc(X))
    assert len(t.modules) == 1
    assert not faults(t)
    with native_trace() as after:
        model.fc(X)
    assert len(after.modules) == 1


def test_hooks_of_the_program() -> None:
    """Arguments are those that the caller gave, the result is the one it gets."""
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda module, args, result: result + 1)
    remove = torch_module.register_module_forward_hook(lambda module, args, result: None).remove
    try:
        with native_trace(model, values="full") as t:
            result = model(X)
    finally:
        remove()
    call = t["0"]
    assert torch.equal(torch.from_numpy(call.inputs["0"].array()), X)
    assert torch.equal(torch.from_numpy(call.outputs[""].array()), result.detach())
    assert not faults(t)


class Deep(nn.Module):
    """Calls itself so many levels down."""

    def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return self(x, depth - 1) if depth else x + 1


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_calls_are_as_deep_as_in_an_untraced_run(level: str) -> None:
    room = sys.getrecursionlimit() - len(inspect.stack())
    model, depth = Deep(), room * 2 // 9  # four levels for each call, five with a hook
    model(X, depth)
    with native_trace(model, level=level):
        assert torch.equal(model(X, depth), X + 1)


def test_a_backward_hook() -> None:
    grads: list[Any] = []
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_full_backward_hook(lambda module, given, grad: grads.append(grad))
    with native_trace(model) as t:
        model(X.clone().requires_grad_()).sum().backward()
    assert len(grads) == 1
    # What the next module is given is what this one returned.
    assert t["0"].outputs[""].producer == t["1"].inputs["0"].producer
    assert not faults(t)
