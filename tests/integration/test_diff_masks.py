"""A port that masks something else: what made the mask is named, not what used it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew import Diff

WIDTH, LENGTH, SIZES = 12, 8, (5, 8)


class Original(nn.Module):
    """Attention that adds large negative numbers where there is nothing, or to what comes later."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        q, k, v = self.packed(x).chunk(3, -1)
        there = torch.arange(LENGTH)[None] < sizes[:, None]
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        scores = scores + (1.0 - there.float())[:, None] * -1e9
        if self.is_causal:
            scores = scores + torch.full_like(scores, -1e9).triu(1)  # ahead
        result: Tensor = self.out(scores.softmax(-1) @ v)
        return result


class Port(nn.Module):
    """The same with booleans and torch's own attention, with one mistake or none."""

    def __init__(self, model: Original, mistake: str) -> None:
        super().__init__()
        self.mistake, self.is_causal = mistake, model.is_causal
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        parts = zip((self.q, self.k, self.v), model.packed.weight.chunk(3),
                    model.packed.bias.chunk(3), strict=True)  # fmt: skip
        for layer, weight, bias in parts:
            layer.load_state_dict({"weight": weight, "bias": bias})
        self.out = model.out

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        if self.mistake == "longer":
            sizes = (sizes + 1).clamp(max=LENGTH)  # longer
        keep = (torch.arange(LENGTH).expand(2, -1) < sizes.view(-1, 1)).unsqueeze(1)
        if self.mistake == "extra":
            keep = keep & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()  # extra
        if self.is_causal and self.mistake != "open":
            # Both masks in one, which the original never has.
            keep = keep & torch.ones(LENGTH, LENGTH).tril().bool()
        q, k, v = self.q(x), self.k(x), self.v(x)
        scale = 0.5 if self.mistake == "scale" else None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=scale)  # scale
        result: Tensor = self.out(mixed)
        return result


def compared(mistake: str, is_causal: bool) -> Diff:
    torch.manual_seed(0)
    model = Original(is_causal)
    for part in model.parameters():
        nn.init.normal_(part, std=0.5)
    x, sizes = torch.randn(2, LENGTH, WIDTH), torch.tensor(SIZES)
    traces = []
    for one in (model, Port(model, mistake)):
        with torch.no_grad(), clew.trace(one, values="fingerprint") as t:
            one(x, sizes)
        traces.append(t)
    return clew.diff(*traces)


@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_may_be_written_in_any_way(is_causal: bool) -> None:
    assert compared("", is_causal).equal


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("mistake", ["longer", "scale"])
def test_what_made_another_mask_is_named_and_not_one_that_is_right(
    mistake: str, is_causal: bool
) -> None:
    found = compared(mistake, is_causal)
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.source is not None
    assert found.first.b.source.text.endswith(f"# {mistake}"), str(found)


def test_a_mask_that_only_the_port_has_is_named() -> None:
    found = compared("extra", is_causal=False)
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.source is not None
    assert found.first.b.source.text.endswith("# extra"), str(found)


def test_a_mask_that_the_port_lacks_is_named_where_the_original_uses_it() -> None:
    found = compared("open", is_causal=True)
    assert found.first is not None
    assert found.first.a is not None
    assert found.first.a.source is not None
    assert found.first.a.source.text.endswith("# ahead"), str(found)
