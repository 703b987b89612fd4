"""Modules with forward hooks of their own: a call gives what its caller gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import clew


class Double(nn.Module):
    def __init__(self, act: Any = lambda self: None) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.act(self)
        return y


def hundredfold(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 100


def hooked(*acts: Any) -> nn.Sequential:
    model = nn.Sequential(*(Double(act) for act in acts or (lambda self: None,) * 2))
    model[0].register_forward_hook(hundredfold)
    return model


def hooks(model: nn.Module) -> list[list[Any]]:
    return [list(module._forward_hooks.items()) for module in model.modules()]


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_an_output_is_what_the_caller_gets(level: str) -> None:
    model = hooked()
    before = hooks(model)
    with clew.trace(model, level=level, values="full") as t:
        model(torch.ones(1))
    assert t["0"].value.tolist() == [200]
    assert t["1:in"].value.tolist() == [200]
    assert t["0"].output.number == t["1:in"].values[0].number
    assert hooks(model) == before


def test_what_is_captured_of_an_output_is_what_the_caller_gets() -> None:
    model, got = hooked(), []
    save = clew.Callbacks(save=lambda value: got.append(value.tolist()))
    x = torch.ones(1, requires_grad=True)
    with clew.trace(
        model, capture=["0", "0:grad", "0.forward.return"], callbacks={"0:out": save}
    ) as t:
        model(x).backward()
    assert t["0"].value.tolist() == [200]
    assert t["0.forward.return"].value.tolist() == [2]
    assert t["0:grad"].value.tolist() == [2]
    assert got == [[200]]


def test_ops_of_a_hook_are_in_its_call() -> None:
    model = hooked()
    with clew.trace(model) as t:
        model(torch.ones(1))
    assert [op.module for op in t.ops if op.name.startswith("aten.mul")] == ["0", "0", "1"]


def test_a_hook_that_raises() -> None:
    model = hooked()
    calls = []

    def bad(module: nn.Module, args: Any, result: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ValueError("bad hook")

    model[0].register_forward_hook(bad)
    before = hooks(model)
    with clew.trace(model) as t:
        with pytest.raises(ValueError, match="bad hook"):
            model(torch.ones(1))
        assert model(torch.ones(1)).tolist() == [400]
    assert hooks(model) == before
    assert [event.error for event in t["0"]] == ["ValueError: bad hook", None]
    assert [event.error for event in t[""]] == ["ValueError: bad hook", None]
    assert t["0#1"].output.shape == (1,)


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_a_forward_that_raises(fault: type[BaseException]) -> None:
    raised = []

    def act(module: nn.Module) -> None:
        if not raised:
            raised.append(fault)
            raise fault("now")

    model = hooked(act, lambda self: None)
    before = hooks(model)
    with clew.trace(model, values="full") as t:
        with pytest.raises(fault):
            model(torch.ones(1))
        assert model(torch.ones(1)).tolist() == [400]
    assert hooks(model) == before
    assert t["0#1"].value.tolist() == [200]
    assert len(t["0"]) == 2


def test_a_call_that_is_never_seen_to_end_leaves_no_hook() -> None:
    def act(module: nn.Module) -> None:
        raise KeyboardInterrupt

    model = hooked(act)
    before = hooks(model)
    with pytest.raises(KeyboardInterrupt), clew.trace(model):
        model(torch.ones(1))
    assert hooks(model) == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_that_calls_itself(fails: bool) -> None:
    class Nested(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            if not depth:
                return x
            try:
                return self(x, depth - 1)
            except ValueError:
                return x

    def add(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        if fails and len(args) > 1 and args[1] == 0:
            raise ValueError("inner")
        return result + 1

    model = Nested()
    model.register_forward_hook(add)
    before = hooks(model)
    with clew.trace(model, values="full") as t:
        result = model(torch.zeros(1))
    assert result.tolist() == [2 if fails else 3]
    assert [event.error is not None for event in t[""]] == [False, False, fails]
    given = [event.outputs[""].array().tolist() for event in t[""] if event.error is None]
    assert given == ([[2], [1]] if fails else [[3], [2], [1]])
    assert hooks(model) == before


def test_a_module_without_hooks_is_given_none() -> None:
    seen = []
    model = hooked(lambda self: None, lambda self: seen.append(len(self._forward_hooks)))
    with clew.trace(model):
        model(torch.ones(1))
    assert seen == [0]
