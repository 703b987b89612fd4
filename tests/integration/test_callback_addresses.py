"""Callbacks that want to know the address, steps that a listener begins, gathers by kind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew import Callbacks
from clew.events.gathered import Gathered
from clew.events.live_events import Happening
from clew.request.callbacks import deterministic


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


def test_a_value_that_two_addresses_with_the_same_callbacks_name_is_saved_once() -> None:
    seen: list[str] = []

    def save(value: Any, address: str) -> Any:
        seen.append(address)
        return value

    model, how = Net(), Callbacks(save, with_address=True)
    paths = ["layers.0", "layers.*", "layers.0#0", "op:aten.relu", "op:aten.re*"]
    with clew.trace(model, callbacks=dict.fromkeys(paths, how)) as t:
        model(torch.ones(1, 3))
    assert seen == ["layers.0", "op:aten.relu.default", "layers.1"]
    assert len(t.series("layers.0")) == 1
    assert not t.coverage


def test_a_listener_may_begin_a_step_and_its_kind_is_that_of_the_next_call() -> None:
    model, listener = Net(), Stepping()
    with clew.trace(model, callbacks={"forward.x": Callbacks()}, live=listener) as t:
        listener.tracer = t
        for step in range(4):
            model.train(step % 2 == 0)
            model(torch.ones(1, 3))
    assert t.modes == {0: "train", 1: "eval", 2: "train", 3: "eval"}


def test_callbacks_of_a_gather_know_where_values_are_from() -> None:
    model, told = Net(), []

    def before(values: Gathered) -> Gathered:
        told.append((values.address, values.steps, values.ordinals, values.ranks))
        return Gathered(values[1:], [10 * n for n in values.ordinals[1:]])

    def after(values: Gathered) -> list[Any]:
        told.append((len(values), values.steps, values.ordinals))
        return values

    how = Callbacks(before_gather=before, after_gather=after, only="train")
    with clew.trace(model, callbacks={"layers.*": how}, gather=2) as t:
        for step in range(3):
            model.train(step != 0)
            model(torch.ones(1, 3))
            t.step()
    assert told == [
        ("layers.0", [1, 2], [1, 2], [0, 0]), ("layers.1", [1, 2], [1, 2], [0, 0]),
        (1, [2], [20]), (1, [2], [20]),
    ]  # fmt: skip
    assert t.series("layers.0").steps == [2]


def test_a_callback_may_change_the_list_it_is_given() -> None:
    def last(values: list[Tensor]) -> list[Tensor]:
        del values[:-1]
        return values

    model = Net()
    with clew.trace(model, callbacks={"": Callbacks(after_gather=last)}, gather=3) as t:
        for step in range(3):
            model(torch.full((1, 3), float(step)))
            t.step()
    assert t.series("").steps == [2]
    assert not t.coverage


def test_values_for_callbacks_alone_are_not_in_the_trace() -> None:
    model, given = Net(), []

    def gathered(values: list[Tensor]) -> Tensor:
        given.extend(values)
        return torch.stack(values).sum()

    how = Callbacks(after_gather=gathered, keep=False)
    with clew.trace(model, callbacks={"layers.0": how, "forward.*": how}, gather=2) as t:
        for _ in range(2):
            model(torch.ones(1, 3))
            t.step()
    assert not [event for event in t.events if event.kind == "variable"]
    assert len(t.series("layers.0")) == len(t.series("forward.x")) == 1
    # Two outputs, three bindings of `x` in each of two steps, and no module, which has no data.
    assert [type(value) for value in given] == [Tensor] * 8
    assert not t.coverage


def test_a_gather_puts_random_numbers_back() -> None:
    model, drawn = Net(), []

    def drawing(values: list[Any]) -> list[Any]:
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))
        return []

    def steady(values: list[Any]) -> list[Any]:
        return []

    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1:3]]

    how = {
        "": Callbacks(after_gather=deterministic(steady)),
        "layers.*": Callbacks(after_gather=drawing),
    }
    before = repr(states())
    with clew.trace(model, callbacks=how, gather=1) as t:
        model(torch.ones(1, 3))
        t.step()
        assert repr(states()) == before
    assert len(drawn) == 2


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


def test_a_pattern_of_methods_leaves_what_calls_modules_alone() -> None:
    model = Net()
    code = nn.Module._call_impl.__code__
    with clew.trace(model, capture=["layers.*.forward.input"]) as t:
        assert nn.Module._call_impl.__code__ is code
        model(torch.ones(1, 3))
    assert len(t.series("layers.0.forward.input")) == 1
    root, *layers = t.modules
    assert [event.parent_id for event in layers] == [root.id, root.id]


class Masked(nn.Module):
    def forward(self, *, mask: Any) -> Any:
        return mask["rows"] * 2


@pytest.mark.parametrize(
    ("address", "expected"), [(":in.mask.rows", 3.0), (":in.mask['rows']", 3.0), (":out.0", 6.0)]
)
def test_a_part_of_the_only_input(address: str, expected: float) -> None:
    model = Masked()
    with clew.trace(model, callbacks={address: Callbacks(save=lambda v: v.sum())}) as t:
        model(mask={"rows": torch.ones(3)})
    assert list(t.coverage) == []
    assert t.series(address).stack().tolist() == [expected]
