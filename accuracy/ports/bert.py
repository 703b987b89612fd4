"""An encoder of two segments: norms after the shortcuts, additive mask, pooled first word."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Embeddings(nn.Module):
    """Words, places and segments."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(60, width)
        self.position_embeddings = nn.Embedding(20, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.bug = bug

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        x = self.word_embeddings(ids)
        places = torch.arange(ids.shape[1])
        if self.bug == "place-offset":
            places = places + 2  # bug: place-offset
        x = x + self.position_embeddings(places)
        if self.bug == "segment-zero":
            segments = torch.zeros_like(segments)  # bug: segment-zero
        if self.bug != "segment-missing":
            x = x + self.token_type_embeddings(segments)  # bug: segment-missing
        return x if self.bug == "embed-norm" else self.LayerNorm(x)  # bug: embed-norm


class SelfAttention(nn.Module):
    """Attention to every word that is no padding."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.heads = 2 * size.heads if bug == "head-count" else size.heads
        self.size = size.width // self.heads
        self.query = nn.Linear(size.width, size.width)
        self.key = nn.Linear(size.width, size.width)
        self.value = nn.Linear(size.width, size.width)
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "bias-stale":
            self.key.bias.zero_()
            self.value.bias.zero_()

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.size).permute(0, 2, 1, 3)  # bug: head-count

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.split(self.query(x))
        k = self.split(self.key(x))  # bug: bias-stale
        v = self.split(self.value(x))  # bug: bias-stale
        scores = torch.matmul(q, k.transpose(-1, -2))
        if self.bug == "scale-twice":
            scores = scores / math.sqrt(self.size)  # bug: scale-twice
        scores = scores / math.sqrt(self.size)
        if self.bug == "causal":
            ahead = torch.full_like(scores, -1e9).triu(1)
            scores = scores + ahead  # bug: causal
        if self.bug == "mask-soft":
            scores = scores + mask * 1e-9  # bug: mask-soft
        elif self.bug != "mask-missing":
            scores = scores + mask  # bug: mask-missing
        weights = F.softmax(scores, dim=1 if self.bug == "softmax-dim" else -1)  # bug: softmax-dim
        mixed = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        return mixed.view(x.shape)


class Layer(nn.Module):
    """Attention and a network."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        width = size.width
        eps = {"norm-eps": 1e-2, "norm-eps-small": 1e-6}.get(bug, 1e-12)
        self.attention = SelfAttention(size, bug)
        self.attention_output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.intermediate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "norm-stale":
            self.output_norm.weight.fill_(1.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed = self.attention_output(self.attention(x, mask))
        if self.bug == "norm-before":
            x = x + self.attention_norm(mixed)  # bug: norm-before
        else:
            x = self.attention_norm(mixed + x)  # bug: norm-eps, norm-eps-small
        how = "tanh" if self.bug == "gelu-tanh" else "none"
        wide = F.gelu(self.intermediate(x), approximate=how)  # bug: gelu-tanh
        if self.bug == "residual-missing":
            return self.output_norm(self.output(wide))
        more = self.output(wide)
        return self.output_norm(more + x)  # bug: residual-missing, norm-stale


class Bert(nn.Module):
    """Words and segments in, a pooled vector and every word's out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.bug = faults.get(OUTSIDE, "")
        self.embeddings = Embeddings(size.width, self.bug)
        self.layer = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.pooler = nn.Linear(size.width, size.width)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        seen = (1.0 - mask[:, None, None, :].to(self.pooler.weight.dtype)) * -1e9
        x = self.embeddings(ids, segments)
        for layer in self.layer:
            x = layer(x, seen)
        first = x[:, -1] if self.bug == "pool-last" else x[:, 0]  # bug: pool-last
        pooled = self.pooler(first)
        if self.bug != "pool-tanh":
            pooled = torch.tanh(pooled)  # bug: pool-tanh
        return pooled
