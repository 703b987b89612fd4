"""Passes of a model, counted by mode and told when they are over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.compat.engine.passes import Passes
from tests.processes import HANG_GUARD


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        x = self.fc(x)
        return self(x, depth - 1) if depth else x


def test_passes_are_counted_by_mode_and_calls_inside_belong_to_them() -> None:
    model, ends = Recursive(), []
    with Passes(model, lambda mode: ends.append(passes.count())) as passes:
        model(torch.ones(1, 2), depth=3)
        model.eval()
        model(torch.ones(1, 2))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3), depth=1)
        model.fc(torch.ones(1, 2))
        model.train()
        model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    assert ends == [1, 2, 3, 4]
    assert (passes.count("train"), passes.count("eval")) == (2, 2)


def test_counts_go_on_in_another_block_and_nothing_stays_behind() -> None:
    hooks = nn.modules.module._global_forward_hooks
    model, before = nn.Linear(2, 2), list(hooks)
    passes = Passes(model, lambda mode: None)
    for _ in range(2):
        with passes:
            model(torch.ones(1, 2))
    assert passes.count("train") == 2
    assert list(hooks) == before


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def counted(model: nn.Module, run: Callable[[], Any], number: int = 3) -> list[int]:
    """What the number of each pass was when it was over, and that of the next at last."""
    ends: list[int] = []
    with Passes(model, lambda mode: ends.append(passes.number())) as passes:
        for _ in range(number):
            run()
    return [*ends, passes.number()]


def test_calls_past_the_hooks_are_passes() -> None:
    model, other = Recursive(), Recursive()
    assert counted(model, lambda: model.forward(torch.ones(1, 2), depth=2)) == [1, 2, 3, 4]
    assert counted(model, lambda: other.forward(torch.ones(1, 2))) == [1]
    own = Twice()
    own.forward = twice  # type: ignore[method-assign]
    assert counted(own, lambda: own.forward(torch.ones(1))) == [1, 2, 3, 4]
    assert counted(own, lambda: own(torch.ones(1))) == [1, 2, 3, 4]
    assert own.forward is twice

    def failing() -> None:
        with pytest.raises(RuntimeError):
            model.forward(torch.ones(1, 3))

    assert counted(model, failing) == [1, 2, 3, 4]


def twice(x: Tensor) -> Tensor:
    return x * 2


def test_a_call_of_a_wrapper_is_a_pass_and_no_more_than_one() -> None:
    model = Recursive()
    inner, outer = nn.DataParallel(model), nn.DataParallel(nn.DataParallel(model))
    for run in (inner, outer, nn.Sequential(outer)):
        assert counted(model, lambda run=run: run(torch.ones(1, 2))) == [1, 2, 3, 4]  # type: ignore[misc]
        assert counted(outer, lambda run=run: run(torch.ones(1, 2))) == [1, 2, 3, 4]  # type: ignore[misc]
    model.eval()
    assert inner.training
    with Passes(model, lambda mode: None) as passes:
        inner(torch.ones(1, 2))
    assert (passes.count("train"), passes.count("eval")) == (0, 1)


@pytest.mark.parametrize("way", ["wrapper", "in place", "forward", "function"])
def test_passes_of_compiled_code(way: str) -> None:
    torch._dynamo.reset()
    model, x = Recursive(), torch.ones(1, 2)
    if way == "wrapper":
        run: Callable[..., Any] = torch.compile(model, backend="eager", fullgraph=True)
    elif way == "in place":
        model.compile(backend="eager")
        run = model
    elif way == "forward":
        run = torch.compile(model.forward, backend="eager")
    else:
        run = torch.compile(lambda x: model(x) + 1, backend="eager", fullgraph=True)
    assert counted(model, lambda: run(x)) == [1, 2, 3, 4]
    assert counted(model.eval(), lambda: run(x)) == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["__call__", "forward"])
def test_a_pass_that_began_before_the_block_is_none(way: str) -> None:
    class Opening(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not passes.count() and not ends:
                opened.enter_context(passes)
                ends.append("opened")
            return x

    model, ends = Opening(), list[str]()
    passes = Passes(model, ends.append)
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            getattr(model, way)(torch.ones(1))
    assert (passes.count(), ends) == (2, ["opened", "train", "train"])


def test_a_generator_runs_after_its_pass() -> None:
    class Yielding(nn.Module):
        def forward(self, x: Tensor) -> Iterator[Tensor]:
            yield x
            yield x + 1

    model = Yielding()
    assert counted(model, lambda: list(model(torch.ones(1)))) == [1, 2, 3, 4]


def test_what_is_due_is_told_by_the_pass_of_the_thread() -> None:
    inside, go = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, wait: bool) -> None:
            if wait:
                inside.set()
                go.wait(HANG_GUARD)
            due.append((passes.number(), passes.is_due(2, "train"), passes.is_due(1, "eval")))

    model, due = Waiting(), []
    with Passes(model, lambda mode: None) as passes:
        first = threading.Thread(target=model, args=(True,))
        first.start()
        assert inside.wait(HANG_GUARD)
        model(False)
        go.set()
        first.join()
    assert due == [(2, True, False), (1, False, False)]
