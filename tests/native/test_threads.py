"""Threads: which ops are recorded, and that traces can start and stop beside threads that run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from tests.native.engine import faults, native_trace, needs_engine, op_names, read_all
from tests.native.programs import train_until

pytestmark = needs_engine


def run_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def older() -> Iterator[ThreadPoolExecutor]:
    """A thread that is there before the block."""
    with ThreadPoolExecutor(1, thread_name_prefix="older") as pool:
        pool.submit(lambda: torch.ones(1)).result()
        yield pool


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_ops_of_the_block_and_of_threads_started_in_it_are_recorded() -> None:
    with native_trace() as t:
        x = torch.ones(2)
        run_thread(lambda: x.sin())
        x.cos()
    assert op_names(t) == ["aten.ones.default", "aten.sin.default", "aten.cos.default"]
    assert not t.coverage


def test_an_older_thread_is_recorded_in_module_calls_alone(older: ThreadPoolExecutor) -> None:
    model = nn.ReLU()

    def work() -> None:
        x = torch.ones(2).sin()
        model(x)
        for _ in range(100):
            x.cos()

    with native_trace() as t:
        older.submit(work).result()
        torch.ones(2).tan()
    assert op_names(t) == ["aten.relu.default", "aten.ones.default", "aten.tan.default"]
    (gap,) = t.coverage
    assert "older" in gap.where


def test_an_older_thread_after_a_module_call_that_raised(older: ThreadPoolExecutor) -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError(float(x.sin().sum()))

    def work() -> None:
        with contextlib.suppress(ValueError):
            nn.Sequential(nn.ReLU(), Raises())(torch.ones(2))
        torch.ones(2).cos()

    with native_trace() as t:
        older.submit(work).result()
    assert "aten.sin.default" in op_names(t)
    assert "aten.cos.default" not in op_names(t)


def test_backward_on_another_thread() -> None:
    x = torch.ones(2, requires_grad=True)
    with native_trace() as t:
        y = (x * 2).sum()
        run_thread(y.backward)
    assert [op.name for op in t.ops if op.phase == "backward"]
    assert not faults(t)
    read_all(t)


def test_a_deep_backward_that_runs_on_threads_of_the_engine() -> None:
    """Past sixty backward calls inside each other torch goes on in threads of its own."""

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, depth: int) -> Tensor:
            ctx.depth = depth  # type: ignore[attr-defined]
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            depth = ctx.depth  # type: ignore[attr-defined]
            if depth:
                with torch.enable_grad():
                    inner = torch.ones(2, requires_grad=True)
                    Nested.apply(inner, depth - 1).sum().backward()
            return grad * 2, None

    def run() -> Tensor:
        x = torch.ones(2, requires_grad=True)
        Nested.apply(x, 80).sum().backward()
        assert x.grad is not None
        return x.grad

    expected = run()
    with native_trace() as t:
        assert torch.equal(run(), expected)
    assert op_names(t).count("aten.mul.Tensor") == 81
    assert not faults(t)
    read_all(t)


@pytest.mark.parametrize("values", ["meta", "stats", "full"])
@pytest.mark.usefixtures("often_switched")
def test_stop_while_other_threads_record(values: str) -> None:
    for _ in range(25):
        over = threading.Event()
        with native_trace(values=values) as t:
            threads = [threading.Thread(target=train_until, args=[over]) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(20):
                torch.ones(2).sin()
        over.set()
        for thread in threads:
            thread.join()
        assert op_names(t).count("aten.sin.default") == 20
        assert not faults(t)
        read_all(t)


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_nested_traces_all_record_everything(count: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with contextlib.ExitStack() as stack:
        traces = [stack.enter_context(native_trace(model)) for _ in range(count)]
        for _ in range(3):
            model(torch.ones(3)).sum().backward()
    for t in traces:
        assert op_names(t) == op_names(traces[0])
        assert [call.name for call in t.modules] == [call.name for call in traces[0].modules]
        assert len(t.ops) > 20
        assert not faults(t)


def test_an_older_thread_is_named_once_by_each_of_two_traces(older: ThreadPoolExecutor) -> None:
    with native_trace() as outer, native_trace() as inner:
        older.submit(lambda: [torch.ones(2).sin() for _ in range(50)]).result()
        torch.ones(2)
    for t in (outer, inner):
        assert len([gap for gap in t.coverage if "older" in gap.where]) == 1


@pytest.mark.usefixtures("often_switched")
def test_two_threads_with_a_trace_each() -> None:
    def work(name: str) -> list[str]:
        found = []
        for _ in range(20):
            with native_trace() as t:
                for _ in range(10):
                    getattr(torch.ones(2), name)()
            assert not faults(t)
            found = op_names(t)
        return found

    with ThreadPoolExecutor(2) as pool:
        for name, found in zip(("sin", "cos"), pool.map(work, ("sin", "cos")), strict=True):
            assert found.count(f"aten.{name}.default") == 10


@pytest.mark.usefixtures("often_switched")
def test_arguments_of_module_calls_on_threads_do_not_mix() -> None:
    """An object is described by Python code, during which other threads call modules."""

    class Setting:
        def __init__(self, at: int) -> None:
            self.at = at

        def __repr__(self) -> str:
            return f"Setting({sum(self.at for _ in range(50)) // 50})"

    class Takes(nn.Module):
        def forward(self, x: Tensor, setting: Setting, **more: object) -> list[object]:
            return [x, setting, {"at": setting.at, 1: x}]

    def work(at: int) -> None:
        model = Takes()
        for _ in range(100):
            model(torch.full((at + 1,), at), Setting(at), at=at, again={"x": Setting(at)})

    with native_trace() as t:
        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults(t)
    calls = [call for call in t.modules if call.arguments]
    assert len(calls) == 400
    for call in calls:
        at = call.arguments["at"]
        assert call.inputs["0"].shape == (at + 1,)
        assert call.outputs["2.1"].shape == (at + 1,)
    read_all(t)


FREE_MUCH = """
import sys, threading, time, torch, clew
sys.setswitchinterval(1e-6)

def work():
    while time.monotonic() < end:
        large = torch.empty(20 << 20)  # once freed, memory that is gone is looked for
        for _ in range(20):
            torch.ones(4)

with clew.trace(engine="native") as t:
    many = [torch.ones(1) for _ in range(5000)]  # so that looking takes time
    end = time.monotonic() + 2
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert len(t.ops) > 5000 and not t.coverage, t.coverage
"""


def test_threads_free_memory_while_freed_memory_is_looked_for() -> None:
    # In a process of its own, as it crashed.
    subprocess.run([sys.executable, "-c", FREE_MUCH], check=True, timeout=100)


def test_threads_that_come_and_go() -> None:
    with native_trace() as t:
        for _ in range(300):
            run_thread(lambda: torch.ones(2).sin())
    assert op_names(t).count("aten.sin.default") == 300
    assert not t.coverage
