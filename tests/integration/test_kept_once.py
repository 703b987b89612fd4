"""However often a value is asked for, it is copied once and measured once, and what is kept is
true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.keep import keeper, snapshots


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(11, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        clew.tap("seen", h)
        return h


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts copies, and measurements, of tensors of 7 × 11 floats, as no other test has."""
    counts: Counter[str] = Counter()
    copy, measure = keeper.plain_snapshot, snapshots.statistics_of_bytes

    def counting_copy(tensor: Tensor, *rest: Any) -> Any:
        counts["copied"] += tensor.shape == (7, 11)
        return copy(tensor, *rest)

    def counting_measure(data: Any, *rest: Any, **more: Any) -> Any:
        counts["measured"] += len(data) == 308
        return measure(data, *rest, **more)

    monkeypatch.setattr(keeper, "plain_snapshot", counting_copy)
    monkeypatch.setattr(snapshots, "statistics_of_bytes", counting_measure)
    monkeypatch.setattr(keeper, "statistics_of_bytes", counting_measure)
    return counts


@pytest.mark.parametrize("kept", ["meta", "stats", "full"])
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_a_value_of_many_names_is_kept_once(
    counted: Counter[str], kept: str, level: str, engine: str
) -> None:
    model = Net()
    with clew.trace(model, level=level, values=kept, capture=["forward.h", "layer", ""]) as t:
        out = model(torch.ones(7, 11).requires_grad_())
    local = t["forward.h"].one.outputs[""]
    assert (local.array() == out.detach().numpy()).all()
    assert (t["seen"].one.outputs[""].array() == out.detach().numpy()).all()
    assert local.stats is not None
    assert local.stats.count == 77
    # The input as well, if everything is kept. The native engine reads that in C++; what has a name
    # is read by Python code with both.
    expected = 1 + (kept != "meta" and engine == "python")
    assert counted["copied"] == expected
    assert counted["measured"] == expected


def test_what_does_not_change_is_copied_once_in_all_steps(
    counted: Counter[str], tmp_path: Path
) -> None:
    constant = torch.arange(77.0).reshape(7, 11)
    with clew.trace(level="values", out=tmp_path / "run.clew") as t:
        for _ in range(5):
            clew.tap("constant", constant)
            t.step()
    assert counted["copied"] == 1
    taps = clew.load(tmp_path / "run.clew")["constant"]
    assert len(taps) == 5
    assert all((tap.outputs[""].array() == constant.numpy()).all() for tap in taps)


@pytest.mark.parametrize("kept", ["meta", "stats"])
def test_a_write_past_torch_is_seen(kept: str) -> None:
    """torch counts no version for it, so that a copy from before is another value."""
    x = torch.zeros(3, 4)
    with clew.trace(values=kept) as t:
        y = x + 1
        y.numpy()[0, 0] = 7
        clew.tap("y", y)
        y.data[0, 0] = 8
        clew.tap("y", y)
    assert [float(tap.outputs[""].array()[0, 0]) for tap in t["y"]] == [7.0, 8.0]
