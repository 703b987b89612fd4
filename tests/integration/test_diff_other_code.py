"""Ports in other code: what is named where most steps of the port have no counterpart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew import Diff

HEADS, WIDTH, LENGTH = 3, 24, 7


class Fused(nn.Module):
    """The original: attention step by step, a group norm and an activation of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.packed(x).view(2, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, LENGTH, WIDTH)
        x = self.norm(x + self.out(mixed))
        result: Tensor = x + self.down(F.silu(self.up(x)))
        return result


class Port(Fused):
    """Another way to write it, with one mistake or none."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake

    def normed(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        eps = 1e-2 if self.mistake == "eps" else 1e-5
        x = (x - mean) * torch.rsqrt(var + eps)
        return x * self.norm.weight + self.norm.bias

    def forward(self, x: Tensor) -> Tensor:
        parts = F.linear(x, self.packed.weight, self.packed.bias).chunk(3, -1)
        q, k, v = (part.reshape(2, LENGTH, HEADS, -1).transpose(1, 2) for part in parts)
        mask = torch.zeros(LENGTH, LENGTH) + 0 * torch.arange(LENGTH)
        scale = 0.3 if self.mistake == "scale" else None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        if self.mistake == "heads":
            mixed = mixed.reshape(2, LENGTH, WIDTH)
        else:
            mixed = mixed.transpose(1, 2).flatten(2)
        x = self.normed(x + self.out(mixed))
        up = self.up(x)
        act = up.clamp(min=0) if self.mistake == "relu" else up * up.sigmoid()
        result: Tensor = x + self.down(act)
        return result


def compared(mistake: str = "") -> Diff:
    torch.manual_seed(0)
    model, port = Fused(), Port(mistake)
    for part in model.parameters():
        nn.init.normal_(part, std=0.5)
    port.load_state_dict(model.state_dict())
    x = torch.randn(2, LENGTH, WIDTH)
    traces = []
    for one in (model, port):
        with torch.no_grad(), clew.trace(one, values="fingerprint") as trace:
            one(x)
        traces.append(trace)
    return clew.diff(*traces)


def line(found: Diff) -> str:
    """The line of the port that is named."""
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.source is not None
    return found.first.b.source.text.strip()


def test_a_right_port_is_no_difference() -> None:
    assert compared().equal


def test_a_number_that_only_the_port_has_is_named_not_the_first_step() -> None:
    assert line(compared("eps")) == "x = (x - mean) * torch.rsqrt(var + eps)"
    assert line(compared("scale")).startswith("mixed = F.scaled_dot_product_attention(")


def test_a_function_that_only_the_port_has_is_named() -> None:
    assert line(compared("relu")).startswith("act = up.clamp(min=0)")


def test_a_move_is_named_where_its_result_is_used_in_another_order() -> None:
    found = compared("heads")
    assert line(found) == "mixed = mixed.reshape(2, LENGTH, WIDTH)"
    assert found.first is not None
    assert "in another order" in found.first.evidence[0]


def test_an_answer_that_is_not_sure_lists_other_lines_of_both_runs() -> None:
    found = compared("eps")
    assert found.first is not None
    said = found.first.suspects
    assert said[0].startswith("not sure: ")
    assert any(one.startswith("b: aten.") for one in said)


class Pictures(nn.Module):
    """A convolution over patches of pictures whose numbers lie between -1 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches((x - 0.5) / 0.5)
        result: Tensor = self.last(torch.relu(x.flatten(2).mean(2)))
        return result


class PicturesPort(Pictures):
    """The same with a product of matrices, of colours in another order, or in the right one."""

    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def forward(self, x: Tensor) -> Tensor:
        if self.is_wrong:
            x = x[:, [2, 1, 0]]  # colours
        pieces = F.unfold(x * 2 - 1, 4, stride=4).transpose(1, 2)
        x = F.linear(pieces, self.patches.weight.flatten(1), self.patches.bias)
        result: Tensor = self.last(x.mean(1).clamp(min=0))
        return result


@pytest.mark.parametrize("is_wrong", [False, True])
def test_elements_put_otherwise_are_named_before_they_are_computed_with(is_wrong: bool) -> None:
    torch.manual_seed(0)
    model, port = Pictures(), PicturesPort(is_wrong)
    port.load_state_dict(model.state_dict())
    x = torch.rand(2, 3, 16, 16) + torch.tensor([0.0, 0.3, 0.6]).view(3, 1, 1)
    traces = []
    for one in (model, port):
        with torch.no_grad(), clew.trace(one, values="fingerprint") as trace:
            one(x)
        traces.append(trace)
    found = clew.diff(*traces)
    assert found.equal != is_wrong, str(found)
    if is_wrong:
        assert line(found) == "x = x[:, [2, 1, 0]]  # colours", str(found)
        assert found.first is not None
        assert "in another order" in found.first.evidence[0]
