"""A trace that is streamed to a folder takes as much memory after many steps as after a few."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clew
from clew.events.vocabulary import Payload
from clew.keep import value_records
from clew.run import derive_state
from clew.session import memory_trace

# Of all that is remembered of the past; what grows past this grows for ever. The native engine
# remembers 32,768 nestings of arguments, of which each step of Adam has new ones: that it stops
# there is tested in tests/native/test_bounded.py.
MOST_BYTES = {"python": 40_000, "native": 60_000}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        return self.second(hidden)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"values": "stats"}, 50),
        ({"level": "modules"}, 200),
        ({"level": "modules", "capture": ["forward.hidden", "first.weight:grad"]}, 80),
        ({"level": "modules", "watch": ["hidden"]}, 60),
        ({"level": "values", "capture": ["forward.hidden", "second"]}, 100),
    ],
    ids=["ops with statistics", "modules", "captured", "watched", "values alone"],
)
def test_memory_does_not_grow_with_steps(
    settings: dict[str, Any],
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    # Small, so that few steps reach them.
    monkeypatch.setattr(memory_trace, "_TEMPLATES", 64)
    monkeypatch.setattr(derive_state, "_RECENT_EVENTS", 64)
    monkeypatch.setattr(value_records, "_MANY", 16)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())

    def train(t: Any, count: int) -> int:
        for _ in range(count):
            with clew.prefix("step"):
                clew.tap("x", torch.ones(1, 2))
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            t.step()
        t.flush()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    # With another thread there, values are remembered for as long as it may mention them.
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    with clew.trace(model, out=tmp_path / "run.clew", **settings) as t:
        # One line calls it, so that the places in the code are the same each time.
        tracemalloc.start(1)
        try:
            used = [train(t, count) for count in (2, 40, steps)]
            # Whatever the writer's thread or a collection left then; a leak grows each time.
            while used[-1] - used[-2] >= MOST_BYTES[engine] and len(used) < 6:
                used.append(train(t, steps))
        finally:
            tracemalloc.stop()
            over.set()
            other.join()
    assert used[-1] - used[-2] < MOST_BYTES[engine], used
    assert t.steps[-1] >= steps
    assert not [gap for gap in t.coverage if gap.what == "an event"]


def test_rows_let_go_of_and_used_again_are_read_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments that come again long after are those of each event."""
    monkeypatch.setattr(memory_trace, "_TEMPLATES", 4)
    factors = [float(n % 7) for n in range(40)]
    with clew.trace(out=tmp_path / "run.clew") as t:
        for factor in factors:
            torch.ones(2) * factor
            torch.add(torch.ones(2), torch.ones(2), alpha=factor)
            t.step()
    adds = [op for op in clew.load(tmp_path / "run.clew").ops if op.name.startswith("aten.add")]
    assert [op.arguments["alpha"] for op in adds] == factors


def test_data_that_is_written_leaves_memory_while_its_tensor_lives(tmp_path: Path) -> None:
    layer = nn.Identity()
    # Of a size that no other test has, whose traces may still be there.
    tensors = [torch.full((4099,), float(n)) for n in range(20)]
    with clew.trace(layer, values="full", out=tmp_path / "run.clew") as t:
        for tensor in tensors:
            layer(tensor)
        t.flush()
        held = [found for found in gc.get_objects() if type(found) is Payload]
        assert [payload for payload in held if payload.shape == (4099,)] == []
    last = clew.load(tmp_path / "run.clew")[""].values[-1]
    assert last.array().tolist() == tensors[-1].tolist()
