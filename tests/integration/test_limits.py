"""Limits hold, and what they left out is said once; a schedule records the steps it names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import clew
from clew import Callbacks
from clew.events.model import Gap
from tests.processes import HANG_GUARD

SIZE = 1000  # elements, 4 bytes each


def record(limits: clew.Limits, out: Path | None = None, **options: Any) -> clew.Trace:
    with clew.trace(values="full", limits=limits, out=out, **options) as t:
        for number in range(20):
            torch.full((SIZE,), float(number))
            torch.full((3,), float(number))
    return t


def kept(t: clew.Trace) -> list[int]:
    """How many elements each value has of which there is data."""
    found = []
    for value in t["op:*"].values:
        try:
            found.append(value.array().size)
        except clew.ClewError:
            pass
    return found


def the_gap(t: clew.Trace) -> Gap:
    (gap,) = t.coverage
    return gap


@pytest.mark.parametrize("streamed", [False, True])
def test_bytes(streamed: bool, tmp_path: Path) -> None:
    t = record(clew.Limits(bytes=5 * 4 * SIZE), tmp_path / "run.clew" if streamed else None)
    assert kept(t).count(SIZE) == 4
    # Those that still fit are kept: the limit is of the sum.
    assert sum(kept(t)) <= 5 * SIZE
    assert len(t.ops) == 40
    assert all(s is not None for s in t["op:*"].stats)
    assert the_gap(t).why == f"the limit of {5 * 4 * SIZE} bytes was reached"
    assert the_gap(t).remedy == "raise it with clew.trace(limits=Limits(bytes=...))"
    if streamed:
        assert clew.load(tmp_path / "run.clew").coverage == t.coverage


def test_elements() -> None:
    t = record(clew.Limits(elements=10))
    assert set(kept(t)) == {3}
    assert len(kept(t)) == 20
    assert all(s is not None for s in t["op:*"].stats)
    assert "10 elements a value" in the_gap(t).why


def test_a_sample() -> None:
    t = record(clew.Limits(sample=4))
    assert len(kept(t)) == 10
    assert all(s is not None for s in t["op:*"].stats)
    assert "one value in 4" in the_gap(t).why


@pytest.mark.parametrize("streamed", [False, True])
def test_events(streamed: bool, tmp_path: Path) -> None:
    with clew.trace(
        limits=clew.Limits(events=100), out=tmp_path / "run.clew" if streamed else None
    ) as t:
        for _ in range(1000):
            torch.ones(1)
    assert len(t.events) == 100
    assert "the limit of 100 events was reached" in the_gap(t).why


class Deep(nn.Module):
    """Calls inside calls, with a tap, a prefix and a local in each."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Deep(depth - 1) if depth else nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with clew.prefix("deep"):
            h = self.inner(x)
            return clew.tap("h", h.relu())


def train(t: Any, model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        t.step()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("most", [1, 64, 65, 500])
@pytest.mark.parametrize("level", ["ops", "modules", "values"])
def test_events_of_many_kinds(level: str, most: int, streamed: bool, tmp_path: Path) -> None:
    model = Deep(3)
    with clew.trace(
        model, level=level, values="stats", limits=clew.Limits(events=most), watch=["h"],
        capture=["forward.h", "**.weight:grad"], out=tmp_path / "run.clew" if streamed else None,
        callbacks={"inner": Callbacks(end=lambda values: values)}, gather=2,
    ) as t:  # fmt: skip
        train(t, model, 100)
    assert most <= len(t.events) <= most + 5, "calls nested five deep may be open"
    assert "the limit" in the_gap(t).why
    ids = {event.id for event in t.events}
    assert len(ids) == len(t.events)
    assert all(event.parent_id is None or event.parent_id in ids for event in t.events)
    assert str(t.tree())
    if streamed:
        assert len(clew.load(tmp_path / "run.clew").events) == len(t.events)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("most", [1, 3, 6, 64, 500])
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_calls_around_the_last_event_are_there(
    level: str, most: int, streamed: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    out = tmp_path / "run.clew" if streamed else None
    with clew.trace(model, level=level, limits=clew.Limits(events=most), out=out) as t:
        for _ in range(200):
            model(torch.ones(1, 2))
            t.step()
    loaded = t if out is None else clew.load(out)
    assert most <= len(loaded.events) <= most + 4, "calls three deep and a composite may be open"
    ids = {event.id for event in loaded.events}
    assert all(event.parent_id is None or event.parent_id in ids for event in loaded.events)


def test_past_its_events_a_trace_leaves_the_program_alone(tmp_path: Path) -> None:
    model = Deep(3)
    with clew.trace(
        model, limits=clew.Limits(events=100), out=tmp_path / "run.clew", values="stats",
        capture=["forward.h", "**.weight:grad"],
    ) as t:  # fmt: skip
        train(t, model, 50)
        t.flush()
        assert not _get_current_dispatch_mode_stack()
        assert not _global_forward_hooks
        assert not _global_forward_pre_hooks
        assert not _global_optimizer_pre_hooks
        before = sum(path.stat().st_size for path in (tmp_path / "run.clew").rglob("*"))
        train(t, model, 200)
        t.flush()
        assert sum(path.stat().st_size for path in (tmp_path / "run.clew").rglob("*")) == before
    assert t.steps[-1] < 3


@pytest.mark.parametrize("streamed", [False, True])
def test_the_exception_that_ends_the_block_is_recorded_past_the_limit(
    streamed: bool, tmp_path: Path
) -> None:
    out = tmp_path / "run.clew" if streamed else None
    t = clew.trace(limits=clew.Limits(events=100), out=out)

    @t
    def program() -> float:
        for _ in range(1000):
            torch.ones(1)
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as raised:
        program()
    assert len(t.events) == 101
    assert "division by zero" in str(t.crash)
    assert any("1 / 0" in note for note in raised.value.__notes__)


def test_a_schedule_does_not_begin_anew_past_the_limit() -> None:
    model = Deep(1)
    with clew.trace(model, limits=clew.Limits(events=20), schedule=clew.schedule(every=2)) as t:
        train(t, model, 20)
        assert not _global_forward_hooks
    assert len(t.events) <= 23


def test_seconds_that_are_over() -> None:
    with clew.trace(values="full", limits=clew.Limits(seconds=0.2)) as t:
        torch.ones(1)  # whether in time or not is up to the machine
        time.sleep(0.2)
        torch.ones(1)
        torch.ones(1)
    _, *others = t["op:aten.ones.default"].values
    assert [value.stats for value in others] == [None, None]
    assert len(t.ops) == 3
    assert "0.2 seconds" in the_gap(t).why


def test_seconds_that_are_not_over() -> None:
    with clew.trace(values="full", limits=clew.Limits(seconds=HANG_GUARD)) as t:
        torch.ones(1)
    assert t["op:aten.ones.default"].values[0].array().tolist() == [1]
    assert list(t.coverage) == []


def test_each_limit_is_said() -> None:
    t = record(clew.Limits(bytes=20, elements=10))
    assert sorted(gap.why for gap in t.coverage) == [
        "the limit of 10 elements a value was reached",
        "the limit of 20 bytes was reached",
    ]


def test_what_is_captured_by_name_is_limited_too() -> None:
    layer = torch.nn.Identity()
    with clew.trace(layer, capture=[""], limits=clew.Limits(bytes=3 * 4 * SIZE)) as t:
        for _ in range(6):
            layer(torch.ones(SIZE) + 1)
    assert kept(t).count(SIZE) == 3


@pytest.mark.parametrize(
    "limits",
    [
        {"bytes": 0},
        {"events": -1},
        {"sample": True},
        {"seconds": 0},
        {"sample": None},
        {"queue": 0},
    ],
)
def test_a_limit_that_is_none(limits: dict[str, Any]) -> None:
    with pytest.raises(clew.ClewError, match="give a positive number"):
        clew.Limits(**limits)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (clew.schedule(skip_first=2), [2, 3, 4, 5, 6, 7, 8, 9]),
        (clew.schedule(wait=2, active=1), [2, 5, 8]),
        (clew.schedule(skip_first=1, wait=1, active=2, repeat=2), [2, 3, 5, 6]),
        (clew.schedule(every=4), [3, 7]),
    ],
)
def test_a_schedule(schedule: Any, steps: list[int], streamed: bool, tmp_path: Path) -> None:
    model = torch.nn.Identity()
    out = tmp_path / "run.clew" if streamed else None
    with clew.trace(model, values="full", schedule=schedule, out=out) as t:
        for step in range(10):
            model(torch.full((2,), float(step)))
            t.step()
    series = t.series("")
    assert series.steps == t.steps == steps
    assert series.stack()[:, 0].tolist() == steps
    assert len(t["op:aten.full.default"]) == len(steps)
    if streamed:
        assert clew.load(tmp_path / "run.clew").steps == steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 2, "wait": 1}, "says what wait and active say: give only one"),
        ({"active": 0}, r"schedule\(active=0\): give a whole number, 1 or more"),
        ({"skip_first": -1}, r"schedule\(skip_first=-1\): give a whole number, 0 or more"),
        ({"wait": 1.5}, r"schedule\(wait=1.5\)"),
    ],
)
def test_a_schedule_that_is_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(clew.ClewError, match=message):
        clew.schedule(**options)
