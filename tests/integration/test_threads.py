"""Other threads: their module calls are recorded with their ops, and what is not seen is said."""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, Dataset

import clew
from clew.observe.other_threads import _cpu_time
from tests.outcomes import call_around, differing, faults, installed
from tests.processes import HANG_GUARD


def in_thread(work: Callable[[], Any], name: str | None = None) -> None:
    """Run `work` on a thread of its own and wait for it."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


TENSOR = torch.ones(2, 2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()


def test_a_module_call_on_another_thread_has_its_ops() -> None:
    model = Block()
    with clew.trace(model) as t:
        in_thread(lambda: model(TENSOR), "worker")
    assert [event.address for event in t.modules] == ["#0", "fc#0"]
    assert [(op.name, op.module) for op in t.ops][:3] == [
        ("aten.t.default", "fc"),
        ("aten.addmm.default", "fc"),
        ("aten.relu.default", ""),
    ]
    assert {event.thread for event in t.events} == {"worker"}
    assert all(op.source.file == __file__ for op in t.ops)
    assert faults(t) == []


def test_every_module_call_on_another_thread_has_its_ops() -> None:
    model = nn.Linear(2, 2)

    def work() -> None:
        for _ in range(3):
            model(TENSOR)

    with clew.trace(model) as t:
        in_thread(work, "worker")
    assert [[op.name for op in t.ops if call_around(op) == call] for call in t.modules] == [
        ["aten.t.default", "aten.addmm.default"]
    ] * 3
    assert {event.thread for event in t.events} == {"worker"}


def test_a_thread_that_is_followed_before_its_first_call_has_its_ops() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        in_thread(lambda: model(clew.tap("x", TENSOR)), "worker")
    assert [op.name for op in t.ops] == ["aten.t.default", "aten.addmm.default"]


def test_threads_that_follow_one_another_are_told_apart() -> None:
    # The system gives the number of a thread that ended to the next one.
    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        for name in ("first", "second", "third"):
            in_thread(lambda: model(TENSOR), name)
    assert [(op.thread, op.name) for op in t.ops] == [
        (name, op)
        for name in ("first", "second", "third")
        for op in ("aten.t.default", "aten.addmm.default")
    ]


@pytest.mark.usefixtures("python_engine")
def test_ops_elsewhere_on_that_thread_are_in_the_coverage() -> None:
    model = Block()

    def work() -> None:
        torch.ones(5) + 1
        model(torch.ones(1, 2))
        torch.ones(5) + 1

    with clew.trace(model) as t:
        in_thread(work, "worker")
    assert "aten.add.Tensor" not in {op.name for op in t.ops}
    (gap,) = t.coverage
    assert "worker" in gap.where
    assert "clew.trace" in gap.remedy


@pytest.mark.usefixtures("native_engine")
def test_ops_of_a_thread_of_the_block_are_recorded() -> None:
    model = Block()

    def work() -> None:
        torch.ones(5) + 1
        model(TENSOR)
        TENSOR.exp()

    with clew.trace(model) as t:
        in_thread(work, "worker")
        in_thread(lambda: TENSOR.exp(), "without modules")
    assert [(op.name, op.module, op.thread) for op in t.ops] == [
        ("aten.ones.default", None, "worker"),
        ("aten.add.Tensor", None, "worker"),
        ("aten.t.default", "fc", "worker"),
        ("aten.addmm.default", "fc", "worker"),
        ("aten.relu.default", "", "worker"),
        ("aten.exp.default", None, "worker"),
        ("aten.exp.default", None, "without modules"),
    ]
    assert {op.source.file for op in t.ops} == {__file__}
    assert t.coverage == ()


@pytest.mark.usefixtures("python_engine")
@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.ones(3) * 2,
        lambda: TENSOR.relu(),
        lambda: nn.functional.linear(TENSOR, TENSOR),
        lambda: [sorted(range(3)), torch.cat([TENSOR, TENSOR])],
    ],
    ids=["made", "method", "function", "after other work"],
)
def test_a_thread_that_calls_no_module_is_in_the_coverage(work: Callable[[], Any]) -> None:
    with clew.trace() as t:
        torch.ones(1) + 1
        in_thread(work, "worker")
    (gap,) = t.coverage
    assert (gap.what, gap.where) == ("ops outside module calls", "thread worker")


def test_a_thread_without_ops_is_left_alone() -> None:
    with clew.trace() as t:
        torch.ones(1) + 1
        in_thread(lambda: sorted(range(3)))
    assert list(t.coverage) == []
    assert threading.getprofile() is None


@pytest.mark.usefixtures("python_engine")
def test_a_thread_that_does_much_else_is_not_watched_for_ever() -> None:
    profiles: list[Any] = []

    def work() -> None:
        for _ in range(10_000):
            len(profiles)
        profiles.append(sys.getprofile())
        torch.ones(3) * 2

    with clew.trace() as t:
        torch.ones(1) + 1
        in_thread(work, "late")
    assert profiles == [None]
    (gap,) = t.coverage
    assert (gap.what, gap.where) == ("a thread that was not watched", "thread late")
    assert gap.why.startswith("it used no torch in its first 5,000 calls")
    assert "clew.trace" in gap.remedy


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A thread that is there before any trace, and waits."""
    with ThreadPoolExecutor(1, thread_name_prefix="older") as pool:
        pool.submit(torch.ones, 1).result()
        settle()
        yield pool


def settle() -> None:
    """Wait until every other thread waits for something, however late the machine lets it."""

    def used() -> list[int | None]:
        return [_cpu_time(thread) for thread in others]

    others = [
        thread for thread in threading.enumerate() if thread is not threading.current_thread()
    ]
    before = None
    while before != (before := used()) or not all(map(is_asleep, others)):
        time.sleep(0.05)


def is_asleep(thread: threading.Thread) -> bool:
    """Whether a thread waits; one that could run, but is not let, does not."""
    state = Path(f"/proc/self/task/{thread.native_id}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.usefixtures("python_engine")
def test_an_older_thread_that_runs_is_in_the_coverage(pool: ThreadPoolExecutor) -> None:
    with clew.trace() as t:
        torch.ones(1) + 1
        pool.submit(torch.ones, 3).result()
    (gap,) = t.coverage
    assert (gap.what, gap.where) == ("a thread that was not watched", "thread older_0")
    assert gap.why.startswith("it is older than the trace, and ran")


@pytest.mark.usefixtures("native_engine")
def test_ops_of_an_older_thread_are_in_the_coverage(pool: ThreadPoolExecutor) -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        pool.submit(sorted, [2, 1]).result()
        pool.submit(model, TENSOR).result()
        assert list(t.coverage) == []
        pool.submit(torch.ones, 3).result()
        pool.submit(torch.ones, 3).result()
    (gap,) = t.coverage
    assert (gap.what, gap.where) == ("ops outside module calls", "thread older_0")
    assert gap.why.startswith("it was not started in the block")
    assert "clew.trace" in gap.remedy
    assert [op.name for op in t.ops] == ["aten.t.default", "aten.addmm.default"]


def test_an_older_thread_that_ends_is_in_the_coverage() -> None:
    go = threading.Event()
    thread = threading.Thread(target=lambda: go.wait() and TENSOR.relu(), name="ends")
    thread.start()
    with clew.trace() as t:
        torch.ones(1) + 1
        go.set()
        thread.join()
    assert [gap.where for gap in t.coverage] == ["thread ends"]


def test_an_older_thread_that_waits_is_not(pool: ThreadPoolExecutor) -> None:
    with clew.trace() as t:
        torch.ones(1) + 1
    assert list(t.coverage) == []


@pytest.mark.usefixtures("python_engine")
def test_an_older_thread_that_calls_a_module_has_one_gap(pool: ThreadPoolExecutor) -> None:
    model = Block()
    with clew.trace(model) as t:
        pool.submit(model, torch.ones(1, 2)).result()
    assert [gap.what for gap in t.coverage] == ["ops outside module calls"]


def test_a_thread_of_a_package_without_torch_is_no_gap() -> None:
    stop, ran = threading.Event(), threading.Event()

    class Monitor(threading.Thread):
        def run(self) -> None:
            while not stop.wait(0.001):
                ran.set()

    # As if a package that knows nothing of torch had made it, as progress bars do.
    Monitor.run.__module__ = "numpy"
    monitor = Monitor()
    monitor.start()
    try:
        with clew.trace() as t:
            torch.ones(1) + 1
            ran.clear()
            assert ran.wait(HANG_GUARD)
    finally:
        stop.set()
        monitor.join()
    assert [gap for gap in t.coverage if monitor.name in gap.where] == []


def test_traces_that_end_in_the_order_they_began_leave_nothing(engine: str) -> None:
    first, second = clew.trace().start(), clew.trace().start()
    torch.ones(1) + 1
    first.stop()
    in_thread(lambda: torch.ones(3) * 2, "worker")
    second.stop()
    assert threading.getprofile() is None
    if engine == "native":
        assert [op.name for op in second.ops][-2:] == ["aten.ones.default", "aten.mul.Tensor"]
    else:
        assert [gap.what for gap in second.coverage if "worker" in gap.where] != []
    assert [gap.what for gap in first.coverage if "worker" in gap.where] == []


def test_a_profiler_of_the_program_goes_on() -> None:
    seen: list[str] = []

    def profile(frame: Any, event: str, arg: Any) -> None:
        seen.append(frame.f_code.co_name)

    def work() -> None:
        torch.ones(2).relu()

    threading.setprofile(profile)
    try:
        with clew.trace():
            torch.ones(1) + 1
            in_thread(work)
            assert "work" in seen
        assert threading.getprofile() is profile
    finally:
        threading.setprofile(None)


def test_the_main_thread_alone_has_no_gap() -> None:
    model = Block()
    with clew.trace(model) as t:
        model(torch.ones(1, 2))
    assert list(t.coverage) == []
    assert {event.thread for event in t.events} == {threading.current_thread().name}


def test_at_the_level_of_modules_nothing_is_missing() -> None:
    model = Block()
    with clew.trace(model, level="modules") as t:
        in_thread(lambda: model(torch.ones(1, 2)))
    assert len(t.modules) == 2
    assert list(t.coverage) == []


@pytest.mark.parametrize("rounds", [20])
def test_many_threads_at_once(rounds: int) -> None:
    model = Block()
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(rounds):
            model(torch.full((number + 1, 2), float(number)))

    with clew.trace(model, values="full") as t:
        threads = [threading.Thread(target=work, args=(n,), name=f"worker {n}") for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert faults(t) == []
    assert len(t[""]) == 4 * rounds
    assert sorted(event.call for event in t[""]) == list(range(4 * rounds))
    for number in range(4):
        mine = [e for e in t.events if e.thread == f"worker {number}"]
        assert len([e for e in mine if e.kind == "module"]) == 2 * rounds
        for event in mine:
            assert event.parent is None or event.parent.thread == event.thread
        for root in (e for e in mine if e.module == "" and e.kind == "module"):
            assert root.inputs["0"].shape == (number + 1, 2)
            assert root.inputs["0"].array().tolist() == [[number, number]] * (number + 1)
        for op in (e for e in mine if e.name == "aten.addmm.default"):
            assert op.inputs["1"].shape[0] == number + 1


def test_a_pool_leaves_no_mode_behind() -> None:
    model = Block()
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(installed).result()
        with clew.trace(model):
            pool.submit(model, torch.ones(1, 2)).result()
            during = pool.submit(_get_current_dispatch_mode_stack).result()
        after = pool.submit(installed).result()
    assert during == []
    assert differing(before, after) == []
    assert differing(installed(), installed()) == []


def test_flags_of_the_process_are_not_disturbed_by_other_threads() -> None:
    """The mode of the opening thread is still on after one came and went elsewhere."""
    model = Block()
    with clew.trace(model) as t:
        during = installed()
        in_thread(lambda: model(torch.ones(1, 2)))
        assert differing(during, installed()) == []
        torch.ones(3).exp()
    assert t.ops[-1].name == "aten.exp.default"


def test_a_trace_opened_on_another_thread_sees_all_of_it() -> None:
    found: list[Any] = []

    def work() -> None:
        with clew.trace() as t:
            torch.ones(2) + 1
            nn.ReLU()(torch.ones(2))
        found.append(t)

    in_thread(work)
    (t,) = found
    assert [op.name for op in t.ops] == [
        "aten.ones.default", "aten.add.Tensor", "aten.ones.default", "aten.relu.default",
    ]  # fmt: skip
    # The thread that waits for this one may still have been on its way there.
    assert {gap.where for gap in t.coverage} <= {f"thread {threading.current_thread().name}"}


def test_two_threads_with_a_trace_each() -> None:
    """Module hooks are the process's, so each trace sees the other's module calls too."""
    start = threading.Barrier(2)
    found: dict[str, Any] = {}
    models = {"left": nn.Linear(2, 2), "right": nn.Linear(2, 3)}

    def work(name: str) -> None:
        start.wait()
        with clew.trace(models[name]) as t:
            start.wait()
            for _ in range(5):
                models[name](torch.ones(1, 2))
            start.wait()
        found[name] = t
        start.wait()

    before = installed()
    threads = [threading.Thread(target=work, args=(name,), name=name) for name in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, t in found.items():
        own = [event for event in t[""] if event.thread == name]
        assert len(own) == 5
        assert faults(t) == []
    assert differing(before, installed()) == []


def test_backward_on_the_engine_s_threads() -> None:
    """A backward pass started from another thread inside a module call."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x).tanh().sum()
            y.backward()
            return y.detach()

    model = Inner()
    with clew.trace(model) as t:
        in_thread(lambda: model(torch.ones(1, 2)), "worker")
        model(torch.ones(1, 2))
    tanhs = [op for op in t.ops if op.name == "aten.tanh_backward.default"]
    assert [(op.phase, op.module, op.thread) for op in tanhs] == [
        ("backward", "", "worker"),
        ("backward", "", threading.current_thread().name),
    ]
    assert [op.forward.thread for op in tanhs] == ["worker", threading.current_thread().name]


def test_a_tensor_that_goes_from_thread_to_thread() -> None:
    model = {"first": nn.Linear(2, 2), "second": nn.ReLU()}
    handed: queue.Queue[Tensor] = queue.Queue()
    with clew.trace(model) as t:
        in_thread(lambda: handed.put(model["first"](torch.ones(1, 2))))
        in_thread(lambda: handed.put(model["second"](handed.get())))
    used = t["second"].one.inputs["0"]
    assert used.number == t["first"].output.number
    assert used.producer.name == "aten.addmm.default"


def test_threads_that_are_gone_do_not_pile_up(engine: str) -> None:
    model = Block()
    with clew.trace(model) as t:
        for _ in range(20):
            in_thread(lambda: model(torch.ones(1, 2)), "short")
    assert len(t[""]) == 20
    assert {event.thread for event in t.modules} == {"short"}
    assert len(t.coverage) == (engine == "python")
    for root in t[""]:
        assert root.parent is None


def test_coroutines_that_call_modules_in_turns() -> None:
    first, second = Block(), Block()

    async def work(model: nn.Module) -> None:
        for _ in range(2):
            model(torch.ones(1, 2))
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work(first), work(second))

    with clew.trace({"first": first, "second": second}) as t:
        asyncio.run(main())
    assert [event.address for event in t.modules if event.name == "Block"] == [
        "first#0", "second#0", "first#1", "second#1",
    ]  # fmt: skip
    assert all(event.parent is None for event in t["*"] if event.name == "Block")


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((2,), float(index)).exp()


def test_data_loading_in_this_process_is_seen() -> None:
    with clew.trace() as t:
        list(DataLoader(Numbers(), num_workers=0, batch_size=2))
    assert len([op for op in t.ops if op.name == "aten.exp.default"]) == 4


def test_data_loading_in_other_processes_is_in_the_coverage() -> None:
    with clew.trace() as t:
        list(DataLoader(Numbers(), num_workers=1, batch_size=2))
    assert not [op for op in t.ops if op.name == "aten.exp.default"]
    assert any("worker" in str(gap).lower() and "num_workers=0" in gap.remedy for gap in t.coverage)


def test_a_child_process_of_a_traced_one_is_not_confused() -> None:
    """A fork inherits the hooks; the child must run, and the parent's trace stay whole."""
    import multiprocessing

    model = Block()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        results.put(model(torch.ones(1, 2)).shape)

    with clew.trace(model) as t:
        model(torch.ones(1, 2))
        process = context.Process(target=child)
        process.start()
        process.join(HANG_GUARD)
    assert process.exitcode == 0
    assert results.get() == (1, 2)
    assert len(t[""]) == 1


# Stopped on another thread


def modes_here() -> int:
    return len(_get_current_dispatch_mode_stack())


@pytest.mark.usefixtures("native_engine")
def test_stopped_on_another_thread_nothing_is_left_behind() -> None:
    before = installed()
    t = clew.trace().start()
    TENSOR.exp()
    in_thread(t.stop)
    assert differing(before, installed()) == []
    TENSOR.exp()
    assert [op.name for op in t.ops] == ["aten.exp.default"]
    assert t.coverage == ()


@pytest.mark.usefixtures("python_engine")
def test_a_mode_left_behind_goes_with_the_next_op() -> None:
    t = clew.trace().start()
    torch.ones(2)
    in_thread(t.stop)
    assert modes_here() == 1
    assert torch.ones(2).tolist() == [1, 1]
    assert (modes_here(), sys.getprofile()) == (0, None)
    assert [op.name for op in t.ops] == ["aten.ones.default"]
    (gap,) = t.coverage
    assert gap.what == "the end of the trace on MainThread"
    assert "stopped on another thread" in gap.why


@pytest.mark.usefixtures("python_engine")
def test_a_mode_left_behind_goes_with_the_next_trace() -> None:
    first = clew.trace().start()
    in_thread(first.stop)
    with clew.trace() as second:
        assert modes_here() == 1
        torch.ones(2)
    assert modes_here() == 0
    assert len(second.ops) == 1
    assert not first.events


@pytest.mark.usefixtures("python_engine")
def test_a_mode_left_behind_among_modes_of_the_program() -> None:
    seen = []

    class Mine(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mine():
        t = clew.trace().start()
        with Mine():
            in_thread(t.stop)
            torch.ones(2)
            torch.ones(2)
            assert modes_here() == 2
    assert seen == ["aten.ones.default"] * 4


@pytest.mark.usefixtures("python_engine")
def test_a_profile_function_of_the_program_stays_where_a_mode_is_left_behind() -> None:
    called = []

    def profile(frame: Any, event: str, arg: Any) -> None:
        called.append(event)

    t = clew.trace().start()
    in_thread(t.stop)
    sys.setprofile(profile)
    try:
        torch.ones(2)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert called
    torch.ones(2)
    torch.ones(2)
    assert modes_here() == 0
    assert not t.events


def test_stopped_while_a_module_runs_on_another_thread(engine: str) -> None:
    inside, stopped = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            stopped.wait()
            y = x + 1
            modes.append(modes_here())
            return y * 2

    modes: list[int] = []
    model = Waits()
    with clew.trace(model) as t:
        thread = threading.Thread(target=lambda: model(TENSOR))
        thread.start()
        inside.wait()
    stopped.set()
    thread.join()
    assert modes == [0]
    assert [op.name for op in t.ops] == []
    assert [e.kind for e in t.events if e.kind == "note"] == []
    said = any(gap.what.startswith("the end of the trace on Thread") for gap in t.coverage)
    assert said == (engine == "python")


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_a_flush_while_threads_record(kind: str, place: str, tmp_path: Path) -> None:
    """What a thread is about to record when its first half is handed over is not lost."""

    def make(number: int) -> Any:
        return torch.full((4,), number) if kind == "tensors" else np.full(4, number)

    @clew.watch("x", values="full", out=False)
    def work(first: int) -> None:
        for number in range(first, first + 100):
            x = make(number)  # noqa: F841

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        out = tmp_path / "run.clew" if place == "disk" else None
        with clew.trace(level="values", out=out) as t:
            threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                t.flush()
    finally:
        sys.setswitchinterval(interval)
    assert t.coverage == ()
    found = [event.outputs[""].array()[0] for event in t.variables if event.name == "x"]
    assert sorted(found) == list(range(400))


def test_traces_of_two_threads_do_not_record_each_other() -> None:
    """Neither thread was started in the block of the other, whichever began later."""
    both_record = threading.Barrier(2)
    ops: dict[int, list[str]] = {}

    def work(number: int) -> None:
        name = ("exp", "sin")[number]
        with clew.trace() as t:
            torch.ones(2)
            both_record.wait()
            getattr(torch.ones(3), name)()
            inner = threading.Thread(target=torch.ones(3).neg)
            inner.start()
            inner.join()
            both_record.wait()
        ops[number] = [op.name for op in t.ops if "ones" not in op.name]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inside = ["aten.neg.default"] * (os.environ.get("CLEW_ENGINE") == "native")
    assert ops == {0: ["aten.exp.default", *inside], 1: ["aten.sin.default", *inside]}


@pytest.mark.usefixtures("native_engine")
def test_threads_are_followed_through_those_that_started_them() -> None:
    before: list[threading.Event] = [threading.Event(), threading.Event()]

    ones = torch.ones(2)

    def older() -> None:
        before[0].wait()
        late = threading.Thread(target=ones.log, name="started by an older one")
        late.start()
        late.join()
        before[1].set()

    def inner() -> None:
        deepest = threading.Thread(target=torch.ones(2).tan)
        deepest.start()
        deepest.join()

    first = threading.Thread(target=older)
    first.start()
    start = threading.Thread.start
    with clew.trace() as t:
        before[0].set()
        before[1].wait()
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(lambda: (torch.ones(2).sqrt(), done.release()), ())
        done.acquire()
    assert threading.Thread.start is start
    assert sorted(op.name for op in t.ops if "ones" not in op.name) == [
        "aten.sqrt.default",
        "aten.tan.default",
    ]
    assert [gap.where for gap in t.coverage] == ["thread started by an older one"]


def test_what_a_program_puts_over_the_start_of_threads_stays() -> None:
    """A library may replace `Thread.start` inside a block, and take its function off after it."""
    before = threading.Thread.start
    starts = []

    def theirs(self: threading.Thread) -> None:
        starts.append(self.name)
        below(self)

    def start_one() -> None:
        thread = threading.Thread(target=torch.ones(2).exp, name="one")
        thread.start()
        thread.join()

    try:
        with clew.trace():
            below, threading.Thread.start = threading.Thread.start, theirs  # type: ignore[method-assign]
        assert threading.Thread.start is theirs
        for _ in range(2):
            with clew.trace():
                start_one()
        start_one()
    finally:
        threading.Thread.start = before  # type: ignore[method-assign]
    assert starts == ["one"] * 3
    with clew.trace() as t:
        start_one()
    assert threading.Thread.start is before
    if os.environ.get("CLEW_ENGINE") == "native":
        assert [op.name for op in t.ops] == ["aten.ones.default", "aten.exp.default"]
