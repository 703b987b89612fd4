"""A decoder that looks at itself and at a memory, the whole sequence at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Attention(nn.Module):
    """Heads that look at something; keys and values may be shared by several of them."""

    def __init__(self, size: Size, shared: int = 1) -> None:
        super().__init__()
        self.heads, self.groups = size.heads, size.heads // shared
        inner = size.width // shared
        self.q, self.k = nn.Linear(size.width, size.width), nn.Linear(size.width, inner)
        self.v, self.o = nn.Linear(size.width, inner), nn.Linear(size.width, size.width)

    def forward(self, x: Tensor, seen: Tensor, bias: Tensor | None, bug: str) -> Tensor:
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (
            part(seen).view(b, seen.shape[1], self.groups, -1).transpose(1, 2)
            for part in (self.k, self.v)
        )
        if self.groups < self.heads:
            times = self.heads // self.groups
            if bug == "groups-tiled":
                k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)  # bug: groups-tiled
            else:
                k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scores = q @ k.transpose(2, 3) / (d // self.heads) ** 0.5
        if bias is not None:
            scores = scores + bias
        weights = F.softmax(scores, dim=2 if bug == "softmax-axis" else 3)  # bug: softmax-axis
        return self.o((weights @ v).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    """Attention to itself, to the memory, and a network."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        d, self.bug = size.width, bug
        self.own, self.cross = Attention(size, 2), Attention(size)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(d, eps=1e-6) for _ in range(3))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        y = self.n1(x)
        if self.bug == "bias-double":
            bias = bias * 2  # bug: bias-double
        x = x + self.own(y, y, bias, self.bug)  # bug: bias-double
        if self.bug == "memory-normed":
            memory = self.n2(memory)  # bug: memory-normed
        seen = self.cross(self.n2(x), memory, None, "")  # bug: memory-normed
        if self.bug == "cross-half":
            seen = seen * 0.5  # bug: cross-half
        x = seen if self.bug == "cross-short" else x + seen  # bug: cross-short
        y = self.up(x if self.bug == "norm-missing" else self.n3(x))  # bug: norm-missing
        y = F.silu(y) if self.bug == "silu" else F.relu(y) ** 2  # bug: silu
        return x + self.down(y)


def slopes(heads: int, length: int, bug: str) -> Tensor:
    """Return what is added to scores: less the further back, and nothing ahead."""
    rate = 2.0 ** (-torch.arange(1, heads + 1) * (4.0 if bug == "rate" else 2.0))  # bug: rate
    place = torch.arange(length)
    back = (place[None, :] - place[:, None]).float()
    ahead = back > (1 if bug == "mask-late" else 0)  # bug: mask-late
    return (rate[:, None, None] * back).masked_fill(ahead, float("-inf"))  # bug: rate, mask-late


class Captioner(nn.Module):
    """A memory and words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.bug = size.width, faults.get(OUTSIDE, "")
        self.words, self.heads = nn.Embedding(60, d), size.heads
        self.memory = nn.Linear(20, d)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.norm = nn.LayerNorm(d, eps=1e-6)

    def forward(self, picture: Tensor, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.bug != "embed-scale":
            x = x * x.shape[-1] ** 0.5  # bug: embed-scale
        memory = self.memory(picture)
        if self.bug == "memory-relu":
            memory = memory.relu()  # bug: memory-relu
        bias = slopes(self.heads, ids.shape[1], self.bug)
        for layer in self.layers:
            x = layer(x, memory, bias)
        return F.linear(self.norm(x), self.words.weight)
