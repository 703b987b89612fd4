"""Long runs: memory grows with the number of events and with nothing else."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest
import torch
from torch import nn

import clew
from tests.outcomes import HAS_PROC, MEGABYTE, faults, resident

pytestmark = pytest.mark.skipif(not HAS_PROC, reason="needs Linux's /proc")


def held(trace: Any = None) -> int:
    """Bytes the process holds, once what was recorded so far is compacted."""
    if trace is not None:
        trace.flush()
        trace.flush()  # the work on a batch is put off until the next one comes
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def chain(count: int) -> None:
    """Ops of which some write and some make views."""
    y = torch.zeros(2)
    for number in range(count // 2):
        y = y.add(1)
        if number % 5:
            y.mul_(2)
        else:
            y = y.view(2, 1).view(2)


def test_100_000_ops_cost_the_same_each() -> None:
    marks = []
    with torch.no_grad(), clew.trace() as t:
        for count in (20_000, 40_000, 40_000):
            chain(count)  # the first for tables, templates, stacks and the allocator
            marks.append(held(t))
    assert len(t.events) > 100_000
    first, second = marks[1] - marks[0], marks[2] - marks[1]
    assert (first + second) / 88_000 < 300
    # Linear: the second half costs no more than the first, give or take the allocator.
    assert second < 1.5 * first + 2 * MEGABYTE
    assert faults(t) == []


def test_a_training_loop_grows_by_its_events_only() -> None:
    """New tensors, graphs and gradients in every step; nothing of them stays."""
    model = nn.Sequential(
        nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Linear(512, 64)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(512, 64)).sum().backward()
            optimizer.step()
            t.step()

    with clew.trace(model) as t:
        steps(10)
        before = held(t)
        steps(60)  # of which each makes some 8 megabytes of tensors
        growth = held(t) - before
    assert len(t.events) > 2_000
    assert growth < 20 * MEGABYTE


def test_modules_made_and_thrown_away_do_not_pile_up() -> None:
    def run(count: int) -> None:
        for _ in range(count):
            nn.Linear(256, 256)(torch.ones(1, 256))

    with clew.trace(level="modules") as t:
        run(20)
        before = held(t)
        run(300)  # a quarter of a megabyte each
        growth = held(t) - before
    assert len(t.events) == 320
    assert growth < 10 * MEGABYTE


def test_a_trace_that_is_dropped_is_freed() -> None:
    def record() -> None:
        with clew.trace(values="full") as t:
            for _ in range(20):
                torch.zeros(MEGABYTE // 4) + 1
        assert len(t.ops) == 40

    record()
    before = held()
    for _ in range(3):
        record()
    assert held() - before < 60 * MEGABYTE


def test_reading_a_trace_again_and_again_costs_once() -> None:
    with torch.no_grad(), clew.trace() as t:
        chain(20_000)
    len(t.events)
    before = held()
    for _ in range(20):
        assert len(t.ops) == 20_000 + 2_000 + 1
        list(t.ops[:10])
    assert held() - before < 10 * MEGABYTE


def test_reading_while_it_records_does_not_pile_up() -> None:
    model = nn.ReLU()
    with clew.trace(model) as t:
        for _ in range(100):
            model(torch.ones(2))
        before = held(t)
        for _ in range(200):
            assert len(t.ops) >= 100
        growth = held(t) - before
    assert growth < 10 * MEGABYTE
