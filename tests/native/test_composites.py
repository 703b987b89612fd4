"""Composites: calls that only run other ops, and are the parents of those."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import clew
from clew.run.event import Event
from tests.native.engine import faults, native_trace, needs_engine
from tests.processes import SRC

pytestmark = needs_engine

# Made outside the traces, which record the ops that make a tensor.
X, WEIGHT, BIAS = torch.ones(2, 4), torch.ones(3, 4), torch.ones(3)
# Runs what `inside` holds between its two ops.
inside: list[Callable[[], Any]] = []


@contextmanager
def running(what: Callable[[], Any]) -> Iterator[None]:
    inside.append(what)
    try:
        yield
    finally:
        inside.clear()


library = torch.library.Library("clew_composites", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")


library.define("once(Tensor x) -> Tensor")


def _twice(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    for what in inside:
        what()
    return x * 2


library.impl("twice", _twice, "CompositeImplicitAutograd")
library.impl("once", _twice, "CPU")
twice, once = torch.ops.clew_composites.twice, torch.ops.clew_composites.once


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(self.fc(x))


def composites(trace: Any, name: str = "") -> list[Event]:
    return [e for e in trace.events if e.kind == "composite" and name in e.name]


def ops_in(trace: Any, event: Event) -> list[str]:
    return [op.name for op in trace.ops if op.parent == event]


def test_a_composite_is_the_parent_of_the_ops_it_runs() -> None:
    x = torch.randn(2, 5, 4)
    with native_trace() as t:
        functional.linear(x, WEIGHT, BIAS)
    (linear,) = composites(t, "linear")
    assert linear.name == "aten.linear.default"
    assert linear.parent is None
    assert [value.look for value in linear.inputs.values()] == ["f32[2,5,4]", "f32[3,4]", "f32[3]"]
    assert [value.look for value in linear.outputs.values()] == ["f32[2,5,3]"]
    assert linear.source is not None
    assert "functional.linear" in linear.source.text
    ops = list(t.ops)
    assert {op.kind for op in ops} == {"op"}
    assert len(ops) == 4
    assert all(op.parent == linear and op.parent_id == linear.id for op in ops)
    assert linear.id < ops[0].id
    assert linear.start <= ops[0].start
    last = ops[-1]
    assert last.start + last.duration <= linear.start + linear.duration
    # The value is the one that the last op made.
    assert linear.outputs[""].producer == last


def test_composites_lie_in_one_another_and_in_module_calls() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with native_trace(model) as t:
        model(torch.ones(2, 3, 4)) @ torch.ones(2, 4, 5)
    (linear,) = composites(t, "linear")
    assert linear.parent is not None
    assert linear.parent.kind == "module"
    assert linear.module == "0"
    assert {op.module for op in t.ops if op.parent == linear} == {"0"}
    (matmul,) = composites(t, "matmul")
    inner = [e for e in composites(t) if e.parent == matmul]
    assert [e.name for e in inner] == ["aten.reshape.default"] * len(inner)
    assert inner
    assert all(ops_in(t, e) for e in inner)


def test_a_composite_that_ran_no_op_leaves_no_event() -> None:
    x = torch.ones(3)
    with native_trace() as t:
        x.contiguous()
        functional.dropout(x, training=False)
        x + 1
    assert [e.name for e in t.events] == ["aten.add.Tensor"]
    assert t.ops[0].parent is None


def test_facts_of_ops_are_those_without_composites() -> None:
    """As the python engine has them, which sees no composite."""
    model = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0.0)
    x = torch.randn(1, 3, 8)
    found = {}
    for engine in ("native", "python"):
        model.zero_grad()
        with clew.trace(model, engine=engine) as t:
            model(x).sum().backward()
        found[engine] = [
            (op.name, op.module, op.phase, op.forward and op.forward.name, op.source)
            for op in t.ops
            if "detach" not in op.name and "view" not in op.name and "reshape" not in op.name
        ]
    same = ("addmm", "native_layer_norm", "mm", "relu")
    for one in found.values():
        assert one
    chosen = {
        engine: [fact for fact in facts if fact[0].split(".")[1] in same]
        for engine, facts in found.items()
    }
    assert chosen["native"] == chosen["python"]


def test_a_composite_of_the_backward_pass_belongs_to_the_module_of_its_forward_op() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with native_trace(model) as t:
        model(torch.ones(2, 3, 4)).sum().backward()
    backward = [e for e in composites(t) if e.phase == "backward"]
    assert backward
    for event in backward:
        assert event.module == "0"
        assert event.forward is not None
        assert {(op.module, op.forward) for op in t.ops if op.parent == event} == {
            ("0", event.forward)
        }


def test_ops_and_addresses_are_counted_without_composites() -> None:
    with native_trace() as t:
        for _ in range(3):
            functional.linear(X, WEIGHT, BIAS)
    assert len(t.ops) == 6
    assert len(t.events) == 9
    assert [e.address for e in composites(t)] == [f"op:aten.linear.default#{n}" for n in range(3)]
    assert len(t["op:aten.linear*"]) == 3
    assert t["op:linear#1"].one == composites(t)[1]
    assert len(t["op:**"]) == len(t["op:aten.*"]) == 6
    assert {e.kind for e in t.find("linear")} == {"composite"}
    assert "6 ops" in repr(t)
    assert "6 ops" in str(t)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_composites_around_an_op_that_raised_have_its_error(depth: int) -> None:
    model = nn.Linear(4, 3)
    wrong, other = torch.ones(2, 5), torch.ones(2, 4)
    runs = {
        1: lambda: model(wrong),
        2: lambda: functional.scaled_dot_product_attention(wrong, other, wrong),
    }
    with pytest.raises(RuntimeError), native_trace(model) as t:
        runs[depth]()
    op = next(op for op in t.ops if op.error)
    around = op.parent
    count = 0
    while around is not None and around.kind == "composite":
        assert around.error == op.error
        assert "Clew" not in str(around.error)
        assert not around.outputs
        assert around.duration is not None
        around, count = around.parent, count + 1
    assert count >= depth
    assert t.crash is not None
    assert t.crash.event == op
    assert str(t.code()).count("✗") == 1
    assert not faults(t)


def test_an_open_composite_is_handed_over_and_comes_again() -> None:
    """Reading hands over what there is: the ops inside have their parent at once, and later."""
    model = Net()
    seen = []

    def look() -> None:
        event = t.ops[-1].parent
        assert event is not None
        seen.append((event.kind, event.name, event.duration, event.outputs, event.module))
        seen.append([(op.name, op.module) for op in t.ops if op.parent == event])

    with native_trace(model) as t, running(look):
        model(X)
    assert seen[0] == ("composite", "clew_composites.twice.default", None, {}, "")
    assert seen[1] == [("aten.add.Tensor", "")]
    (event,) = composites(t, "twice")
    assert ops_in(t, event) == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert event.duration is not None
    assert event.outputs[""].look == "f32[2,3]"
    assert [e.module for e in composites(t)] == ["fc", ""]
    assert len({e.id for e in t.events}) == len(t.events)


def test_a_named_value_in_an_open_composite_survives_a_hand_over() -> None:
    """Its tensors come after those of the engine's events, before those of what is open."""
    model = Net()

    def look() -> None:
        clew.tap("seen", torch.arange(5.0))
        assert t["seen"].one.outputs[""].look == "f32[5]"

    with native_trace(model) as t, running(look):
        model(X)
    assert t["seen"].one.outputs[""].look == "f32[5]"
    assert composites(t, "twice")[0].inputs["0"].look == "f32[2,3]"


def test_what_raises_in_a_composite_of_python_is_its_error() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    model = Net()
    with pytest.raises(KeyboardInterrupt), native_trace(model) as t, running(stop):
        model(X)
    (event,) = composites(t, "twice")
    assert event.error is not None
    assert "KeyboardInterrupt" in event.error
    with native_trace(model) as t:
        with running(stop), pytest.raises(KeyboardInterrupt):
            model(X)
        functional.linear(X, WEIGHT, BIAS)
    last = t.ops[-1].parent
    assert last is not None
    assert last.name == "aten.linear.default"
    assert last.parent is None


@pytest.mark.parametrize("op", [once, twice])
def test_an_interrupt_ends_the_module_calls_in_an_op(op: Any) -> None:
    """Nobody tells of their end: they are over when the op that ran them is."""

    class Stopped(nn.Module):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    stopped, model = Stopped(), nn.Linear(4, 3)
    with torch.no_grad(), native_trace({"stopped": stopped, "model": model}) as t:
        for _ in range(2):
            with running(lambda: stopped(X, WEIGHT, BIAS)), pytest.raises(KeyboardInterrupt):
                op(X)
            len(t.ops)  # a hand-over
            model(X)
    assert not faults(t)
    assert [len(event.inputs) for event in t["stopped"]] == [3, 3]
    assert [event.inputs["0"].look for event in t["model"]] == ["f32[2,4]"] * 2
    found = [event for event in t.events if "clew_composites" in event.name]
    assert [list(event.inputs) for event in found] == [["0"]] * 2
    assert {op.module for op in t.ops if "addmm" in op.name} == {"model"}


def test_a_module_called_in_a_composite_has_its_own_ops() -> None:
    inner = nn.Linear(4, 4)
    model = Net()
    with native_trace({"outer": model, "inner": inner}) as t:
        with running(lambda: inner(X)):
            model(X)
    (event,) = composites(t, "twice")
    assert ops_in(t, event) == ["aten.add.Tensor", "aten.mul.Tensor"]
    call = t["inner"].one
    linear = next(e for e in composites(t, "linear") if e.parent == call)
    assert {op.module for op in t.ops if op.parent == linear} == {"inner"}


PROGRAM = """
import os, signal, sys
import torch
import clew
from tests.native.test_composites import Net, running

model = Net()

def kill():
    t.flush()
    os.kill(os.getpid(), signal.SIGKILL)

with clew.trace(model, engine="native", out=sys.argv[1]) as t:
    with running(kill):
        model(torch.ones(2, 4))
"""


def test_a_kill_leaves_the_open_composite(tmp_path: Path) -> None:
    out = tmp_path / "killed.clew"
    env = {**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent}"}
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(out)], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
    t = clew.load(out)
    (event,) = composites(t, "twice")
    assert event.duration is None
    assert event.module == ""
    assert ops_in(t, event) == ["aten.add.Tensor"]
    assert t.ops[-1].module == ""
    assert event.parent is not None
    assert event.parent.kind == "module"


def test_a_folder_holds_composites(tmp_path: Path) -> None:
    model = Net()
    with native_trace(model, out=tmp_path / "run.clew") as t:
        model(X).sum().backward()
    loaded = clew.load(tmp_path / "run.clew")
    assert [e.to_dict() for e in loaded.events] == [e.to_dict() for e in t.events]
    assert [e.parent for e in loaded.events if e.kind == "op"] != []
    facts = json.loads(json.dumps([e.to_dict() for e in loaded.events]))
    assert {f["kind"] for f in facts} == {"module", "op", "composite"}


@pytest.mark.parametrize("out", [False, True])
def test_a_ring_keeps_the_composites_of_what_it_keeps(out: bool, tmp_path: Path) -> None:
    model = Net()
    where = {"out": tmp_path / "ring.clew"} if out else {}
    with native_trace(model, limits=clew.Limits(last=20), **where) as t:
        for _ in range(30):
            model(X)
            t.step()
    kept = clew.load(tmp_path / "ring.clew") if out else t
    assert len(kept.events) < 100
    ops = [op for op in kept.ops if op.name == "aten.addmm.default"]
    assert ops
    for op in ops:
        assert op.module == "fc"
        assert op.parent is not None
        assert op.parent.name == "aten.linear.default"


@pytest.mark.parametrize("most", range(1, 14))
def test_a_limit_of_events_counts_composites(most: int) -> None:
    model = Net()
    with native_trace(model, limits=clew.Limits(events=most)) as t:
        for _ in range(3):
            model(X)
    opened = [e for e in t.events if e.kind != "op"]
    assert len(t.events) <= most + len(opened)
    modules = {"aten.t.default": "fc", "aten.addmm.default": "fc"}
    for op in t.ops:
        assert op.module == modules.get(op.name, "")
        assert op.parent is not None
        assert op.parent.kind == "composite"


def test_redaction_takes_the_texts_of_composites() -> None:
    x = torch.ones(2, 3)
    with native_trace(redact=True) as t:
        torch.einsum("ab,cb->ac", x, x)
    (einsum,) = composites(t, "einsum")
    assert "(redacted)" in einsum.arguments.values()
    assert "ab,cb->ac" not in str(t.table().columns())


def test_composites_under_autocast_show_what_the_program_gave() -> None:
    with native_trace() as t, torch.autocast("cpu", torch.bfloat16):
        functional.linear(X, WEIGHT, BIAS)
    outer = next(e for e in composites(t, "linear") if e.parent is None)
    assert [v.look for v in outer.inputs.values()] == ["f32[2,4]", "f32[3,4]", "f32[3]"]
    assert [v.look for v in outer.outputs.values()] == ["bf16[2,3]"]


def test_threads_have_composites_of_their_own() -> None:
    x, weight = torch.ones(2, 5, 4), WEIGHT
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            functional.linear(x, weight) @ weight

    with native_trace() as t:
        others = [threading.Thread(target=work) for _ in range(3)]
        for thread in others:
            thread.start()
        for _ in range(10):
            len(t.ops)  # a hand-over, in the middle of whatever runs
        done.set()
        for thread in others:
            thread.join()
    assert not faults(t)
    for event in composites(t):
        assert event.duration is not None
    for op in t.ops:
        if "addmm" in op.name or op.name == "aten.mm.default":
            assert op.parent is not None
            assert op.parent.thread == op.thread
            assert op.parent.kind == "composite"
