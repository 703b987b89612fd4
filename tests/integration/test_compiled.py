"""Compiled code: it stays compiled and is recorded as one opaque call, or is opened up on
request.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import clew
from tests.outcomes import differing, facts, faults, gradients, installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler needs g++"),
    pytest.mark.filterwarnings("ignore"),  # the compiler itself sets off several
]


class Net(nn.Module):
    """A compiled block between eager layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.after = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.block(self.before(x)))


class Part(nn.Module):
    """A block of the user's own, which the compiler takes whole."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.fc(x))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    model.block = torch.compile(model.block, fullgraph=True)
    model(torch.ones(3, 4)).sum().backward()
    with torch.no_grad():
        model(torch.ones(3, 4))
    return model


def run(model: nn.Module) -> dict[str, Any]:
    model.zero_grad()
    y = model(torch.arange(12.0).reshape(3, 4))
    y.sum().backward()
    return {"y": facts(y), **{name: facts(g) for name, g in gradients(model)}}


def frames_compiled() -> int:
    from torch._dynamo.utils import counters

    return counters["frames"]["ok"]


def test_a_compiled_region_is_one_opaque_call(net: nn.Module) -> None:
    with torch.no_grad(), clew.trace(net) as t:
        net(torch.ones(3, 4))
    assert faults(t) == []
    assert [op.module for op in t.ops if op.name == "aten.addmm.default"] == ["before", "after"]
    (region,) = (op for op in t.ops if op.name == "compiled")
    assert region.module == "block"
    assert [value.shape for value in region.outputs.values()] == [(3, 4)]
    assert region.outputs["0"].number == t["block"].output.number
    assert any(
        gap.what == "a compiled region" and "compiled='eager'" in gap.remedy for gap in t.coverage
    )
    assert not any("_orig_mod" in event.address for event in t.events)


def test_a_module_compiled_in_place_has_its_call() -> None:
    torch.manual_seed(0)
    model = Net()
    model.block = Part()
    model.block.compile(fullgraph=True)
    x = torch.ones(3, 4)
    with torch.no_grad():
        expected = model(x)
    with torch.no_grad(), clew.trace(model) as t:
        again = model(x)
    assert torch.equal(again, expected)
    assert faults(t) == []
    assert [e.address for e in t.modules] == ["#0", "before#0", "block#0", "after#0"]
    (region,) = (op for op in t.ops if op.name == "compiled")
    assert region.module == "block"
    call = t["block"].one
    assert call.inputs["0"].number == t["before"].output.number
    assert call.source.function.endswith("Net.forward")
    model.compile(fullgraph=True)
    with torch.no_grad():
        model(x)
        with clew.trace(model) as t:
            model(x), model(x)
    assert [e.address for e in t.modules] == ["#0", "#1"]


def test_its_backward_belongs_to_the_same_module_and_line(net: nn.Module) -> None:
    with clew.trace(net) as t:
        net(torch.ones(3, 4)).sum().backward()
    forward, backward = [op for op in t.ops if op.name == "compiled"]
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert backward.forward == forward
    assert (backward.module, backward.source) == ("block", forward.source)
    assert all(op.forward != forward for op in t.ops if op.module in ("before", "after"))


def test_what_it_computes_is_what_the_compiler_made_of_it(net: nn.Module) -> None:
    before = run(net)
    with clew.trace(net) as t:
        during = run(net)
    assert differing(before, during) == []
    assert differing(before, run(net)) == []
    compiled = [op for op in t.ops if op.name == "compiled"]
    assert [op.phase for op in compiled] == ["forward", "backward"]


def test_nothing_is_compiled_again_after_the_first_time(net: nn.Module) -> None:
    with clew.trace(net):
        run(net)
    run(net)
    frames = frames_compiled()
    for _ in range(2):
        with clew.trace(net):
            run(net)
        run(net)
    assert frames_compiled() == frames


def test_opened_up_it_shows_its_parts(net: nn.Module) -> None:
    with torch.no_grad(), clew.trace(net, compiled="eager") as t:
        net(torch.ones(3, 4))
    assert [op.module for op in t.ops if op.name == "aten.addmm.default"] == [
        "before", "block.0", "block.2", "after",
    ]  # fmt: skip
    assert "compiled" not in [op.name for op in t.ops]
    assert len(t["block.1"]) == 1
    assert list(t.coverage) == []
    with torch.no_grad():
        net(torch.ones(3, 4))
    with torch.no_grad(), clew.trace(net) as t:
        net(torch.ones(3, 4))
    assert "compiled" in [op.name for op in t.ops]  # compiled again afterwards


@pytest.mark.parametrize("level", ["ops", "modules"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_that_runs_op_by_op_is_in_the_coverage(backend: str, level: str) -> None:
    model = Net()
    model.block = torch.compile(model.block, backend=backend)
    model(torch.ones(3, 4))
    with clew.trace(model, level=level) as t:
        model(torch.ones(3, 4))
    assert "block.0" not in {call.module for call in t.modules}
    assert [(gap.what, gap.where) for gap in t.coverage] == [("a compiled region", "block")]
    assert "compiled='eager'" in t.coverage[0].remedy
    with clew.trace(model, level=level, compiled="eager") as t:
        model(torch.ones(3, 4))
    assert "block.0" in {call.module for call in t.modules}
    assert list(t.coverage) == []


def test_a_function_whose_graph_runs_op_by_op_is_in_the_coverage() -> None:
    part = Part()
    compiled = torch.compile(lambda x: part(x).cos(), backend="eager")
    compiled(torch.ones(3, 4))
    with clew.trace() as t:
        compiled(torch.ones(3, 4))
    assert [gap.what for gap in t.coverage] == ["a compiled region"]


def test_compiled_for_the_first_time_inside_the_block() -> None:
    # The first compilation of a process makes torch import more of itself.
    torch.compile(nn.Linear(1, 1))(torch.ones(1, 1))
    torch.manual_seed(0)
    model = Net()
    expected = model(torch.ones(3, 4))
    model.block = torch.compile(model.block, fullgraph=True)
    before = installed()
    with clew.trace(model) as t:
        y = model(torch.ones(3, 4))
    after = installed()
    torch.testing.assert_close(y, expected)
    assert faults(t) == []
    assert t.coverage
    assert [op.module for op in t.ops if op.name == "aten.addmm.default"] == ["before", "after"]
    assert differing(before, after) == []


def test_a_function_compiled_whole() -> None:
    @torch.compile(fullgraph=True)
    def compute(x: Tensor) -> Tensor:
        return (x * 2).relu() + 1

    expected = compute(torch.ones(3))
    with clew.trace() as t:
        y = compute(torch.ones(3))
        y + 1
    assert torch.equal(y, expected)
    assert [op.name for op in t.ops] == ["aten.ones.default", "compiled", "aten.add.Tensor"]
    assert t.ops[-1].inputs["0"].producer.name == "compiled"
    assert t.ops[1].source.file == __file__


class Branching(nn.Module):
    """Runs one of two branches inside a higher-order op, which torch compiles for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def positive(x: Tensor) -> Tensor:
            return self.fc(x).relu()

        return torch.cond(x.sum() > 0, positive, lambda x: self.fc(x).cos(), (x,))


def test_a_module_with_a_meta_of_its_own_is_no_graph(net: nn.Module) -> None:
    """As Lightning's metrics have; asked only where something was compiled before."""
    net(torch.ones(3, 4))
    part = Part()
    part.meta = object()
    with clew.trace() as t:
        part(torch.ones(3, 4))
    assert not faults(t)


def test_a_compiled_region_in_a_step_left_out_is_not_recorded(net: nn.Module) -> None:
    with clew.trace(net, schedule=clew.schedule(every=2)) as t:
        for _ in range(4):
            net(torch.ones(3, 4))
            t.step()
    assert [e.step for e in t.ops if e.name == "compiled"] == [1, 3]


def test_a_compiled_optimizer_is_compiled_as_ever() -> None:
    def frames(around: Callable[[nn.Module], Any]) -> int:
        torch._dynamo.reset()
        model, counter = nn.Linear(2, 2), CompileCounter()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = torch.compile(optimizer.step, backend=counter)
        with around(model):
            for _ in range(3):
                model(torch.ones(2, 2)).sum().backward()
                step()
        return int(counter.frame_count)

    alone = frames(lambda model: contextlib.nullcontext())
    asked = ["weight:grad", "weight:param", "weight:update", "weight:state"]
    assert frames(clew.trace) == alone
    assert frames(lambda model: clew.trace(model, capture=asked)) == alone


def traced_branch() -> clew.Trace:
    """Trace `torch.cond`, which must give what it gives alone."""
    torch.manual_seed(0)
    model = Branching()
    expected = run(model)
    with clew.trace(model) as t:
        assert differing(expected, run(model)) == []
    assert faults(t) == []
    return t


@pytest.mark.usefixtures("python_engine")
def test_a_higher_order_op_is_one_op_and_coverage_says_so() -> None:
    """To a dispatch mode, that is."""
    t = traced_branch()
    ran = [op for op in t.ops if op.name == "cond"]
    assert [op.phase for op in ran] == ["forward", "backward"]
    assert [tuple(op.outputs["0"].shape) for op in ran] == [(3, 4), (4,)]
    assert not any("relu" in op.name for op in t.ops)
    (gap,) = {gap.why for gap in t.coverage if gap.what == "the ops inside of cond"}
    assert "recorded as one op" in gap


@pytest.mark.usefixtures("native_engine")
def test_the_native_engine_sees_the_ops_of_a_higher_order_op() -> None:
    t = traced_branch()
    assert {"aten.relu.default", "aten.threshold_backward.default"} <= {op.name for op in t.ops}
    assert not [gap for gap in t.coverage if gap.what == "the ops inside of cond"]


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_a_compiled_graph_dies_with_what_was_compiled(level: str) -> None:
    model = Branching()

    def graphs() -> int:
        torch._dynamo.reset()
        gc.collect()
        return sum(isinstance(found, torch.fx.GraphModule) for found in gc.get_objects())

    def traced() -> int:
        with torch.no_grad(), clew.trace(model, level=level) as t:
            model(torch.ones(3, 4))
        assert t["GraphModule"][-1].source.file == __file__
        del t
        return graphs()

    torch._dynamo.reset()
    before = traced()
    assert [traced() for _ in range(3)] == [before] * 3


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        torch._dynamo.graph_break()
        return torch.relu(self.fc(y))


@pytest.mark.parametrize("as_function", [False, True])
def test_what_is_compiled_inside_a_block_is_not_compiled_again_after_it(as_function: bool) -> None:
    torch._dynamo.reset()
    model, counter = Broken(), CompileCounter()
    run = torch.compile((lambda x: model(x)) if as_function else model, backend=counter)
    with clew.trace(model) as t:
        run(torch.ones(1, 2))
        model(torch.ones(1, 2))
    run(torch.ones(1, 2))
    assert counter.frame_count == 2
    assert "compilation" not in [gap.what for gap in t.coverage]
    assert len(t["fc"]) == 2


def test_what_is_compiled_while_other_threads_run_is_said_to_be_compiled_again(engine: str) -> None:
    """Hooks stay in place then: the other thread may call a module again.

    The native engine needs none.
    """
    torch._dynamo.reset()
    model, counter = Broken(), CompileCounter()
    run = torch.compile(model, backend=counter)
    with clew.trace(model) as t, ThreadPoolExecutor(1) as pool:
        pool.submit(model, torch.ones(1, 2)).result()
        run(torch.ones(1, 2))
    run(torch.ones(1, 2))
    assert counter.frame_count == (4 if engine == "python" else 2)
    assert ("compilation" in [gap.what for gap in t.coverage]) == (engine == "python")
