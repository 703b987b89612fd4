"""Forks, the end of the interpreter, and traces that start and stop many times."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import clew
from tests.native.engine import faults, native_trace, needs_engine, op_names, resident_bytes

pytestmark = needs_engine

THREADS_AT_FORK = "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"


def forked(work: object) -> int:
    """Run a function in a forked process; return how that ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def records_by_itself() -> None:
    with native_trace(values="full") as own:
        loss = nn.Linear(2, 2)(torch.ones(2)).sum()
        try:
            loss.backward()
        except RuntimeError as refused:
            # Torch refuses it if threads of autograd ran before the fork, for an earlier test.
            assert "autograd's threading in combination with fork" in str(refused)
    assert "aten.ones.default" in op_names(own)
    assert not faults(own)


def test_a_forked_process_records_nothing_and_the_parent_goes_on() -> None:
    def work() -> None:
        torch.ones(2).tan()
        assert "aten.tan.default" not in op_names(t)
        records_by_itself()

    with native_trace() as t:
        torch.ones(2).sin()
        assert forked(work) == 0
        torch.ones(2).cos()
    assert not {"aten.sin.default", "aten.cos.default"} - set(op_names(t))
    assert "aten.tan.default" not in op_names(t)
    assert not faults(t)
    assert [gap.what for gap in t.coverage if "fork" in gap.what] == ["a forked process"]


def test_a_fork_leaves_the_block_in_the_child() -> None:
    with native_trace() as t:
        child = os.fork()
        torch.ones(2).sin()
    if child == 0:
        os._exit(0 if len(t.ops) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "aten.sin.default" in op_names(t)


@pytest.mark.filterwarnings(THREADS_AT_FORK)
@pytest.mark.parametrize("values", ["meta", "full"])
def test_forks_while_other_threads_record(values: str) -> None:
    """Whatever lock another thread has at that moment, the child can record.

    Threads are new at each fork: the first op of a thread takes a lock of torch's. None of them
    draws random numbers, as a child would wait for torch's generator with or without Clew.
    """
    over = threading.Event()
    model = nn.Linear(64, 64)

    def work() -> None:
        while not over.is_set():
            model(torch.ones(64, 64)).relu().sum()

    codes = []
    with native_trace(values=values) as t:
        for _ in range(30):
            over.clear()
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                codes.append(forked(records_by_itself))
            finally:
                over.set()
            for thread in threads:
                thread.join()
    assert codes == [0] * 30
    assert not faults(t)
    assert "ops of other threads while the process forked" in {gap.what for gap in t.coverage}


EXITS = {
    "open": "",
    "with a thread": "threading.Thread(target=work, args=(50,)).start()",
    # It mostly sleeps: a daemon in the middle of an op ends the process with or without Clew.
    "with a daemon": "threading.Thread(target=forever, daemon=True).start()",
    "by an exception": "raise ValueError('of the program')",
    "by exit": "sys.exit(3)",
    "at once": "os._exit(4)",
}
CODES = {"by an exception": 1, "by exit": 3, "at once": 4}


@pytest.mark.parametrize("how", EXITS)
def test_the_program_ends_with_a_trace_open(how: str, tmp_path: Path) -> None:
    script = f"""
import os, sys, threading, time, torch, clew
from torch import nn

def work(count):
    model = nn.Linear(3, 3)
    for _ in range(count):
        model(torch.ones(3)).sum().backward()

def forever():
    while True:
        work(1)
        time.sleep(0.1)

t = clew.trace(engine="native", values="stats", out={str(tmp_path / "run.clew")!r}).start()
work(10)
t.flush()
{EXITS[how]}
"""
    for _ in range(3 if "daemon" in how else 1):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == CODES.get(how, 0), done.stderr
        assert "Fatal" not in done.stderr
        loaded = clew.load(tmp_path / "run.clew")
        assert len(loaded.modules) >= 10


def test_many_traces_leave_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def run(count: int) -> list[weakref.ref[object]]:
        held: list[weakref.ref[object]] = []
        for _ in range(count):
            with native_trace(model, values="full") as t:
                model(torch.ones(4, 8)).sum().backward()
            held = [weakref.ref(t)]
            del t
        gc.collect()
        return held

    run(40)
    objects, bytes_before = len(gc.get_objects()), resident_bytes()
    held = run(200)
    assert [one() for one in held] == [None]
    assert len(gc.get_objects()) - objects < 1000
    assert resident_bytes() - bytes_before < 8 << 20


def test_a_function_that_is_traced_each_time_it_is_called() -> None:
    @native_trace(limits=clew.Limits(last=100))
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    for _ in range(300):
        step(torch.ones(2))
    trace = step.trace  # type: ignore[attr-defined]
    assert set(op_names(trace)) == {"aten.mul.Tensor", "aten.sin.default"}
    assert not faults(trace)
