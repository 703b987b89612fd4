"""A port whose tables are wrong: what made them is named, not what used them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import clew


class Turned(nn.Module):
    """Queries and keys that are turned by their positions, with tables of cos and sin."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        speeds = 1.0 / (10000.0 ** (torch.arange(0, 32, 2).float() / 32))
        angles = torch.outer(torch.arange(length).float(), speeds)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        q, k = (self._turn(part, cos, sin) for part in (self.q(x), self.k(x)))
        return q @ k.transpose(1, 2)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


class Port(nn.Module):
    """The same with complex numbers."""

    def __init__(self, model: Turned, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = torch.cat((model.q.weight, model.k.weight))
        self.bias = torch.cat((model.q.bias, model.k.bias))

    def forward(self, x: Tensor) -> Tensor:
        base = 500.0 if self.fault == "speeds" else 10000.0
        powers = torch.arange(16).float() / 16
        speeds = base ** (-powers)  # speeds
        positions = torch.arange(x.shape[1]).float()
        if self.fault == "positions":
            positions = positions * 0.5  # positions
        angles = torch.outer(positions, speeds)
        turns = torch.polar(torch.ones_like(angles), angles)
        both = nn.functional.linear(x, self.weight, self.bias)
        q, k = (self._turn(part, turns) for part in both.chunk(2, dim=-1))
        scores = q @ k.mT
        return scores * 2 if self.fault == "scores" else scores  # scores

    def _turn(self, x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (2, 16)).transpose(-1, -2).contiguous())
        return torch.view_as_real(pairs * turns).transpose(-1, -2).flatten(2)


@pytest.mark.parametrize("values", ["stats", "fingerprint"])
@pytest.mark.parametrize("fault", ["", "speeds", "positions", "scores"])
def test_what_made_a_wrong_table_is_named(fault: str, values: str) -> None:
    torch.manual_seed(0)
    model, x = Turned(), torch.randn(2, 7, 32)
    traces = []
    for one in (model, Port(model, fault)):
        with clew.trace(one, values=values) as t, torch.no_grad():
            one(x)
        traces.append(t)
    first = clew.diff(*traces).first
    if not fault:
        assert first is None
        return
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text.endswith(f"# {fault}"), str(clew.diff(*traces))
