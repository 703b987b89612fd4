"""Taps and prefixes: values and stretches of a run that the program names itself."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew import callbacks
from clew.errors import ClewError
from tests.outcomes import faults


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = clew.tap("h", self.fc(x), self)
        return h.relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_tap_has_the_path_of_its_module() -> None:
    net, x = Net(), torch.randn(2, 4)
    with clew.trace(net) as t:
        net(x)
        net(x)
    assert faults(t) == []
    assert [e.address for e in t["blocks.*.h"]] == [
        "blocks.0.h#0", "blocks.1.h#0", "blocks.0.h#1", "blocks.1.h#1",
    ]  # fmt: skip
    assert np.array_equal(t["blocks.0.h#1"].value, net.blocks[0].fc(x).detach())
    event = t["blocks.1.h#0"].one
    assert (event.kind, event.name, event.module) == ("tap", "h", "blocks.1")
    assert event.source is not None
    assert event.source.text.startswith('h = clew.tap("h"')
    assert event.outputs[""].producer == t["blocks.1.fc#0"].output.producer


def test_a_tap_returns_its_value_and_does_nothing_outside_a_trace() -> None:
    value = object()
    assert clew.tap("x", value) is value
    with clew.trace():
        assert clew.tap("x", value) is value


def test_without_a_module_the_running_one_is_meant() -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return clew.tap("inside", x + 1)

    net = nn.Sequential(Plain())
    with clew.trace(net) as t:
        net(torch.ones(2))
        clew.tap("outside", 3)
    assert t["0.inside"].one.module == "0"
    assert t["outside"].one.module is None
    assert t["outside"].one.outputs[""].item() == 3


def test_a_tap_is_a_snapshot() -> None:
    x = torch.zeros(3)
    with clew.trace() as t:
        clew.tap("x", x)
        x.add_(1)
        clew.tap("x", x)
        x.data.add_(1)
        clew.tap("y", x[1:])
    assert [v.array().tolist() for v in t["x"].values] == [[0, 0, 0], [1, 1, 1]]
    assert t["y"].value.tolist() == [2, 2]


ODD: list[Any] = [
    3, 2.5, True, None, "text", b"bytes", 10**30, 1 + 2j, float("nan"), "\ud800",
    np.arange(6).reshape(2, 3).T, np.array(["a", "bc"]), np.array(2.0), np.float32(1.5),
    np.array([], dtype=np.int8), np.array(["2020-01-01"], dtype="datetime64[D]"),
    np.arange(3, dtype=">i4"),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda v: f"{type(v).__name__}-{str(v)[:12]!r}")
@pytest.mark.parametrize("on_disk", [False, True])
def test_any_value_comes_back(value: Any, on_disk: bool, tmp_path: Path) -> None:
    with clew.trace(out=tmp_path / "run.clew" if on_disk else None) as t:
        clew.tap("value", value)
    trace = clew.load(tmp_path / "run.clew") if on_disk else t
    assert faults(trace) == []
    back = trace["value"].one.outputs[""].item()
    if isinstance(value, np.ndarray) and value.ndim:
        assert np.array_equal(back, value)
        assert back.dtype == value.dtype.newbyteorder("=")
    elif isinstance(value, float) and value != value:
        assert back != back
    else:
        assert back == value


def test_containers_are_opened_and_objects_named() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise AssertionError("nobody may call this")

    items = iter([1, 2])
    with clew.trace() as t:
        clew.tap("all", {"a": [torch.ones(2), 7], "b": Odd(), "c": items, "d": {1}})
    outputs = t["all"].one.outputs
    assert {path: value.look for path, value in outputs.items()} == {
        "a.0": "f32[2]", "a.1": "int", "b": "Odd", "c": "list_iterator", "d": "set",
    }  # fmt: skip
    assert next(items) == 1


@pytest.mark.parametrize("name", ["a.b", "a/b", "..", "a#1", "x y", "[0]", "'", "", "π", "a:in"])
def test_any_name_is_found_again(name: str) -> None:
    net = Net()
    with clew.trace(net) as t:
        net(torch.ones(1, 4))
        clew.tap(name, torch.ones(1), net.blocks[0])
    event = t.events[-1]
    assert event.name == name
    assert list(t[event.address]) == [event]


def test_reduce_by_name_and_by_function() -> None:
    x = torch.tensor([3.0, -4.0])
    with clew.trace() as t:
        clew.tap("norm", x, reduce="norm")
        clew.tap("double", x, reduce=lambda v: v * 2)
    assert t["norm"].value == 5
    assert t["double"].value.tolist() == [6, -8]
    # What reduces is not part of the program.
    assert len(t.ops) == 0


def test_a_reduction_that_fails_keeps_the_value() -> None:
    with clew.trace() as t:
        clew.tap("x", torch.ones(2), reduce=lambda v: 1 / 0)
        clew.tap("y", torch.ones(2), reduce="nonsense")
    assert t["x"].value.tolist() == [1, 1]
    [gap, fault] = t.coverage
    assert "ZeroDivisionError" in str(gap)
    assert "the value itself was kept" in str(gap)
    assert "no reduction is called 'nonsense'" in str(fault)


def test_reductions_are_those_of_torch_and_numpy() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    for reduction, expected in [
        (callbacks.mean(0), x.mean(0)),
        (callbacks.std(1), x.std(1, correction=0)),
        (callbacks.norm((0, 1)), x.norm()),
        (callbacks.norm(), x.norm()),
        (callbacks.topk(3), x.reshape(-1).topk(3).values),
        (callbacks.absmax(), x.abs().max()),
    ]:
        assert torch.allclose(reduction(x), expected)
        assert np.allclose(reduction(x.numpy()), expected)
    counts = callbacks.histogram(4, -1, 1)(torch.tensor([-1.0, 0.1, 0.2, float("nan")]))
    assert counts.tolist() == [1, 0, 2, 0]
    ragged = [torch.ones(2), np.ones((1, 3))]
    assert callbacks.stack_padded(ragged).tolist() == [[[1, 1, 0]], [[1, 1, 1]]]
    with pytest.raises(ClewError, match="there are: mean, std, norm"):
        callbacks.reducer("median")


def test_taps_on_other_threads_and_in_hooks() -> None:
    net = Net()
    hook = net.blocks[0].fc.register_forward_hook(
        lambda module, args, out: (clew.tap("hooked", out, module), None)[1]
    )
    with clew.trace(net) as t:
        thread = threading.Thread(target=lambda: net(torch.ones(1, 4)), name="worker")
        thread.start()
        thread.join()
    hook.remove()
    assert t["blocks.0.fc.hooked"].one.thread == "worker"
    assert t["blocks.1.h"].one.thread == "worker"


def test_taps_in_backward() -> None:
    x = torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        y = x * 3
        y.register_hook(lambda grad: (clew.tap("dy", grad), None)[1])
        y.sum().backward()
    assert t["dy"].value.tolist() == [1, 1]
    assert t["dy"].one.phase == "backward"


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_taps_in_compiled_code(backend: str) -> None:
    torch._dynamo.reset()
    net, x = Net(), torch.randn(2, 4)
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    expected = compiled(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with clew.trace(net) as t:
        y = compiled(x)
        y.sum().backward()
    assert torch.equal(y, expected)
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]
    assert [e.address for e in t["blocks.*.h"]] == ["blocks.0.h#0", "blocks.1.h#0"]
    assert np.allclose(t["blocks.0.h"].value, net.blocks[0].fc(x).detach(), atol=1e-6)
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_tap_of_something_else_in_compiled_code_is_said(backend: str) -> None:
    torch._dynamo.reset()

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            clew.tap("size", x.shape[0], self)
            x = x.relu()
            clew.tap("name", "odd", self)
            return x

    compiled = torch.compile(Odd(), fullgraph=True, backend=backend)
    with clew.trace() as t:
        compiled(torch.ones(1, 2)).sum().backward()
    assert any("size" in str(gap) and "only tensors" in str(gap) for gap in t.coverage)


def test_prefixes_nest_and_end() -> None:
    with clew.prefix("before"), clew.trace() as t:
        clew.tap("x", 0)
        with clew.prefix("inner"):
            clew.tap("x", 1)
            torch.ones(1)
        clew.tap("x", 2)
    assert [e.prefix for e in t["x"]] == ["before", "before.inner", "before"]
    assert t.ops[0].prefix == "before.inner"
    with clew.trace() as t:
        clew.tap("x", 3)
    assert t["x"].one.prefix == ""


def test_taps_are_not_recorded_in_steps_left_out() -> None:
    with clew.trace(schedule=clew.schedule(every=2)) as t:
        for number in range(4):
            clew.tap("x", number)
            t.step()
    assert [v.item() for v in t["x"].values] == [1, 3]


def test_a_tap_over_steps_is_a_series() -> None:
    with clew.trace() as t:
        for size in (1, 3, 2):
            t.step()
            clew.tap("x", torch.ones(size))
    series = t.series("x")
    assert series.steps == [1, 2, 3]
    assert series.stack(pad=True).tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]


class Tapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        clew.tap("mid", y)
        return y * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    "asked",
    [{}, {"capture": ["forward.y"]}, {"watch": ["y"]}, {"values": "full"},
     {"callbacks": {"mid": clew.Callbacks(save="max")}}],
    ids=["nothing", "captured", "watched", "full", "called back"],
)  # fmt: skip
def test_what_is_tapped_or_followed_is_no_part_of_what_jit_traces(asked: dict[str, Any]) -> None:
    """torch warns of every number that is made of a tensor it traces; here that is an error."""
    model = Tapped()
    plain = re.sub(r"___torch_mangle_\d+\.", "", graph_of(model))
    with clew.trace(model, **asked) as t:
        assert re.sub(r"___torch_mangle_\d+\.", "", graph_of(model)) == plain
    assert len(t["mid"]) > 0
    assert faults(t) == []


def graph_of(model: nn.Module) -> str:
    return str(torch.jit.trace(model, torch.ones(1, 2)).inlined_graph)


COMPILED_FIRST_INSIDE = """
import sys, torch, clew

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return clew.tap("h", self.fc(x), self.fc)

net = Net()
assert "torch._dynamo" not in sys.modules
with clew.trace(net, level="modules") as t:
    torch.compile(lambda x: net(x), backend="eager", fullgraph=True)(torch.ones(1, 4))
print([event.address for event in t.events if event.kind == "tap"])
"""


def test_a_tap_has_its_module_where_the_first_to_compile_is_in_the_block() -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMPILED_FIRST_INSIDE]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "['fc.h#0']\n"
