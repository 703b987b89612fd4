"""An encoder and a decoder with relative positions, unscaled attention and cross-attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import DECODER, OUTSIDE, Faults, Size


class T5Norm(nn.Module):
    """A norm without mean and bias."""

    def __init__(self, width: int, bug: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "norm-layer":
            return F.layer_norm(x, x.shape[-1:], self.weight)  # bug: norm-layer
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def bucket(distance: Tensor, both_ways: bool, bug: str, buckets: int = 8) -> Tensor:
    """Sort distances into buckets, near ones one by one, far ones by their logarithm."""
    found = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        found = found + (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = -torch.min(distance, torch.zeros_like(distance))
    exact = buckets // 2
    farthest = 8 if bug == "bucket-range" else 16
    far = torch.log(distance.float().clamp(min=1) / exact)
    far = far / math.log(farthest / exact) * (buckets - exact)  # bug: bucket-range
    far = (exact + far.long()).clamp(max=buckets - 1)
    return found + torch.where(distance < exact, distance, far)


class T5Attention(nn.Module):
    """Attention, to itself or to another sequence, with a bias that may be given."""

    def __init__(self, size: Size, bug: str = "", bias_bug: str | None = None) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        if bias_bug is not None:
            self.relative_attention_bias = nn.Embedding(8, size.heads)
        self.bug, self.bias_bug = bug, bias_bug or ""

    def bias(self, length: int, both_ways: bool) -> Tensor:
        places = torch.arange(length)
        distance = places[None, :] - places[:, None]
        if self.bias_bug == "distance-sign":
            distance = -distance  # bug: distance-sign
        both_ways = both_ways or self.bias_bug == "bucket-both"
        numbers = bucket(distance, both_ways, self.bias_bug)  # bug: bucket-both
        return self.relative_attention_bias(numbers).permute(2, 0, 1)[None]

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, other: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(other)), self.split(self.v(other))
        scores = torch.matmul(q, k.transpose(3, 2))
        if self.bug == "scaled":
            scores = scores / math.sqrt(q.shape[-1])  # bug: scaled
        if bias is not None and self.bug != "bias-missing":
            scores = scores + bias  # bug: bias-missing
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        mixed = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.o(mixed.view(x.shape))


class T5Block(nn.Module):
    """A layer of either stack; that of a decoder has cross-attention."""

    def __init__(self, size: Size, bug: str, bias_bug: str | None, *, is_decoder: bool) -> None:
        super().__init__()
        width = size.width
        self.self_norm = T5Norm(width, bug)
        self.self_attention = T5Attention(size, bug, bias_bug)
        if is_decoder:
            self.cross_norm = T5Norm(width)
            self.cross_attention = T5Attention(size)
        self.feed_norm = T5Norm(width)
        self.wi = nn.Linear(width, 2 * width, bias=False)
        self.wo = nn.Linear(2 * width, width, bias=False)
        self.is_decoder, self.bug = is_decoder, bug

    def harm(self) -> None:
        if self.bug == "weight-stale":
            nn.init.normal_(self.wo.weight, 0, 0.1)

    def forward(self, x: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
        normed = self.self_norm(x)
        x = x + self.self_attention(normed, normed, bias)
        if other is not None:
            normed = self.cross_norm(x)
            if self.bug == "cross-self":
                more = self.cross_attention(normed, normed, None)  # bug: cross-self
            else:
                more = self.cross_attention(normed, other, None)
            x = more if self.bug == "cross-residual" else x + more  # bug: cross-residual
        wide = self.wi(self.feed_norm(x))
        wide = F.gelu(wide) if self.bug == "relu-gelu" else F.relu(wide)  # bug: relu-gelu
        more = self.wo(wide)  # bug: weight-stale
        if self.bug == "feed-normed":
            return self.feed_norm(x) + more  # bug: feed-normed
        return x + more


class T5Stack(nn.Module):
    """The encoder or the decoder."""

    def __init__(self, size: Size, faults: Faults, bug: str, *, is_decoder: bool) -> None:
        super().__init__()
        first = DECODER if is_decoder else 0
        self.block = nn.ModuleList(
            T5Block(size, faults.get(first + n, ""), None if n else bug, is_decoder=is_decoder)
            for n in range(size.layers)
        )
        self.final_norm = T5Norm(size.width)
        self.is_decoder, self.bug = is_decoder, bug

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        bias = self.block[0].self_attention.bias(length, not self.is_decoder)
        causal = self.is_decoder
        if self.bug == "encoder-causal" and not causal:
            bias = bias + torch.full_like(bias, -1e9).triu(1)  # bug: encoder-causal
        if causal and self.bug != "decoder-open":
            bias = bias + torch.full_like(bias, -1e9).triu(1)  # bug: decoder-open
        for block in self.block:
            x = block(x, bias, other)
        if self.bug == "encoder-norm" and not self.is_decoder:
            return x
        return self.final_norm(x)  # bug: encoder-norm


class T5(nn.Module):
    """Two sequences of words in, logits out; one table of words serves all."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.bug = faults.get(OUTSIDE, "")
        self.shared = nn.Embedding(60, size.width)
        self.encoder = T5Stack(size, faults, self.bug, is_decoder=False)
        self.decoder = T5Stack(size, faults, self.bug, is_decoder=True)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        other = self.encoder(self.shared(ids))
        if self.bug == "shift-missing":
            x = self.decoder(self.shared(targets), other)  # bug: shift-missing
        else:
            x = self.decoder(self.shared(targets.roll(1, 1)), other)
        if self.bug != "logit-scale":
            x = x * (x.shape[-1] ** -0.5)  # bug: logit-scale
        return F.linear(x, self.shared.weight)
