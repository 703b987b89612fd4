"""What is told as it happens and not kept: memory stays flat, whatever is told."""

from __future__ import annotations

import contextlib
import gc
import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.compat.engine.watched_functions import watch_calls
from clew.compat.tracy_nn import Tracer
from clew.events.live_events import Happening
from clew.keep import keeper, value_records
from clew.watch_output import Output

# Bytes; what is kept of a call takes many times as much.
FLAT = 120


class Counting:
    """A listener that counts what it is told."""

    def __init__(self) -> None:
        self.count = 0

    def begins(self, event: Happening) -> None: ...

    def ends(self, event: Happening) -> None:
        self.count += 1


class Heard(Output):
    def __init__(self) -> None:
        self.count = 0

    def show(self, event: Any) -> None:
        self.count += 1


def growth(program: Callable[[], object], calls: int = 400) -> float:
    """By how much each call raises the peak of memory, in bytes, once the first ones are over."""
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(3):
            gc.collect()
            tracemalloc.reset_peak()
            for _ in range(calls):
                program()
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    return (peaks[2] - peaks[1]) / calls


def test_a_trace_that_keeps_nothing_stays_flat() -> None:
    model, x = nn.Linear(4, 4), torch.ones(1, 4)
    rates = {}
    for out in (None, False):
        listener = Counting()
        with clew.trace(model, live=listener, out=out):
            rates[out] = growth(lambda: model(x))
        assert listener.count >= 1200 * 3
    assert rates[False] < FLAT < 4 * FLAT < rates[None]


def test_a_tracer_that_prints_stays_flat() -> None:
    model, x = nn.Linear(4, 4), torch.ones(1, 4)
    with contextlib.redirect_stdout(io.StringIO()) as text, Tracer().trace(model):

        def call() -> None:
            model(x)
            text.seek(0)

        assert growth(call) < FLAT


@pytest.mark.parametrize("name", [None, "y"])
def test_calls_that_are_told_are_not_kept(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    # What is remembered of the last values has a bound that would take long to reach.
    monkeypatch.setattr(value_records, "_REMEMBERED", 64)
    monkeypatch.setattr(keeper, "_REMEMBERED", 64)

    def work(x: Tensor) -> Tensor:
        y = x + 1
        y = y * 2
        return y

    told = watch_calls(heard, *filter(None, [name]))(work)
    x = torch.ones(4)
    assert growth(lambda: told(x)) < FLAT
    assert heard.count >= 1200 * 2
    assert len(told.watch.trace.variables) == 0  # type: ignore[attr-defined]
    # A trace that records keeps them as ever.
    with clew.trace() as trace:
        told(x)
    assert "return" in [event.name for event in trace.variables]


def test_a_trace_that_keeps_nothing_says_so() -> None:
    model, seen = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []

    def save(value: Tensor) -> Tensor:
        seen.append((value.shape, len(trace.events)))  # with calls open
        return value

    with clew.trace(model, out=False, callbacks={"0": clew.Callbacks(save=save)}) as trace:
        for _ in range(2):
            model(torch.ones(1, 2))
            trace.step()
    assert seen == [((1, 2), 0)] * 2
    assert len(trace.events) == 0
    assert [gap.why for gap in trace.coverage] == ["out=False keeps none of them"]
    assert trace.path is None
    assert repr(trace) == "<Trace of nothing>"
    with pytest.raises(clew.ClewError, match="give a path or a URL, False to keep nothing"):
        clew.trace(out=True)  # type: ignore[arg-type]


def test_an_exception_comes_out_of_it_unchanged() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError) as raised, clew.trace(model, out=False):
        model(torch.ones(1, 3))
    assert "mat1 and mat2" in str(raised.value)
