"""Optimizers that are given a closure: what each step uses is recorded in that step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import clew


def model_of(value: float = 2.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def closure_of(model: nn.Linear, optimizer: Any, seen: list[tuple[float, float]]) -> Any:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 1)) ** 4).sum()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        seen.append((model.weight.item(), model.weight.grad.item()))
        return loss

    return closure


@pytest.mark.parametrize("by_name", [False, True])
def test_the_clipped_gradient_is_in_its_step(by_name: bool) -> None:
    model, seen = model_of(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    closure = closure_of(model, optimizer, seen)
    with clew.trace(model, capture=["weight:grad", "weight:param"]) as t:
        for _ in range(4):
            optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            t.step()
    series = t.series("weight:grad")
    pairs = zip(series.steps, series.values, strict=True)
    last = {step: value.array().item() for step, value in pairs}
    assert last == dict(enumerate(grad for _, grad in seen))
    assert len(t["weight:param"]) == 5


def test_every_point_that_lbfgs_tries_is_there() -> None:
    model, seen = model_of(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, lr=0.1)
    with clew.trace(model, capture=["weight:grad", "weight:param"]) as t:
        optimizer.step(closure_of(model, optimizer, seen))
    assert len(seen) == 4
    points = [value.array().item() for value in t["weight:param"].values]
    assert points == [*(point for point, _ in seen), model.weight.item()]
    gradients = [value.array().item() for value in t["weight:grad"].values]
    assert gradients[1::2] == [grad for _, grad in seen]


def test_a_closure_gives_what_it_gave() -> None:
    def run(traced: bool) -> tuple[list[tuple[float, float]], list[float]]:
        model, seen = model_of(), []
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
        losses = []
        if traced:
            with clew.trace(model, capture=["weight:grad"]):
                losses.append(optimizer.step(closure_of(model, optimizer, seen)).item())
        else:
            losses.append(optimizer.step(closure_of(model, optimizer, seen)).item())
        return seen, losses

    assert run(True) == run(False)


def test_what_a_closure_raises_comes_out() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        raise ValueError("in the closure")

    with (
        pytest.raises(ValueError, match="in the closure"),
        clew.trace(model, capture=["weight:grad"]),
    ):
        optimizer.step(closure)


def test_ops_of_a_closure_are_of_its_lines() -> None:
    def lines(**wanted: Any) -> list[Any]:
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with clew.trace(model, **wanted) as t:
            optimizer.step(closure_of(model, optimizer, []))
        return [(op.name, op.source.line, op.phase, op.module) for op in t.ops if op.source]

    assert lines(capture=["weight:grad"]) == lines()
