"""A port that looks up other rows of a table: what chose the rows is named, not what used them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew

WIDTH, LENGTH, REACH = 12, 9, 3


class Original(nn.Module):
    """Words, those before them, and attention with a bias for each distance."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(30, WIDTH), nn.Embedding(2 * REACH + 1, 1)
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.words(ids.roll(1, 1)).tanh()
        q, k, v = self.packed(x).chunk(3, -1)
        places = torch.arange(LENGTH)
        apart = (places[None, :] - places[:, None]).clamp(-REACH, REACH) + REACH
        scores = q @ k.transpose(1, 2) / WIDTH**0.5 + self.bias(apart)[..., 0]
        result: Tensor = self.out(scores.softmax(-1) @ v)
        return result


class Port(nn.Module):
    """The same in another way, with one mistake or none."""

    def __init__(self, model: Original, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.table, self.far = model.words.weight, model.bias.weight
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        parts = zip((self.q, self.k, self.v), model.packed.weight.chunk(3),
                    model.packed.bias.chunk(3), strict=True)  # fmt: skip
        for layer, weight, bias in parts:
            layer.load_state_dict({"weight": weight, "bias": bias})
        self.out = model.out

    def biases(self) -> Tensor:
        steps = torch.arange(LENGTH)
        apart = steps.view(1, -1) - steps.view(-1, 1)
        if self.mistake == "sign":
            apart = -apart  # sign
        rows = torch.clip(apart, -REACH, REACH).add(REACH)
        return self.far[rows].permute(2, 0, 1)

    def forward(self, ids: Tensor) -> Tensor:
        # Batches last, as other code has it.
        ids = ids.T
        before = ids if self.mistake == "unshifted" else torch.cat((ids[-1:], ids[:-1]))
        x = F.embedding(ids, self.table)
        x = x + torch.tanh(F.embedding(before, self.table))  # unshifted
        q, k, v = (layer(x).transpose(0, 1) for layer in (self.q, self.k, self.v))
        scale = 0.5 if self.mistake == "scale" else None
        mixed = F.scaled_dot_product_attention(q, k, v, self.biases(), scale=scale)  # scale
        result: Tensor = self.out(mixed)
        return result


@pytest.mark.parametrize("mistake", ["", "sign", "unshifted", "scale"])
def test_what_chose_other_rows_of_a_table_is_named(mistake: str) -> None:
    torch.manual_seed(0)
    model = Original()
    for part in model.parameters():
        nn.init.normal_(part, std=0.5)
    ids = torch.randint(0, 30, (2, LENGTH))
    traces = []
    for one in (model, Port(model, mistake)):
        with torch.no_grad(), clew.trace(one, values="fingerprint") as t:
            one(ids)
        traces.append(t)
    found = clew.diff(*traces)
    if not mistake:
        assert found.equal, str(found)
        return
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.source is not None
    assert found.first.b.source.text.endswith(f"# {mistake}"), str(found)
