"""A decoder with rotary positions, grouped queries and RMSNorm, its halves rotated."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class RMSNorm(nn.Module):
    """Divide by the root of the mean square."""

    def __init__(self, width: int, bug: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-2 if bug == "norm-eps" else 1e-5
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "norm-mean":
            x = x - x.mean(-1, keepdim=True)  # bug: norm-mean
        square = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(square + self.eps)  # bug: norm-eps
        if self.bug == "norm-plus-one":
            return x * (1 + self.weight)  # bug: norm-plus-one
        return x * self.weight


class Rotary(nn.Module):
    """Cosines and sines of positions."""

    def __init__(self, size: int, bug: str = "") -> None:
        super().__init__()
        self.size, self.bug = size, bug

    def forward(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        theta = 500.0 if self.bug == "rope-theta" else 10000.0
        places = torch.arange(length).float()
        if self.bug == "rope-scaling":
            places = places / 4  # bug: rope-scaling
        even = torch.arange(0, self.size, 2).float() / self.size
        speeds = 1.0 / (theta**even)  # bug: rope-theta
        angles = torch.outer(places, speeds)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_half(x: Tensor, bug: str) -> Tensor:
    """Turn pairs of features by a right angle."""
    if bug == "rope-layout":
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)  # bug: rope-layout
    first, second = x.chunk(2, dim=-1)
    if bug == "rope-sign":
        return torch.cat([second, -first], dim=-1)  # bug: rope-sign
    return torch.cat([-second, first], dim=-1)


class Attention(nn.Module):
    """Attention with fewer keys than queries."""

    def __init__(self, size: Size, bug: str = "") -> None:
        super().__init__()
        self.heads, self.kv_heads = size.heads, size.heads // 2
        self.size = size.width // size.heads
        inner = self.kv_heads * self.size
        self.q_proj = nn.Linear(size.width, size.width, bias=False)
        self.k_proj = nn.Linear(size.width, inner, bias=False)
        self.v_proj = nn.Linear(size.width, inner, bias=False)
        self.o_proj = nn.Linear(size.width, size.width, bias=False)
        self.rotary = Rotary(self.size, bug)
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "weight-stale":
            nn.init.normal_(self.o_proj.weight, 0, 0.1)
        if self.bug == "weight-transposed":
            self.o_proj.weight.copy_(self.o_proj.weight.T.clone())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        cos, sin = self.rotary(length, x.dtype)
        q = q * cos + rotate_half(q, self.bug) * sin
        if self.bug == "rope-shift":
            cos, sin = cos.roll(1, 0), sin.roll(1, 0)  # bug: rope-shift
        if self.bug != "rope-missing":
            k = k * cos + rotate_half(k, self.bug) * sin  # bug: rope-missing
        groups = self.heads // self.kv_heads
        if self.bug == "gqa-tile":
            k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)  # bug: gqa-tile
        else:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = q @ k.transpose(-1, -2)
        scale = width if self.bug == "scale" else self.size
        if self.bug != "scale-missing":
            scores = scores / math.sqrt(scale)  # bug: scale, scale-missing
        below = 1 if self.bug == "mask-shift" else 0
        seen = torch.ones(length, length, dtype=torch.bool).tril(below)  # bug: mask-shift
        if self.bug == "window":
            seen = seen & torch.ones_like(seen).triu(-3)  # bug: window
        if self.bug != "mask-missing":
            scores = scores.masked_fill(~seen, float("-inf"))  # bug: mask-missing
        if self.bug == "softcap":
            scores = torch.tanh(scores / 2) * 2  # bug: softcap
        weights = F.softmax(scores, dim=-1)
        mixed = weights @ v
        if self.bug == "heads-merged":
            mixed = mixed.reshape(batch, length, width)  # bug: heads-merged
        else:
            mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        return self.o_proj(mixed)  # bug: weight-stale, weight-transposed


class MLP(nn.Module):
    """A gated network."""

    def __init__(self, width: int, bug: str = "") -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "gate-up":
            return self.down_proj(self.gate_proj(x) * F.silu(self.up_proj(x)))  # bug: gate-up
        gate = self.gate_proj(x)
        gate = F.gelu(gate) if self.bug == "silu-gelu" else F.silu(gate)  # bug: silu-gelu
        return self.down_proj(gate * self.up_proj(x))


class Layer(nn.Module):
    """Attention and a gated network, each after a norm and with a shortcut."""

    def __init__(self, size: Size, bug: str = "") -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size.width, bug)
        self.self_attn = Attention(size, bug)
        self.post_attention_layernorm = RMSNorm(size.width)
        self.mlp = MLP(size.width, bug)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        mixed = self.self_attn(normed)
        if self.bug == "residual-normed":
            x = normed + mixed  # bug: residual-normed
        elif self.bug == "residual-missing":
            x = mixed
        else:
            x = x + mixed  # bug: residual-missing
        if self.bug == "norm-reused":
            normed = self.input_layernorm(x)  # bug: norm-reused
        elif self.bug == "norm-missing":
            normed = x
        else:
            normed = self.post_attention_layernorm(x)  # bug: norm-missing
        return x + self.mlp(normed)


class Llama(nn.Module):
    """Words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(60, size.width)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.norm = RMSNorm(size.width)
        self.lm_head = nn.Linear(size.width, 60, bias=False)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        if self.bug == "embed-scale":
            x = x * math.sqrt(x.shape[-1])  # bug: embed-scale
        for layer in self.layers:
            x = layer(x)
        if self.bug != "final-norm":
            x = self.norm(x)  # bug: final-norm
        if self.bug == "head-tied":
            return F.linear(x, self.embed_tokens.weight)  # bug: head-tied
        return self.lm_head(x)
