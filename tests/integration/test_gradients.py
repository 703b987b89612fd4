"""Gradients, parameters, buffers and optimizer state by address."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import TorchFunctionMode

import clew
from clew.errors import NotRecorded
from tests.outcomes import faults


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def train(model: nn.Module, steps: int, t: clew.Trace | None = None) -> list[Tensor]:
    """Gradients of the first weight, as each step used them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    used = []
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.arange(15.0).reshape(5, 3) ** 2 % (step + 5)
        model(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        used.append(next(model.parameters()).grad.clone())  # type: ignore[union-attr]
        optimizer.step()
        if t is not None:
            t.step()  # type: ignore[attr-defined]
    return used


EVERYTHING = [
    "0.weight:grad", "**:param", "1.running_*:buffer", "0.weight:update", "0.weight:state",
    "2:grad", "0:grad_in",
]  # fmt: skip


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_following_changes_nothing(level: str) -> None:
    plain, followed = net(), net()
    expected = train(plain, 3)
    with clew.trace(followed, level=level, capture=EVERYTHING) as t:
        used = train(followed, 3, t)
    assert faults(t) == []
    for one, other in zip(expected, used, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(plain.state_dict().values(), followed.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    parameter = followed[0].weight
    assert not parameter._post_accumulate_grad_hooks
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks


def test_the_gradient_of_a_parameter_as_it_arrives_and_as_it_is_used() -> None:
    model = net()
    with clew.trace(model, capture=["0.weight:grad"]) as t:
        used = train(model, 2, t)
    events = list(t["0.weight:grad"])
    assert [e.phase for e in events] == ["backward", "optimizer"] * 2
    assert [e.step for e in events] == [0, 0, 1, 1]
    assert np.array_equal(events[1].outputs[""].array(), used[0])
    assert np.array_equal(events[3].outputs[""].array(), used[1])
    # Before it was clipped.
    assert np.linalg.norm(events[0].outputs[""].array()) > np.linalg.norm(used[0])
    assert (events[0].kind, events[0].name, events[0].module) == ("grad", "weight", "0")


def test_parameters_updates_and_state_per_step(tmp_path: Path) -> None:
    model = net()
    before = model[0].weight.detach().clone()
    out = tmp_path / "run.clew"
    wanted = ["0.weight:param", "0.weight:update", "0.weight:state"]
    with clew.trace(model, out=out, capture=wanted) as t:
        train(model, 2, t)
    trace = clew.load(out)
    weights = trace.series("0.weight:param").stack()
    updates = trace.series("0.weight:update").stack()
    assert np.array_equal(weights[0], before)
    assert np.array_equal(weights[-1], model[0].weight.detach())
    assert np.allclose(weights[1:] - weights[:-1], updates)
    averages = trace.series("0.weight:state.exp_avg")
    assert averages.stack().shape == (2, 4, 3)
    assert averages.steps == [0, 1]
    assert trace["0.weight#1:state.step"].value == 2


def test_a_buffer_that_no_version_tells_of() -> None:
    model = net()
    with clew.trace(model, capture=["1.running_mean:buffer"]) as t:
        model(torch.randn(5, 3))
        model.eval()
        model(torch.randn(5, 3))
    first, second = t.series("1.running_mean:buffer").values
    assert first.array().tolist() == [0, 0, 0, 0]
    assert np.array_equal(second.array(), model[1].running_mean)


def test_gradients_of_inputs_and_outputs_of_modules() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
            return {"a": x * scale, "b": x.detach()}

    model, x = Pair(), torch.ones(2, requires_grad=True)
    scale = torch.tensor([2.0, 3.0], requires_grad=True)
    with clew.trace(model, capture=[":grad", ":grad_in"]) as t:
        (model(x, scale=scale)["a"] * 5).sum().backward()
    assert t[":grad.a"].value.tolist() == [5, 5]
    assert next(e.outputs for e in t[":grad"]).keys() == {"a"}
    assert t[":grad_in.0"].value.tolist() == [10, 15]
    found = {path for e in t[":grad_in"] for path in e.outputs}
    assert found == {"0", "scale"}


class Mark:
    """Something a graph holds."""


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, marks: weakref.WeakSet[Mark]) -> Tensor:
        ctx.mark = Mark()
        marks.add(ctx.mark)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


def test_nothing_is_kept_alive() -> None:
    model = net()
    x = torch.ones(5, 3, requires_grad=True)
    with clew.trace(model, capture=["2:grad", "0:grad_in", "0.weight:grad"]) as t:
        y = model(x)
        # Alive for as long as the graph is.
        marks: weakref.WeakSet[Mark] = weakref.WeakSet()
        y = Marked.apply(y, marks)
        assert len(marks) == 1
        del y
        gc.collect()
        assert len(marks) == 0
        model(x).sum().backward()
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert len(t["2:grad"]) == 1


def test_an_address_that_names_nothing_is_said() -> None:
    model = net()
    with clew.trace(model, capture=["0.wait:param", "9:grad"]) as t:
        model(torch.ones(5, 3))
    texts = [str(gap) for gap in t.coverage]
    assert any("0.wait:param" in text and "0.weight" in text for text in texts)
    assert any("9:grad" in text for text in texts)
    with pytest.raises(NotRecorded, match=r"clew.trace\(capture=\['0.weight:grad'\]\)"):
        t["0.weight:grad"]


def test_models_named_only_when_they_run() -> None:
    model = net()
    with clew.trace(capture=["Sequential.0.weight:grad"]) as t:
        model(torch.ones(5, 3)).sum().backward()
    assert np.array_equal(t["Sequential.0.weight:grad"].value, model[0].weight.grad)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_every_step_has_its_gradient_and_update_though_they_are_alike(set_to_none: bool) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.0)
    nn.init.zeros_(model.weight)
    with clew.trace(model, capture=["weight:grad", "weight:update"]) as t:
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(torch.tensor([[1.0, 2.0]])).sum().backward()
            optimizer.step()
            t.step()
    for role, expected in (("grad", [1.0, 2.0]), ("update", [-0.5, -1.0])):
        series = t.series(f"weight:{role}")
        assert series.steps == [0, 1, 2]
        assert series.stack().tolist() == [[expected]] * 3


def test_names_with_signs_of_the_address_language_read_back() -> None:
    class Signs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterDict({"a@1": torch.ones(3), "b:c": torch.ones(3)})
            self.layers = nn.ModuleDict({"x@1": nn.Linear(3, 3)})

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layers["x@1"](x * self.w["a@1"] * self.w["b:c"])
            return out

    model = Signs()
    wanted = ["w.*:grad", "w['a@1']:param", "layers.*:grad"]
    norm = {"layers['x@1']:in": clew.Callbacks(save="norm")}
    with clew.trace(model, capture=wanted, callbacks=norm) as t:
        model(torch.ones(2, 3)).sum().backward()
    assert list(t.coverage) == []
    named = [event for event in t.events if event.kind in ("grad", "variable")]
    assert sorted(event.address for event in named) == [
        "layers['x@1']#0:grad", "layers['x@1']#0:in",
        "w['a@1']#0:grad", "w['a@1']#0:param", "w['b:c']#0:grad",
    ]  # fmt: skip
    for event in named:
        if not event.address.endswith(":in"):
            assert t[event.address].one == event


# Lazy modules


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("level", ["ops", "modules", "values"])
@pytest.mark.parametrize(
    ("address", "shape", "count"),
    [
        ("0.weight:grad", (3, 1, 2), 2),
        ("1.weight:grad", (3,), 2),
        ("3.weight:grad", (4, 15), 2),
        ("*.bias:grad", None, 6),
        ("3.weight:param", (4, 15), 3),
        ("3.weight:update", (4, 15), 2),
        ("1.running_mean:buffer", (3,), 3),
        ("3", (2, 4), 3),
        ("3:grad", (2, 4), 2),
        ("3.forward.input", (2, 15), 3),
    ],
)
def test_values_of_lazy_modules_by_address(
    address: str, shape: tuple[int, ...] | None, count: int, level: str
) -> None:
    """Given before the first forward, when there is nothing yet of which they are the values."""
    model = nn.Sequential(
        nn.LazyConv1d(3, 2), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(4)
    )  # fmt: skip
    x = torch.randn(2, 1, 6)
    with clew.trace(model, capture=[address], level=level) as t:
        model(x)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    values = t.series(address).values
    assert len(values) == count
    assert shape is None or {tuple(value.shape) for value in values} == {shape}
    assert not [gap for gap in t.coverage if gap.what in ("an event", "an address to capture")]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_optimizer_state_of_a_lazy_module() -> None:
    model = nn.LazyLinear(4)
    with clew.trace(model, capture=["weight:state"]) as t:
        model(torch.ones(2, 3))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert t["weight:state.exp_avg"].value.shape == (4, 3)


class Heard(torch.Tensor):
    """Tells of everything that torch asks its class."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Overheard(TorchFunctionMode):
    """Tells of everything that is called while it is on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Heard.calls.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 2).as_subclass(Heard))
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(x @ self.scale)
        return out


def heard(capture: list[str], mode: bool) -> list[str]:
    """What the program's own class and mode hear of a training step."""
    model = Scaled()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(1, 2).as_subclass(Heard).requires_grad_()
    with contextlib.ExitStack() as blocks:
        if capture:
            trace = blocks.enter_context(clew.trace(model, capture=capture))
        if mode:
            blocks.enter_context(Overheard())
        Heard.calls.clear()
        model(x).sum().backward()
        optimizer.step()
        calls = list(Heard.calls)
    for address in capture:
        assert len(trace[address]) > 0
    return calls


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize(
    "address",
    [":grad", ":grad_in", "fc:grad", "scale:grad", "scale:update", "scale:state", "scale:param",
     "fc.weight:grad", "fc.weight:update"],
)  # fmt: skip
def test_classes_and_modes_of_the_program_do_not_hear_of_what_is_captured(
    address: str, mode: bool
) -> None:
    assert heard([address], mode) == heard([], mode)
