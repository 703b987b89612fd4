"""Memory stays within a bound, however many ops run: CLEW_SOAK=1 runs ten million of them."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clew
from tests.native.engine import faults, native_trace, needs_engine, resident_bytes

pytestmark = [needs_engine, pytest.mark.slow]

OPS = 10_000_000 if os.environ.get("CLEW_SOAK") else 300_000
# What one round runs, and how much memory may come on top after the first rounds.
ROUND = 20_000
# So many times memory is looked at; a collection of garbage takes as long as thousands of ops.
LOOKS = 15
MOST_BYTES = 48 << 20


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        for _ in range(17):
            x = x + scale
        out: torch.Tensor = self.first(x)
        return out


@pytest.mark.parametrize("values", ["meta", "stats"])
@pytest.mark.parametrize("where", ["streamed", "ring"])
def test_memory_is_bounded(where: str, values: str, tmp_path: Path) -> None:
    if where == "streamed":
        settings: dict[str, Any] = {"out": tmp_path / "run.clew"}
    else:
        settings = {"limits": clew.Limits(last=ROUND)}
    model = Net()
    count = 0
    # Views of torch's own, dead tensors, and constants that differ in every call.
    with torch.no_grad(), native_trace(model, values=values, **settings) as t:
        used = []
        wanted = OPS // (2 if values == "stats" else 1)
        while count < wanted:
            for _ in range(max(ROUND, wanted // LOOKS) // 20):
                count += 20
                model(torch.ones(2, 4), count * 1e-3).t_().zero_()
                if count % 2000 == 0:
                    t.step()
            t.flush()
            gc.collect()
            used.append(resident_bytes())
    warm = used[min(3, len(used) // 3)]
    # The least of the second half: what waits for the writer comes and goes.
    assert min(used[len(used) // 2 :]) - warm < MOST_BYTES, used
    assert not faults(t)
    if where == "ring":
        assert len(t.events) < 5 * ROUND
    else:
        assert len(clew.load(tmp_path / "run.clew").ops) > count * 0.9
