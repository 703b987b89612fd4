"""Phases, and the backward pass: each op at the module and line of the forward op it belongs to."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import clew
from tests import models
from tests.outcomes import faults

# Real models


@pytest.fixture(scope="module")
def gpt2() -> tuple[clew.Trace, nn.Module]:
    """One training step of twelve layers."""
    model, inputs = models.gpt2(layers=12)
    optimizer = torch.optim.AdamW(model.parameters())
    with clew.trace(model) as t:
        model(**inputs).loss.backward()
        optimizer.step()
    return t, model


def test_every_op_has_a_line(gpt2: tuple[clew.Trace, nn.Module]) -> None:
    t, _ = gpt2
    assert len(t.ops) > 1500
    assert [op for op in t.ops if op.source is None or op.source.line < 1] == []
    assert all(op.source.text for op in t.ops)


def test_every_op_of_the_model_has_a_path(gpt2: tuple[clew.Trace, nn.Module]) -> None:
    t, model = gpt2
    root = t[""].one
    paths = {path for path, _ in model.named_modules()}
    forward = [
        op for op in t.ops if op.phase == "forward" and op.start < root.start + root.duration
    ]
    assert [op for op in forward if op.module not in paths | {"CrossEntropyLoss"}] == []
    backward = [op for op in t.ops if op.phase == "backward"]
    assert len(backward) > 500
    assert [op for op in backward if op.module not in paths] == []
    assert faults(t) == []


def test_each_layer_has_as_many_backward_ops_as_the_next(
    gpt2: tuple[clew.Trace, nn.Module],
) -> None:
    t, _ = gpt2
    counts = [
        Counter(
            (op.module.removeprefix(f"transformer.h.{layer}"), op.name)
            for op in t.ops
            if op.phase == "backward" and op.module.startswith(f"transformer.h.{layer}.")
        )
        for layer in range(12)
    ]
    assert sum(counts[0].values()) > 40
    assert all(count == counts[0] for count in counts[1:])


def test_backward_runs_through_the_layers_from_the_last(
    gpt2: tuple[clew.Trace, nn.Module],
) -> None:
    t, _ = gpt2
    order = [
        int(op.module.split(".")[2])
        for op in t.ops
        if op.phase == "backward" and op.module.startswith("transformer.h.")
    ]
    assert order == sorted(order, reverse=True)
    assert set(order) == set(range(12))


def test_each_backward_op_has_the_line_of_its_forward_op(
    gpt2: tuple[clew.Trace, nn.Module],
) -> None:
    t, _ = gpt2
    linked = [op for op in t.ops if op.forward is not None]
    assert len(linked) > 500
    for op in linked:
        assert op.phase == "backward"
        assert op.forward.phase == "forward"
        assert op.source == op.forward.source
        assert op.module == op.forward.module
        assert op.forward.start < op.start
    kinds = {(op.forward.name, op.name) for op in linked}
    for forward, backward in [
        ("aten.native_layer_norm.default", "aten.native_layer_norm_backward.default"),
        ("aten.addmm.default", "aten.mm.default"),
        ("aten.tanh.default", "aten.tanh_backward.default"),
        ("aten.embedding.default", "aten.embedding_dense_backward.default"),
    ]:
        assert (forward, backward) in kinds
    for op in linked:
        if op.name.endswith("_backward.default") and "layer_norm" in op.name:
            assert op.forward.name == "aten.native_layer_norm.default"


def test_gradients_are_accumulated_in_the_owner_of_the_parameter(
    gpt2: tuple[clew.Trace, nn.Module],
) -> None:
    t, model = gpt2
    begins, *accumulated = [op for op in t.ops if op.phase == "backward" and op.forward is None]
    assert begins.name == "aten.ones_like.default"
    owners = Counter(op.module for op in accumulated)
    expected = Counter(name.rpartition(".")[0] for name, _ in model.named_parameters())
    assert owners == expected


def test_the_optimizer_has_its_own_phase(gpt2: tuple[clew.Trace, nn.Module]) -> None:
    t, _ = gpt2
    phases = Counter(op.phase for op in t.ops)
    assert set(phases) == {"forward", "backward", "optimizer"}
    updates = {op.name for op in t.ops if op.phase == "optimizer"}
    assert any("addcdiv" in name for name in updates)
    assert {op.source.file for op in t.ops if op.phase == "optimizer"} == {__file__}


@pytest.mark.parametrize("name", sorted(models.TRANSFORMERS))
def test_every_architecture_is_attributed_whole(name: str) -> None:
    model, inputs = models.build(name)
    with clew.trace(model) as t:
        model(**inputs)["loss"].backward()
    assert faults(t) == []
    lost = [op.name for op in t.ops if op.phase == "backward" and op.module is None]
    assert lost == []
    assert [op for op in t.ops if op.source is None] == []
    root = t["#0"].one
    end = root.start + root.duration
    assert [op for op in t.ops if root.start < op.start < end and op.module is None] == []


# Small ones, op by op


class Two(nn.Module):
    """Two layers on lines of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.second(h).sigmoid()


def backward_ops(t: clew.Trace) -> list[tuple[str, str | None, str]]:
    return [
        (op.name.split(".")[1], op.module, op.source.text) for op in t.ops if op.phase == "backward"
    ]


def test_a_backward_pass_op_by_op() -> None:
    model = Two()
    with clew.trace(model) as t:
        y = model(torch.ones(1, 3))
        y.sum().backward()
    found = backward_ops(t)
    assert ("tanh_backward", "", "h = self.first(x).tanh()") in found
    assert ("sigmoid_backward", "", "return self.second(h).sigmoid()") in found
    assert ("mm", "second", "return self.second(h).sigmoid()") in found
    assert ("mm", "first", "h = self.first(x).tanh()") in found
    assert ("expand", None, "y.sum().backward()") in found


class InPlace(nn.Module):
    """Writes to tensors that need a gradient: whole, in part, and with a copy kept of them."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.part, self.kept = Whole(), Part(), Kept()

    def forward(self, x: Tensor) -> Tensor:
        return self.kept(self.part(self.whole(x * 1)))


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(3).tanh_()


class Part(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        y[0] = x[1].sin()
        return y * 1


class Kept(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.ones(1)  # makes no autograd node
        x /= x.sum(-1, keepdim=True)
        return x


def test_backward_through_writes_in_place() -> None:
    model = InPlace()
    with clew.trace(model) as t:
        y = model(torch.rand(2, 3, requires_grad=True))
        torch.ones(1)
        y.sum().backward()
    backward = [op for op in t.ops if op.phase == "backward"]
    lines = {op.name.split(".")[1]: (op.module, op.source.text) for op in backward}
    assert lines["tanh_backward"] == ("whole", "return x.mul_(3).tanh_()")
    assert lines["cos"] == ("part", "y[0] = x[1].sin()")
    assert lines["neg"] == ("kept", "x /= x.sum(-1, keepdim=True)")
    assert {op.module for op in backward if op.forward is not None} <= {
        None, "", "whole", "part", "kept",
    }  # fmt: skip
    # In reverse order, and none at a line that made no node.
    order = [op.module for op in backward if op.module]
    assert list(dict.fromkeys(order)) == ["kept", "part", "whole"]
    assert not any("torch.ones(1)" in op.source.text for op in backward)
    pieces = [op for op in backward if op.name.split(".")[1] in ("new_empty_strided", "as_strided")]
    assert pieces
    assert {op.module for op in pieces} == {"part"}


def test_two_backward_passes_of_one_model() -> None:
    model = Two()
    with clew.trace(model) as t:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
    found = backward_ops(t)
    half = len(found) // 2
    sums = {"add", "add_", "detach"}  # gradients are taken over first, added up then
    assert [f for f in found[:half] if f[0] not in sums] == [
        f for f in found[half:] if f[0] not in sums
    ]
    tanhs = [op for op in t.ops if op.name == "aten.tanh_backward.default"]
    assert [op.forward.call for op in tanhs] == [0, 1]


def test_a_backward_pass_later_than_another_forward_pass() -> None:
    model = Two()
    with clew.trace(model) as t:
        first = model(torch.ones(1, 3))
        second = model(torch.ones(2, 3))
        second.sum().backward()
        first.sum().backward()
    tanhs = [op for op in t.ops if op.name == "aten.tanh_backward.default"]
    assert [op.forward.call for op in tanhs] == [1, 0]
    assert [op.forward.outputs[""].shape for op in tanhs] == [(2, 3), (1, 3)]


def test_a_graph_from_before_the_trace() -> None:
    model = Two()
    y = model(torch.ones(1, 3)).sum()
    with clew.trace(model) as t:
        model(torch.ones(1, 3))
        y.backward()
    tanh = next(op for op in t.ops if op.name == "aten.tanh_backward.default")
    assert tanh.forward is None
    assert tanh.source.text == "y.backward()"


def test_double_backward() -> None:
    x = torch.ones(3, requires_grad=True)
    model = Two()
    with clew.trace(model) as t:
        y = model(x).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        first.pow(2).sum().backward()
    assert faults(t) == []
    assert {op.phase for op in t.ops} == {"forward", "backward"}
    (power,) = (op for op in t.ops if op.name == "aten.pow.Tensor_Scalar" and op.phase == "forward")
    assert power.source.text == "first.pow(2).sum().backward()"
    again = [op for op in t.ops if op.start > power.start and op.phase == "backward"]
    assert any(op.module == "first" for op in again)
    assert any(op.module == "second" for op in again)


def test_gradients_asked_for_by_hand() -> None:
    model = Two()
    with clew.trace(model) as t:
        y = model(torch.ones(1, 3)).sum()
        torch.autograd.grad(y, list(model.parameters()))
    assert ("tanh_backward", "", "h = self.first(x).tanh()") in backward_ops(t)


@pytest.mark.parametrize(
    "ask",
    [
        lambda loss, model: loss.backward(),
        lambda loss, model: torch.autograd.backward([loss]),
        lambda loss, model: torch.autograd.grad(loss, model.first.weight),
    ],
    ids=["Tensor.backward", "autograd.backward", "autograd.grad"],
)
def test_the_gradient_that_begins_a_backward_pass_is_part_of_it(ask: Any) -> None:
    class Loss(Two):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum()

    model = Loss()
    with clew.trace(model) as t:
        ask(model(torch.ones(1, 3)), model)
    begins = t["op:aten.ones_like.default"].one
    assert begins.phase == "backward"
    # It is the gradient of what the model returned.
    assert begins.module == ""
    assert begins.source.text.startswith("lambda loss, model:")


def test_gradients_of_what_a_gradient_does_not_depend_on() -> None:
    model, unused = Two(), torch.ones(3, requires_grad=True)
    with clew.trace(model) as t:
        y = model(torch.ones(1, 3)).sum()
        torch.autograd.grad(y, [unused], materialize_grads=True)
    [zeros] = t["op:aten.zeros_like.default"]
    assert (zeros.phase, zeros.module) == ("backward", None)


def test_hooks_of_the_program_run_in_backward() -> None:
    model = Two()
    model.second.weight.register_hook(lambda gradient: gradient * 2)
    model.first.register_full_backward_hook(lambda m, gi, go: None)
    with clew.trace(model) as t:
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
    doubled = [op for op in t.ops if op.source.text.startswith("model.second.weight.register_hook")]
    assert [op.phase for op in doubled] == ["backward"]
    assert faults(t) == []


def test_a_module_shared_by_two_places_keeps_the_calls_apart() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    with clew.trace(model) as t:
        model(torch.ones(1, 3)).sum().backward()
    products = [op for op in t.ops if op.name == "aten.mm.default"]
    forward = [op.forward.call for op in products if op.forward.name == "aten.addmm.default"]
    assert forward == sorted(forward, reverse=True)
    assert set(forward) == {0, 1}


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.div(2)


def test_a_custom_function_inside_a_module() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Halved.apply(x)

    model = nn.Sequential(nn.Linear(3, 3), Half())
    with clew.trace(model) as t:
        model(torch.ones(1, 3)).sum().backward()
    (division,) = (op for op in t.ops if op.name.startswith("aten.div") and op.phase == "backward")
    assert division.module == "1"
    others = [op for op in t.ops if op.name == "aten.mm.default"]
    assert [op.module for op in others] == ["0"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_backward_of_a_checkpoint(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    x = torch.ones(1, 3, requires_grad=True)
    with clew.trace(model) as t:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert Counter(op.phase for op in t.ops if op.name == "aten.tanh.default") == Counter(
        ["forward", "recompute"]
    )
    (tanh,) = (op for op in t.ops if op.name == "aten.tanh_backward.default")
    assert (tanh.phase, tanh.module) == ("backward", "1")
    products = {op.module for op in t.ops if op.name == "aten.mm.default"}
    assert products == {"0", "2"}
    assert all(op.phase == "backward" for op in t.ops if op.name == "aten.mm.default")
    assert not any(event.error for event in t.events)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_among_others(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant).relu()
            return x

    model = Net()
    with clew.trace(model) as t:
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
        model(torch.ones(1, 3, requires_grad=True))
    assert [e.call for e in t["layers.1"]] == [0, 1]
    recomputed = [e.module for e in t.modules if e.phase == "recompute"]
    assert recomputed == ["layers.2", "layers.1", "layers.0"]
    relus = [op.module for op in t.ops if op.name == "aten.threshold_backward.default"]
    assert relus == ["", "", ""]
    products = [op.module for op in t.ops if op.name == "aten.mm.default"]
    assert list(dict.fromkeys(products)) == ["layers.2", "layers.1", "layers.0"]


class Inner(nn.Module):
    """Ops of its own in a checkpoint, around a layer and beside one more checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.reentrant = reentrant

    def part(self, x: Tensor) -> Tensor:
        return checkpoint(torch.sigmoid, self.fc(x * 2).tanh(), use_reentrant=self.reentrant)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x.exp(), use_reentrant=self.reentrant)


# torch says so of a reentrant checkpoint in another, whose first pass is without gradients.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_recomputes_belongs_to_the_module_that_made_it(
    reentrant: bool, engine: str
) -> None:
    model = nn.Sequential(Inner(reentrant), Inner(reentrant))
    with clew.trace(model) as t:
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
    again = [op for op in t.ops if op.phase == "recompute"]
    names = ["mul.Tensor", "tanh.default", "sigmoid.default"]
    # Of what is saved again, which only a mode sees as an op.
    names += ["detach.default"] if engine == "python" else []
    for name in names:
        found = [op.module for op in again if op.name == f"aten.{name}"]
        assert list(dict.fromkeys(m for m in found if m != f"{m[:1]}.fc")) == ["1", "0"], name
    outside = [op.name for op in t.ops if op.phase == "backward" and op.module is None]
    # The sum's gradient and that of the input, which no module made.
    assert outside == ["aten.ones_like.default", "aten.expand.default", "aten.detach.default"]


# Optimizers and data


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, foreach=True),
        lambda p: torch.optim.Adam(p, foreach=False),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.LBFGS(p),
    ],
    ids=["SGD", "Adam foreach", "Adam", "AdamW fused", "LBFGS"],
)
def test_the_phase_of_an_optimizer(make: Any) -> None:
    model = Two()
    optimizer = make(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).sum()
        loss.backward()
        return loss

    with clew.trace(model) as t:
        optimizer.step(closure)
        torch.ones(3) + 1
    phases = Counter(op.phase for op in t.ops)
    assert phases["optimizer"] > 0
    assert phases["backward"] > 0
    assert t.ops[-1].phase == "forward"
    assert all(op.module is None for op in t.ops if op.phase == "optimizer")
    assert {call.phase for call in t.modules} == {"forward"}
    assert {op.phase for op in t["op:aten.addmm.default"]} == {"forward"}


class Simple(torch.optim.Optimizer):
    """An optimizer of the program's own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad)


class Closure:
    """Runs a model forward and backward, in each of the forms that a closure may have."""

    def __init__(self) -> None:
        self.model = Two()

    def __call__(self, factor: float = 1.0) -> Tensor:
        loss = self.model(torch.ones(1, 3)).sum() * factor
        loss.backward()
        return loss

    def run(self) -> Tensor:
        return self(2.0)


@pytest.mark.parametrize("make", [Simple, torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize(
    "form",
    [lambda c: c, lambda c: c.run, lambda c: lambda: c(), lambda c: functools.partial(c.run)],
    ids=["object", "method", "lambda", "partial"],
)
def test_what_a_closure_runs_is_no_update(make: Any, form: Any) -> None:
    runs = Closure()
    optimizer = make(runs.model.parameters())
    with clew.trace(runs.model) as t:
        optimizer.step(form(runs))
        optimizer.step(closure=form(runs))
    losses = [op for op in t.ops if op.source.text.startswith("loss = self.model(")]
    assert {op.phase for op in losses} == {"forward", "backward"}
    assert {call.phase for call in t.modules} == {"forward"}
    updates = {op.name for op in t.ops if op.phase == "optimizer"}
    assert updates
    assert make is not Simple or updates == {"aten.sub_.Tensor"}


def test_an_optimizer_of_the_program_s_own() -> None:
    model = Two()
    optimizer = Simple(model.parameters())
    with clew.trace(model) as t:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    updates = [op for op in t.ops if op.phase == "optimizer"]
    assert [op.name for op in updates] == ["aten.sub_.Tensor"] * 4
    assert updates[0].inputs["0"].name == "first.weight"
    assert {op.source.text for op in updates} == {"parameter.sub_(parameter.grad)"}


class Squares(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), float(index)).square()


def test_the_phase_of_data_loading() -> None:
    model = Two()
    with clew.trace(model) as t:
        for batch in DataLoader(Squares(), batch_size=2):
            model(batch)
    loading = [op for op in t.ops if op.phase == "data"]
    assert {"aten.square.default", "aten.pow.Tensor_Scalar"} & {op.name for op in loading}
    assert "aten.stack.default" in {op.name for op in loading}
    assert all(op.module is None for op in loading)
    squares = [op for op in loading if op.source.text.startswith("return torch.full")]
    assert len(squares) >= 8
    assert all(e.phase == "forward" for e in t.modules)


def test_steps_are_counted() -> None:
    model = Two()
    with clew.trace(model) as t:
        for expected in (1, 2):
            model(torch.ones(1, 3)).sum().backward()
            assert t.step() == expected
        model(torch.ones(1, 3))
    assert t.steps == [0, 1, 2]
    assert [event.step for event in t[""]] == [0, 1, 2]
    marks = [event for event in t.events if event.kind == "step"]
    assert [event.step for event in marks] == [1, 2]


def test_a_step_that_begins_inside_a_call() -> None:
    class Stepping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            t.step()
            return y * 2

    model = Stepping()
    with clew.trace(model) as t:
        model(torch.ones(1))
    assert [(op.name.split(".")[1], op.step) for op in t.ops if op.name != "aten.ones.default"] == [
        ("add", 0),
        ("mul", 1),
    ]
    assert t[""].one.step == 0


def test_a_backward_through_the_backward_belongs_to_the_forward_too(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 1))
    out = tmp_path / "run.clew"
    with clew.trace(model, out=out) as t:
        x = torch.randn(4, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        torch.randn(4, 3)  # the first op of forward that comes after those nodes
        slope.pow(2).sum().backward()
    second = [op for op in t.ops if op.phase == "backward"]
    second = second[[op.name for op in second].index("aten.pow.Tensor_Scalar") :]
    assert {op.module for op in second if "mm" in op.name} == {"0", "2"}
    assert {op.module for op in second if "sigmoid" in op.name} == {"1"}
    made = {op.forward.name for op in second if op.forward is not None}
    assert "aten.randn.default" not in made
    assert {"aten.addmm.default", "aten.sigmoid.default", "aten.pow.Tensor_Scalar"} <= made
    [table] = (pq.read_table(part) for part in out.glob("rank=*/events-*.parquet"))
    written = {row["id"]: row["module"] for row in table.to_pylist()}
    assert all(written[op.id] == op.module for op in second if op.forward is not None)


def test_an_alias_that_torch_makes_is_no_op() -> None:
    x = torch.ones(3, requires_grad=True)
    with clew.trace() as t:
        y = x.exp()  # saves its result
        (y.data + y.detach()).sum()
        y.sum().backward()
    assert [op.phase for op in t.ops if op.name == "aten.detach.default"] == ["forward", "backward"]
    (plus,) = (op for op in t.ops if op.name == "aten.add.Tensor")
    assert [value.producer.name for value in plus.inputs.values()] == [
        "aten.exp.default",
        "aten.detach.default",
    ]
    (product,) = (op for op in t.ops if op.name == "aten.mul.Tensor")
    assert product.inputs["1"].producer.name == "aten.exp.default"
    storages = {value.storage for value in (plus.inputs["0"], product.inputs["1"])}
    assert len(storages) == 1
