"""Traces of two precisions: what adds more than rounding is named, what rounding does is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clew

NARROW = (torch.bfloat16, torch.float16)


class Block(nn.Module):
    """Attention and a gate, with one of some bugs."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.norm = nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(self.norm(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * 8**-0.5
        seen = torch.ones(12, 12, dtype=torch.bool).tril(1 if self.bug == "mask" else 0)
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        if self.bug == "order":
            mixed = mixed.unflatten(-1, (4, 8)).flip(2).flatten(2)
        x = x + self.out(mixed)
        hidden = F.relu(self.up(x)) if self.bug == "relu" else F.gelu(self.up(x))
        return x + self.down(hidden)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (4, 8)).transpose(1, 2)


def recorded(bug: str, dtype: torch.dtype, values: str = "fingerprint") -> clew.Trace:
    """Record three blocks, the second with a bug."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(bug), Block()).to(dtype)
    x = torch.randn(2, 12, 32)
    with torch.no_grad(), clew.trace(model, values=values) as t:  # type: ignore[arg-type]
        model(x.to(dtype))
    return t


@pytest.mark.parametrize("dtype", NARROW)
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    found = clew.diff(recorded("", torch.float32), recorded("", dtype))
    assert found.equal
    assert "clew.diff_models" in str(found)


@pytest.mark.parametrize(
    ("bug", "line"), [("mask", "tril(1"), ("order", "flip(2)"), ("relu", "F.relu(self.up(x))")]
)
def test_what_adds_more_than_rounding_is_named(bug: str, line: str) -> None:
    first = clew.diff(recorded("", torch.float32), recorded(bug, torch.bfloat16)).first
    assert first is not None
    assert first.b is not None
    assert first.b.module == "1"
    assert first.b.source is not None
    assert line in (first.b.source.text or "")


def test_statistics_alone_show_no_false_alarm() -> None:
    runs = recorded("", torch.float32, "stats"), recorded("", torch.bfloat16, "stats")
    assert clew.diff(*runs).equal


def test_other_choices_by_rounding_are_no_difference() -> None:
    """Two scores that are equal in bfloat16 only: another row is taken."""
    runs = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        scores, rows = torch.rand(16), torch.randn(16, 8)
        scores[3], scores[11] = 2.0, 2.001
        with clew.trace(values="fingerprint") as t:
            best = (scores.to(dtype) * 1.5).argmax(0, keepdim=True)
            rows.to(dtype).index_select(0, best).mul(2.0)
        runs.append(t)
    assert clew.diff(*runs).equal
