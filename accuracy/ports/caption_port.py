"""A port of the decoder of `caption`: word by word, with keys and values kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import caption
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Step(nn.Module):
    """One layer for one word."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d, self.n, self.fault = size.width, size.heads, fault
        self.qkv, self.own_out = nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.ask, self.kv, self.cross_out = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.a, self.b, self.c = (nn.LayerNorm(d, eps=1e-6) for _ in range(3))
        self.mlp = nn.ModuleList([nn.Linear(d, 2 * d), nn.Linear(2 * d, d)])

    def prepare(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault == "memory-normed":
            memory = self.b(memory)  # bug: memory-normed
        k, v = self.kv(memory).chunk(2, -1)  # bug: memory-normed
        return k.unflatten(-1, (self.n, -1)), v.unflatten(-1, (self.n, -1))

    def recall(self, z: Tensor, kept: list[Tensor], bias: Tensor) -> Tensor:
        d = z.shape[-1]
        q, k, v = self.qkv(z).split([d, d // 2, d // 2], -1)
        q = q.view(-1, self.n // 2, 2, d // self.n)
        if self.fault == "groups-tiled":
            q = q.reshape(-1, 2, self.n // 2, d // self.n).transpose(1, 2)  # bug: groups-tiled
        new = torch.stack([k, v]).unflatten(-1, (self.n // 2, -1)).unsqueeze(2)
        kept[:] = [torch.cat([*kept, new], 2)]
        keys, values = kept[0]
        scores = torch.einsum("bgrd,btgd->bgrt", q, keys) * (d // self.n) ** -0.5
        if self.fault == "bias-double":
            bias = bias + bias  # bug: bias-double
        scores = scores + bias.view(self.n // 2, 2, -1)  # bug: bias-double
        weights = scores.softmax(1 if self.fault == "softmax-axis" else -1)  # bug: softmax-axis
        seen = torch.einsum("bgrt,btgd->bgrd", weights, values)
        seen = seen.transpose(1, 2) if self.fault == "groups-tiled" else seen
        return self.own_out(seen.flatten(1))

    def forward(self, z: Tensor, kept: list[Tensor], memory: list[Tensor], bias: Tensor) -> Tensor:
        z = z + self.recall(self.a(z), kept, bias)
        q = self.ask(self.b(z)).view(-1, self.n, 1, memory[0].shape[-1])
        seen = F.scaled_dot_product_attention(q, *(one.transpose(1, 2) for one in memory))
        seen = self.cross_out(seen.flatten(1))
        if self.fault == "cross-half":
            seen = seen / 2  # bug: cross-half
        z = seen if self.fault == "cross-short" else seen + z
        y = self.mlp[0](z if self.fault == "norm-missing" else self.c(z))
        y = F.silu(y) if self.fault == "silu" else y.clamp(min=0).square()  # bug: silu
        return z + self.mlp[1](y)


class Teller(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault, self.n = size.width, faults.get(OUTSIDE, ""), size.heads
        self.tokens, self.see = nn.Parameter(torch.zeros(60, d)), nn.Linear(20, d)
        self.steps = nn.ModuleList(Step(size, faults.get(n, "")) for n in range(size.layers))
        self.last = nn.LayerNorm(d, eps=1e-6)

    def forward(self, picture: Tensor, ids: Tensor) -> Tensor:
        memory = self.see(picture)
        memory = memory.relu() if self.fault == "memory-relu" else memory  # bug: memory-relu
        sides = [step.prepare(memory) for step in self.steps]
        caches: list[list[Tensor]] = [[] for _ in self.steps]
        power = 16.0 if self.fault == "rate" else 4.0
        rate = power ** -torch.arange(1, self.n + 1)  # bug: rate
        z_all = self.tokens[ids]
        if self.fault != "embed-scale":
            z_all = z_all * z_all.shape[-1] ** 0.5
        found = []
        for t in range(ids.shape[1]):
            bias = rate[:, None] * torch.arange(-t, 1)  # bug: rate
            z = z_all[:, t]
            for step, cache, side in zip(self.steps, caches, sides, strict=True):
                z = step(z, cache, side, bias)
            found.append(self.last(z))
        return torch.stack(found, 1) @ self.tokens.T


def convert(old: caption.Captioner, new: Teller) -> None:
    """Copy the weights of the reference."""
    new.tokens.copy_(old.words.weight)
    new.see.load_state_dict(old.memory.state_dict())
    new.last.load_state_dict(old.norm.state_dict())
    for mine, step in zip(old.layers, new.steps, strict=True):
        for target, parts in (
            (step.qkv, (mine.own.q, mine.own.k, mine.own.v)),
            (step.kv, (mine.cross.k, mine.cross.v)),
        ):
            target.weight.copy_(torch.cat([part.weight for part in parts]))
            target.bias.copy_(torch.cat([part.bias for part in parts]))
        for a, b in (
            (mine.own.o, step.own_out), (mine.cross.q, step.ask), (mine.cross.o, step.cross_out),
            (mine.n1, step.a), (mine.n2, step.b), (mine.n3, step.c),
            (mine.up, step.mlp[0]), (mine.down, step.mlp[1]),
        ):  # fmt: skip
            b.load_state_dict(a.state_dict())


def inputs() -> tuple[Tensor, ...]:
    """Return a memory and words."""
    return torch.randn(2, 9, 20, generator=torch.Generator().manual_seed(6)), tokens(length=6)


CAPTION = Architecture(
    "caption", caption.Captioner, Teller, convert, inputs,
    (("layers.{}",), ("steps.{}",)),
    (
        *bugs("groups-tiled softmax-axis bias-double memory-normed cross-half silu"),
        *bugs("cross-short norm-missing", omits=True),
        *bugs("rate memory-relu", (OUTSIDE,)),
        *bugs("mask-late", (OUTSIDE,), cross=False),
        *bugs("embed-scale", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
