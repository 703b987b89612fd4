"""`Limits(last=N)`: about the last events are there, in memory and on disk, and they are true."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import clew
from clew.errors import ClewError, NotRecorded
from clew.run import derive_state

LAST = 200
# What the past may add to the memory, beside what is in the ring.
MOST_BYTES = 60_000


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)
        self.register_buffer("scale", torch.linspace(0, 1, 3000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        return self.second(hidden) * self.scale.mean()


def train(t: Any, model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        t.step()


def facts(value: Any, there: set[int]) -> tuple[Any, ...]:
    producer = value.producer
    made_by = None if producer is None or producer.id not in there else producer.id
    # Sums of numbers in another order differ in the last digits.
    taken = {} if value.stats is None else value.stats.to_dict()
    stats = {name: f"{number:.4g}" for name, number in taken.items()}
    kept = None
    with contextlib.suppress(NotRecorded):
        kept = value.array().tobytes()
    return value.dtype, value.shape, value.stride, value.storage_bytes, made_by, stats, kept


def described(event: Any, there: set[int]) -> tuple[Any, ...]:
    return (
        event.kind, event.name, event.address, event.module, event.call, event.step, event.phase,
        event.parent_id, event.source, event.error, event.attributes,
        [(path, facts(value, there)) for path, value in event.inputs.items()],
        [(path, facts(value, there)) for path, value in event.outputs.items()],
    )  # fmt: skip


@pytest.fixture(params=["memory", "disk"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "ring.clew" if request.param == "disk" else None


def traced(
    run: Callable[[Any], None], out: Path | None = None, last: int | None = LAST, **settings: Any
) -> clew.Trace:
    torch.manual_seed(0)
    limits = clew.Limits(last=last, **settings.pop("limits", {}))
    with clew.trace(out=out, limits=limits, **settings) as t:
        run(t)
    return t


@pytest.mark.parametrize(
    "settings",
    [
        {"values": "stats"},
        {"capture": ["**.weight:grad", "scale:buffer", "first", "forward.hidden"]},
        {"level": "modules", "values": "full", "last": 60},
    ],
)
def test_what_is_in_the_ring_is_as_it_is_without(
    out: Path | None, settings: dict[str, Any]
) -> None:
    def run(t: Any) -> None:
        torch.manual_seed(1)
        train(t, model, 30)

    torch.manual_seed(0)
    model = Net()
    last = settings.get("last", LAST)
    whole = traced(run, model=model, **settings | {"last": None})
    torch.manual_seed(0)
    model = Net()
    ring = traced(run, out=out, model=model, **settings)
    loaded = ring if out is None else clew.load(out)
    assert last <= len(loaded.events) < 2 * last <= len(whole.events)
    first = loaded.events[0].id
    expected = [event for event in whole.events if event.id >= first]
    there = {event.id for event in expected}
    assert [event.id for event in loaded.events] == [event.id for event in expected]
    for mine, other in zip(loaded.events, expected, strict=True):
        assert described(mine, there) == described(other, there)
    # And what is said about it is that the rest fell out.
    assert [gap.what for gap in loaded.coverage] == [f"the first {first} events"]
    assert [gap.what for gap in ring.coverage] == [f"the first {first} events"]


def test_whole_steps_fall_out(out: Path | None) -> None:
    model = Net()
    t = traced(lambda t: train(t, model, 40), out=out, model=model)
    first = t.events[0]
    assert first.kind == "step"
    assert t.steps == list(range(first.step, 40))
    sizes = {step: sum(event.step == step for event in t.events) for step in t.steps}
    assert len(set(sizes.values())) == 1
    assert LAST <= len(t.events) <= LAST * 5 // 4 + 2 * max(sizes.values())


def test_a_producer_that_fell_out_is_none(out: Path | None) -> None:
    early: list[torch.Tensor] = []

    def run(t: Any) -> None:
        early.append(torch.ones(3) * 2)
        for _ in range(300):
            torch.zeros(2) + 1
            t.step()
        early[0].sum()

    t = traced(run, out=out)
    last = t.ops[-1]
    assert last.name == "aten.sum.default"
    assert last.inputs["0"].shape == (3,)
    assert last.inputs["0"].producer is None
    assert "has no producer" in t.coverage[0].why
    assert t.ops[-2].inputs["0"].producer is not None


def test_data_outlives_the_events_it_came_with(out: Path | None) -> None:
    """Of a value that the program still has: in its row, shared with another value, in a shard."""
    held: dict[str, torch.Tensor] = {}

    def run(t: Any) -> None:
        held["small"] = clew.tap("small", torch.arange(40.0))
        held["same"] = clew.tap("same", torch.arange(40.0))
        held["large"] = clew.tap("large", torch.arange(9000.0))
        del held["small"]
        for step in range(300):
            clew.tap("passing", torch.full((9000,), float(step)))
            t.step()
        for name, tensor in held.items():
            clew.tap(name, tensor)

    t = traced(run, out=out, level="values", limits={"bytes": 20 << 20})
    loaded = t if out is None else clew.load(out)
    for name, tensor in held.items():
        assert (loaded[name].one.outputs[""].array() == tensor.numpy()).all()
    # 36 kB each: far less than were recorded were within the limit, had they not fallen out.
    passing = loaded["passing"]
    assert passing[-1].outputs[""].array()[0] == 299
    assert 36_000 * len(passing) < 20 << 20
    assert [gap.what[:9] for gap in loaded.coverage] == ["the first"]
    if out is not None:
        assert len(list((out / "rank=00000").glob("shard-*"))) < 12


def test_bytes_that_fell_out_make_room(out: Path | None) -> None:
    def run(t: Any) -> None:
        for step in range(400):
            clew.tap("value", torch.full((5000,), float(step)))
            t.step()

    t = traced(run, out=out, last=40, level="values", limits={"bytes": 4 << 20})
    assert t["value"][-1].outputs[""].array()[0] == 399
    assert len(t.coverage) == 1


def test_events_of_one_long_step_fall_out_too(out: Path | None) -> None:
    def run(t: Any) -> None:
        x = torch.zeros(2)
        for _ in range(5000):
            x = x + 1

    t = traced(run, out=out)
    assert LAST <= len(t.events) <= 3 * LAST
    ids = [event.id for event in t.events]
    assert ids == list(range(ids[0], 5001))
    assert t.ops[-1].inputs["0"].producer == t.ops[-2]


def test_a_call_stays_as_long_as_something_in_it(out: Path | None) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(200):
                x = self.inner(x)
                holder[0].step()
            return x

    holder: list[Any] = []

    def run(t: Any) -> None:
        holder.append(t)
        model(torch.zeros(1, 2))

    model = Loop()
    t = traced(run, out=out, model=model)
    loop = t.modules[0]
    assert loop.address == "#0"
    assert loop.outputs[""].shape == (1, 2)
    assert all(event.parent == loop for event in t["inner"])
    assert LAST <= len(t.events) < 2 * LAST


def test_threads_fall_out_as_well(out: Path | None, engine: str) -> None:
    def run(t: Any) -> None:
        def work() -> None:
            for _ in range(50):
                inner(torch.zeros(1, 2))

        for _ in range(20):
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            t.step()

    inner = nn.Linear(2, 2)
    t = traced(run, out=out, model=inner)
    assert len(t.events) < 3 * LAST
    outside = {event.name for event in t.ops if event.parent is None}
    # The native engine also sees the ops of these threads that are in no module call.
    assert outside == ({"aten.zeros.default"} if engine == "native" else set())
    inside = [event for event in t.ops if event.name not in outside]
    assert {event.module for event in inside} == {""}
    parents = {"Linear"} if engine == "python" else {"aten.linear.default"}
    assert {event.parent.name for event in inside} == parents
    assert {event.parent.name for event in t.events if event.kind == "composite"} <= {"Linear"}
    assert [g.why for g in t.coverage if "damaged" in g.why or "missing" in g.why] == []


def test_saved_rings_say_what_fell_out(out: Path | None, tmp_path: Path) -> None:
    model = Net()
    t = traced(lambda t: train(t, model, 20), out=out, model=model)
    t.save(tmp_path / "copy.clew")
    copy = clew.load(tmp_path / "copy.clew")
    assert [event.id for event in copy.events] == [event.id for event in t.events]
    assert copy.coverage == t.coverage
    assert copy.steps == t.steps


def test_reading_between_steps_changes_nothing(out: Path | None) -> None:
    model = Net()

    def run(t: Any) -> None:
        for _ in range(30):
            train(t, model, 1)
            assert len(t.events) < 2 * LAST
            assert t.ops[-1].step == t.steps[-1]

    t = traced(run, out=out, model=model)
    quiet = traced(lambda t: [train(t, model, 1) for _ in range(30)], out=None, model=model)
    ids = {event.id: event.address for event in quiet.events}
    for event in t.events:
        assert ids.get(event.id, event.address) == event.address


KILLED = """
import os, signal, sys, torch, clew
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
with clew.trace(model, values="full", out=sys.argv[1], limits=clew.Limits(last=200)) as t:
    for step in range(60):
        model(torch.randn(3, 4)).sum().backward()
        t.step()
    t.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_ring(tmp_path: Path) -> None:
    out = tmp_path / "run.clew"
    done = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    t = clew.load(out)
    assert 200 <= len(t.events) < 400
    assert t.steps[-1] == 59
    assert {gap.what.rpartition(" ")[2] for gap in t.coverage} == {"events", "run"}
    clew_cli = [sys.executable, "-m", "clew", "recover", str(out)]
    assert subprocess.run(clew_cli, check=False, capture_output=True).returncode == 0
    again = clew.load(out)
    assert [event.id for event in again.events] == [event.id for event in t.events]
    parts = sorted((out / "rank=00000").glob("events-*.parquet"))
    ids = [number for part in parts for number in pq.read_table(part)["id"].to_pylist()]
    assert sorted(ids) == [event.id for event in t.events]
    for event in again.ops:
        for value in event.outputs.values():
            value.array()


def test_a_part_that_is_lost_is_said(tmp_path: Path) -> None:
    out = tmp_path / "run.clew"
    model = Net()
    traced(lambda t: train(t, model, 20), out=out, model=model)
    os.remove(min((out / "rank=00000").glob("events-*.parquet")))
    assert any("parts are missing" in gap.why for gap in clew.load(out).coverage)


def test_whoever_reads_meanwhile_sees_a_whole_ring(tmp_path: Path) -> None:
    out = tmp_path / "run.clew"
    seen: list[str] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            t = clew.load(out)
            seen.append(f"{len(t.events) > 0}")
            seen.extend(
                str(g) for g in t.coverage if "events" not in g.what and "run" not in g.what
            )

    def run(t: Any) -> None:
        train(t, model, 5)
        t.flush()
        reader = threading.Thread(target=read)
        reader.start()
        train(t, model, 60)
        over.set()
        reader.join()

    model = Net()
    traced(run, out=out, last=100, level="modules", values="stats")
    assert set(seen) == {"True"}


def test_rings_elsewhere(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    model = Net()

    def run(t: Any) -> None:
        for _ in range(20):
            train(t, model, 3)
            t.flush()

    t = traced(run, out="memory://ring.clew", model=model)  # type: ignore[arg-type]
    loaded = clew.load("memory://ring.clew")
    assert LAST <= len(loaded.events) < 2 * LAST
    assert [event.id for event in loaded.events] == [event.id for event in t.events]
    assert [gap.what[:9] for gap in loaded.coverage] == ["the first"]
    names = fsspec.filesystem("memory").ls("/ring.clew/rank=00000", detail=False)
    assert len([name for name in names if "events-" in name]) < 30


@pytest.mark.parametrize(
    "settings", [{"values": "stats", "last": 60}, {"level": "modules", "last": 20}]
)
def test_memory_stays_as_it_is(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive_state, "_RECENT_EVENTS", 64)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = []

    def run(t: Any) -> None:
        for _ in range(6):
            for _ in range(25):
                model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                t.step()
            len(t.events)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    traced(run, model=model, **settings)
    tracemalloc.stop()
    # So many events are several times this.
    assert min(sizes[4:]) - min(sizes[1:3]) < MOST_BYTES


def test_a_ring_of_nothing_is_refused() -> None:
    with pytest.raises(ClewError, match=r"Limits\(last=0\): give a positive number, or None"):
        clew.Limits(last=0)


def test_a_call_that_an_interrupt_ended_stays_in_its_step(out: Path | None) -> None:
    """Nothing says when such a call ended, and still it is over."""

    class Stopped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x + 1
            raise KeyboardInterrupt

    def run(t: Any) -> None:
        for _ in range(60):
            with contextlib.suppress(KeyboardInterrupt):
                model(torch.zeros(2))
            torch.ones(2)
            t.step()

    model = Stopped()
    t = traced(run, out=out, last=40, model=model)
    # Of five events each; how many more stay depends on where batches end.
    assert len(t.steps) >= 8
    assert [call.step for call in t.modules] == t.steps
    assert all(op.parent is not None for op in t.ops if op.name == "aten.add.Tensor")
