"""Ports in other code, wrong in one layer: other layers, and parameters, tell what is wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew import Diff

WIDTH, LENGTH = 16, 6


class Carried(nn.Module):
    """The original: a state that is carried from place to place, then a look at all of them."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.norm, self.mistake = nn.LayerNorm(WIDTH), mistake
        self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.table = nn.Parameter(torch.zeros(LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        key, value = self.key(y), self.value(y)
        state, rows = torch.zeros(2, WIDTH, WIDTH), []
        for t in range(LENGTH):
            state = 0.5 * state + key[:, t, :, None] * value[:, t, None, :]
            rows.append((key[:, t, None, :] @ state)[:, 0])
        mixed = torch.stack(rows, 1)
        scores = mixed @ mixed.transpose(1, 2) / WIDTH
        scores = scores + self.table
        return x + self.out(scores.softmax(-1) @ mixed)


class AtOnce(Carried):
    """The port: all places at once, keys and values in one matrix."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__(mistake)
        self.both = nn.Linear(WIDTH, 2 * WIDTH)

    def fuse(self) -> None:
        for name in ("weight", "bias"):
            parts = [getattr(part, name) for part in (self.key, self.value)]
            getattr(self.both, name).data.copy_(torch.cat(parts).detach())

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.both(self.norm(x)).chunk(2, -1)
        place = torch.arange(LENGTH)
        apart = place[:, None] - place[None, :]
        if self.mistake == "late":
            apart = apart + 1
        kept = torch.where(apart >= 0, 0.5**apart, 0.0)
        query = value if self.mistake == "swapped" else key
        faded = key[:, None] * kept[:, :, None]
        near = (faded * query[:, :, None]).sum(-1)
        mixed = (near @ value)[:, None]
        table = None if self.mistake == "table" else self.table
        scale = 1 / WIDTH
        seen = F.scaled_dot_product_attention(mixed, mixed, mixed, attn_mask=table, scale=scale)
        return x + self.out(seen[:, 0])


def compared(mistake: str, layer: int) -> Diff:
    """A model and its port, with a mistake in one layer, or "" for none."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Carried() for _ in range(3)))
    for part in model.parameters():
        nn.init.normal_(part, std=0.25)
    port = nn.Sequential(*(AtOnce(mistake * (n == layer)) for n in range(3)))
    port.load_state_dict(model.state_dict(), strict=False)
    for part in port:
        part.fuse()
    x = torch.randn(2, LENGTH, WIDTH)
    traces = []
    for one in (model, port):
        with torch.no_grad(), clew.trace(one, values="fingerprint") as trace:
            one(x)
        traces.append(trace)
    return clew.diff(*traces)


def lines(found: Diff) -> tuple[str, str]:
    """The lines that are named, with the layers they are in."""
    assert found.first is not None
    said = []
    for event in (found.first.a, found.first.b):
        assert event is not None
        assert event.source is not None
        said.append(f"{event.module}: {event.source.text.strip()}")
    return said[0], said[1]


def test_a_right_port_is_no_difference() -> None:
    assert compared("", 0).equal


@pytest.mark.parametrize("layer", [1, 2])
def test_a_line_that_is_right_in_no_other_layer_is_named(layer: int) -> None:
    assert lines(compared("late", layer))[1] == f"{layer}: apart = apart + 1"


def test_a_line_that_took_something_else_than_in_other_layers_is_named() -> None:
    assert lines(compared("swapped", 1))[1].startswith("1: near = (faded * query[:, :, None])")


@pytest.mark.parametrize("layer", [0, 1])
def test_an_op_is_missing_whose_parameter_the_port_never_takes(layer: int) -> None:
    said = lines(compared("table", layer))[0]
    assert said == f"{layer}: scores = scores + self.table"


def test_a_parameter_that_is_part_of_a_fused_one_is_not_missing() -> None:
    found = compared("late", 0)
    assert lines(found)[0].startswith("0: ")
    assert "self.key" not in lines(found)[0]
