"""A small but real language model: a causal transformer over bytes, and text to train it on.

Nothing here knows Clew: it is the program that the examples trace.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


class Attention(nn.Module):
    """Causal self-attention, written out so that every step has a line of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two layers with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    """One layer: attention and MLP, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyLM(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 4, context: int = 64):
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(size: int = 8, length: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Lines of sums as bytes, and the same one byte further on: what comes next."""
    draw = random.Random(seed)
    rows = []
    for _ in range(size):
        text = b""
        while len(text) <= length:
            a, b = draw.randrange(100), draw.randrange(100)
            text += b"%d + %d = %d\n" % (a, b, a + b)
        rows.append(list(text[: length + 1]))
    data = torch.tensor(rows)
    return data[:, :-1], data[:, 1:]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """How badly the model predicts the next bytes."""
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
