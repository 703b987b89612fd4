"""Callbacks that want to know the address, steps that a listener begins, gathers by kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import clew
from clew import Callbacks
from clew.events.live import Happening


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Stepping:
    """Ends a step with each call of the model."""

    tracer: Any = None

    def begins(self, event: Happening) -> None: ...

    def ends(self, event: Happening) -> None:
        if event.kind == "module" and event.path == "":
            self.tracer.step()


def test_save_gets_the_address_of_each_value_a_pattern_finds() -> None:
    seen: list[str] = []

    def save(value: Tensor, address: str) -> Tensor:
        seen.append(address)
        return value.sum()

    model, how = Net(), Callbacks(save, with_address=True)
    with clew.trace(model, callbacks={"layers.*": how, "layers.0:in": how, "forward.x": how}) as t:
        model(torch.ones(1, 3))
    assert seen == ["forward.x", "layers.0:in", "layers.0", "forward.x", "layers.1", "forward.x"]
    assert not t.coverage
    assert t.series("layers.0").stack().shape == (1,)


def test_a_listener_may_begin_a_step_and_its_kind_is_that_of_the_next_call() -> None:
    model, listener = Net(), Stepping()
    with clew.trace(model, callbacks={"forward.x": Callbacks()}, live=listener) as t:
        listener.tracer = t
        for step in range(4):
            model.train(step % 2 == 0)
            model(torch.ones(1, 3))
    assert t.modes == {0: "train", 1: "eval", 2: "train", 3: "eval"}


def test_a_gather_counts_steps_of_the_kind_that_is_followed() -> None:
    model, windows = Net(), []

    def gathered(values: list[Any]) -> list[Any]:
        windows.append(len(values))
        return []

    how = Callbacks(after_gather=gathered, only="train")
    with clew.trace(model, callbacks={"": how}, gather=2) as t:
        for step in range(7):
            model.train(step % 3 != 0)
            model(torch.ones(1, 3))
            t.step()
    assert windows == [2, 2]


def test_a_method_that_gives_up_its_self_is_followed() -> None:
    class Forgets(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            del self
            return y

    model = nn.Sequential(Forgets(), Forgets())
    with clew.trace(model, capture=["*.forward.y"]) as t:
        model(torch.zeros(1))
    assert t.series("0.forward.y").stack().tolist() == [[1]]
    assert t.series("1.forward.y").stack().tolist() == [[2]]


def test_a_pattern_of_modules_leaves_their_methods_alone() -> None:
    model = Net()
    code = nn.Module._call_impl.__code__
    with clew.trace(model, capture=["layers.*", "forward.x"]) as t:
        assert nn.Module._call_impl.__code__ is code
        model(torch.ones(1, 3))
    assert not t.coverage
    assert len(t.series("layers.0")) == 1
