"""A decoder with learned positions and one matrix for queries, keys and values."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Conv1D(nn.Module):
    """A linear layer whose weight is stored the other way round."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inner, outer))
        self.bias = nn.Parameter(torch.zeros(outer))
        self.drop_bias = False

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.size(-1))
        if self.drop_bias:
            return (flat @ self.weight).view(*x.shape[:-1], -1)  # bug: bias-dropped
        return torch.addmm(self.bias, flat, self.weight).view(*x.shape[:-1], -1)


def gelu_new(x: Tensor) -> Tensor:
    """Approximate GELU by a tanh."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.heads, self.width = size.heads, size.width
        self.c_attn = Conv1D(size.width, 3 * size.width)
        self.c_proj = Conv1D(size.width, size.width)
        self.c_proj.drop_bias = bug == "bias-dropped"
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "weight-transposed":
            self.c_proj.weight.copy_(self.c_proj.weight.T.clone())

    def split(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        if self.bug == "head-order":
            x = x.view(batch, length, -1, self.heads).transpose(-1, -2)  # bug: head-order
        else:
            x = x.view(batch, length, self.heads, -1)
        return x.permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "qkv-order":
            q, v, k = self.c_attn(x).split(self.width, dim=2)  # bug: qkv-order
        else:
            q, k, v = self.c_attn(x).split(self.width, dim=2)
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / (self.width if self.bug == "scale" else v.size(-1)) ** 0.5  # bug: scale
        length = x.size(1)
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool))
        lowest = -2.0 if self.bug == "mask-value" else torch.finfo(scores.dtype).min
        scores = torch.where(seen, scores, lowest)  # bug: mask-value
        if self.bug == "softmax-dim":
            weights = F.softmax(scores, dim=-2)  # bug: softmax-dim
        else:
            weights = F.softmax(scores, dim=-1)
        if self.bug == "dropout-on":
            weights = F.dropout(weights, 0.1, training=True)  # bug: dropout-on
        mixed = torch.matmul(weights, k if self.bug == "value-key" else v)  # bug: value-key
        mixed = mixed.permute(0, 2, 1, 3).contiguous().view(x.shape)
        return self.c_proj(mixed)  # bug: weight-transposed


class MLP(nn.Module):
    """A network of two layers."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.c_fc = Conv1D(width, 4 * width)
        self.c_proj = Conv1D(4 * width, width)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = self.c_fc(x)
        if self.bug == "gelu-exact":
            x = F.gelu(x)  # bug: gelu-exact
        elif self.bug == "gelu-relu":
            x = F.relu(x)  # bug: gelu-relu
        else:
            x = gelu_new(x)
        return self.c_proj(x)


class Block(nn.Module):
    """One layer."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.width, eps=1e-2 if bug == "norm-eps" else 1e-5)
        self.attn = Attention(size, bug)
        self.ln_2 = nn.LayerNorm(size.width)
        self.mlp = MLP(size.width, bug)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "norm-after":
            x = self.ln_1(x + self.attn(x))  # bug: norm-after
        else:
            x = x + self.attn(self.ln_1(x))  # bug: norm-eps
        normed = self.ln_1(x) if self.bug == "norm-swapped" else self.ln_2(x)  # bug: norm-swapped
        more = self.mlp(normed)
        if self.bug == "residual-twice":
            return x + x + more  # bug: residual-twice
        if self.bug == "residual-missing":
            return more
        return x + more  # bug: residual-missing


class GPT2(nn.Module):
    """Words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.wte = nn.Embedding(60, size.width)
        self.wpe = nn.Embedding(20, size.width)
        self.h = nn.ModuleList(Block(size, faults.get(n, "")) for n in range(size.layers))
        self.ln_f = nn.LayerNorm(size.width)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.size(1))
        if self.bug == "place-shift":
            places = places + 1  # bug: place-shift
        x = self.wte(ids)
        if self.bug != "place-missing":
            x = x + self.wpe(places)  # bug: place-missing
        for block in self.h:
            x = block(x)
        x = x if self.bug == "final-norm" else self.ln_f(x)  # bug: final-norm
        return F.linear(x, self.wte.weight)
