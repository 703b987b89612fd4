"""CLEW_DISABLE=1: every public entry does nothing, and the program runs as if without Clew."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import clew


@pytest.fixture(autouse=True)
def disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_DISABLE", "1")


def test_a_trace_records_nothing_and_says_why(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model, values="full", out=tmp_path / "run.clew") as t:
        x = torch.ones(1, 2)
        assert clew.tap("x", x) is x
        with clew.prefix("part"):
            model(x).sum().backward()
        assert t.step() == 0
        t.flush()
        assert not t.recording
    assert not list(tmp_path.iterdir())
    assert len(t.events) == 0
    assert [gap.remedy for gap in t.coverage] == ["unset CLEW_DISABLE"]
    assert "CLEW_DISABLE=1 switches recording off" in str(t)


def test_decorators_and_start_and_stop() -> None:
    @clew.trace(level="modules")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert doubled(torch.ones(1)).item() == 2
    assert len(doubled.trace.ops) == 0  # type: ignore[attr-defined]
    t = clew.trace().start()
    torch.ones(1)
    assert len(t.stop().ops) == 0


def test_a_watch_follows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tracing = sys.gettrace()

    @clew.watch("y")
    def doubled(x: int) -> int:
        y = x * 2
        assert sys.gettrace() is tracing
        return y

    assert doubled(2) == 4
    with clew.watch("z"):
        z = doubled(3)
    assert z == 6
    assert capsys.readouterr().out == ""
    assert len(doubled.watch.trace.variables) == 0  # type: ignore[attr-defined]


def test_a_trace_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with clew.trace() as t:
        pass
    assert len(t.events) == 0


@pytest.mark.parametrize("off", ["", "0"])
def test_it_is_off_for_0_and_nothing(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_DISABLE", off)
    with clew.trace() as t:
        torch.ones(1)
    assert len(t.ops) == 1


def test_a_trace_that_records_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_DISABLE")
    with clew.trace() as t:
        torch.ones(1)
        monkeypatch.setenv("CLEW_DISABLE", "1")
        torch.ones(1)
    assert len(t.ops) == 2
