"""Pairs of programs that compute the same: rewritten lines, other orders, other layouts.

Each pair is one function in two forms, run inside a small model, so that something comes before it
and something after.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = Callable[[Tensor, Tensor], Tensor]  # of (batch, time, width) and a square matrix


@dataclass(frozen=True)
class Refactor:
    """A function in two forms."""

    name: str
    before: Form
    after: Form


class Around(nn.Module):
    """A model with a function in its middle."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 64)
        self.norm, self.last_norm = nn.LayerNorm(64), nn.LayerNorm(64)
        self.matrix = nn.Parameter(torch.zeros(64, 64))
        self.head = nn.Linear(64, 60)
        self.form = form

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        x = x + self.form(x, self.matrix)
        return self.head(self.last_norm(x))


def softmax_by_hand(x: Tensor, w: Tensor) -> Tensor:
    """Compute a softmax without its kernel."""
    logits = x @ w
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def norm_by_hand(x: Tensor, w: Tensor) -> Tensor:
    """Compute a layer norm without its kernel."""
    y = x @ w
    centred = y - y.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


def buffer_filled(x: Tensor, w: Tensor) -> Tensor:
    """Write into memory that was not set, row by row."""
    out = torch.empty_like(x)
    for row in range(len(x)):
        out[row] = x[row] @ w
    return out


def buffer_padded(x: Tensor, w: Tensor) -> Tensor:
    """Use a part of a buffer that is larger than needed and partly not set."""
    out = x.new_empty(x.shape[0], x.shape[1] + 5, x.shape[2])
    out[:, : x.shape[1]] = x @ w
    return out[:, : x.shape[1]]


def summed_in(names: list[str]) -> Form:
    """Return a function that adds independent parts in an order."""

    def form(x: Tensor, w: Tensor) -> Tensor:
        made = {}
        for name in names:
            if name == "sin":
                made[name] = torch.sin(x @ w)
            elif name == "tanh":
                made[name] = torch.tanh(x * 0.5)
            else:
                made[name] = torch.sigmoid(x - 1)
        return made["sin"] + made["tanh"] * made["gate"]

    return form


def attention_loops(x: Tensor, w: Tensor) -> Tensor:
    """Attend head by head."""
    parts = []
    for q in (x @ w).chunk(4, dim=-1):
        parts.append(torch.softmax(q @ q.mT / 4, dim=-1) @ q)
    return torch.cat(parts, dim=-1)


def attention_fused(x: Tensor, w: Tensor) -> Tensor:
    """Attend with all heads by the fused kernel."""
    q = (x @ w).unflatten(-1, (4, 16)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


def written_in_place(x: Tensor, w: Tensor) -> Tensor:
    """Change a result in place."""
    y = x @ w
    y.mul_(0.5).add_(1.0).relu_()
    return y


REFACTORS = [
    Refactor("divide", lambda x, w: (x @ w) / 2, lambda x, w: (x @ w) * 0.5),
    Refactor("divide by three", lambda x, w: (x @ w) / 3, lambda x, w: (x @ w) * (1 / 3)),
    Refactor("einsum", lambda x, w: x @ w, lambda x, w: torch.einsum("bti,ij->btj", x, w)),
    Refactor("flat product", lambda x, w: x @ w, lambda x, w: (x.flatten(0, 1) @ w).view(x.shape)),
    Refactor("linear", lambda x, w: x @ w, lambda x, w: F.linear(x, w.T.contiguous())),
    Refactor("transposed product", lambda x, w: x @ w, lambda x, w: (w.T @ x.mT).mT.contiguous()),
    Refactor("split product", lambda x, w: x @ w,
             lambda x, w: torch.cat([x @ half for half in w.chunk(2, 1)], -1)),
    Refactor("sum of halves", lambda x, w: x @ w,
             lambda x, w: x[..., :32] @ w[:32] + x[..., 32:] @ w[32:]),
    Refactor("batch by batch", lambda x, w: x @ w,
             lambda x, w: torch.stack([row @ w for row in x])),
    Refactor("softmax", lambda x, w: F.softmax(x @ w, -1), softmax_by_hand),
    Refactor("log-softmax", lambda x, w: F.log_softmax(x @ w, -1),
             lambda x, w: x @ w - torch.logsumexp(x @ w, -1, keepdim=True)),
    Refactor("layer norm", lambda x, w: F.layer_norm(x @ w, (64,)), norm_by_hand),
    Refactor("gelu", lambda x, w: F.gelu(x @ w),
             lambda x, w: 0.5 * (x @ w) * (1 + torch.erf(x @ w / math.sqrt(2)))),
    Refactor("silu", lambda x, w: F.silu(x @ w), lambda x, w: (x @ w) * torch.sigmoid(x @ w)),
    Refactor("mean", lambda x, w: x - x.mean(1, keepdim=True),
             lambda x, w: x - x.sum(1, keepdim=True) / x.shape[1]),
    Refactor("mean by product", lambda x, w: x - x.mean(1, keepdim=True),
             lambda x, w: x - torch.full((1, x.shape[1]), 1 / x.shape[1], dtype=x.dtype) @ x),
    Refactor("buffer", lambda x, w: x @ w, buffer_filled),
    Refactor("padded buffer", lambda x, w: x @ w, buffer_padded),
    Refactor("padded buffer again", buffer_padded, buffer_padded),
    Refactor("order of parts", summed_in(["sin", "tanh", "gate"]),
             summed_in(["gate", "tanh", "sin"])),
    Refactor("attention", attention_loops, attention_fused),
    Refactor("in place", lambda x, w: F.relu((x @ w) * 0.5 + 1.0), written_in_place),
    Refactor("addmm", lambda x, w: x @ w + 1.0,
             lambda x, w: torch.addmm(w.new_ones(64), x.flatten(0, 1), w).view(x.shape)),
    Refactor("mask", lambda x, w: (x @ w).masked_fill(x > 0, 0.0),
             lambda x, w: torch.where(x > 0, torch.zeros(()).to(x), x @ w)),
    Refactor("no-op", lambda x, w: x @ w,
             lambda x, w: F.dropout((x @ w).clone() + 0.0, 0.5, False)),
]  # fmt: skip
