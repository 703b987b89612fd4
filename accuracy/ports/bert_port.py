"""A port of the encoder of `bert`: one input projection, a boolean mask, fused attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import bert
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class EncoderLayer(nn.Module):
    """A layer whose parameters are its own."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        self.n = size.heads
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * d, d))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d))
        self.out_proj = nn.Linear(d, d)
        self.linear1, self.linear2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        eps = 1e-2 if fault == "norm-eps" else 1e-12
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=eps), nn.LayerNorm(d, eps=1e-12)
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "bias-stale":
            self.in_proj_bias[self.norm1.bias.numel() :].zero_()
        if self.fault == "norm-stale":
            self.norm2.weight.fill_(1.0)

    def attend(self, src: Tensor, keep: Tensor) -> Tensor:
        b, s, d = src.shape
        n = 2 * self.n if self.fault == "head-count" else self.n
        packed = F.linear(src, self.in_proj_weight, self.in_proj_bias)  # bug: bias-stale
        packed = packed.view(b, s, 3, n, d // n)  # bug: head-count
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        if self.fault == "mask-missing":
            keep = torch.ones_like(keep)
        if self.fault == "causal":
            keep = keep & torch.ones(s, s, dtype=torch.bool).tril()  # bug: causal
        sdpa = F.scaled_dot_product_attention
        if self.fault == "scale-twice":
            out = sdpa(q, k, v, attn_mask=keep, scale=n / d)  # bug: scale-twice
        elif self.fault == "mask-soft":
            out = sdpa(q, k, v, attn_mask=(keep.to(q.dtype) - 1))  # bug: mask-soft
        elif self.fault == "softmax-dim":
            scores = (q @ k.mT) * (n / d) ** 0.5
            scores = scores.masked_fill(~keep, -1e9)
            out = scores.softmax(1) @ v  # bug: softmax-dim
        else:
            out = sdpa(q, k, v, attn_mask=keep)  # bug: mask-missing
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def forward(self, src: Tensor, keep: Tensor) -> Tensor:
        if self.fault == "norm-before":
            src = src + self.norm1(self.attend(src, keep))  # bug: norm-before
        else:
            src = self.norm1(src + self.attend(src, keep))  # bug: norm-eps
        inner = self.linear1(src)
        if self.fault == "gelu-tanh":
            inner = F.gelu(inner, approximate="tanh")  # bug: gelu-tanh
        else:
            inner = F.gelu(inner)
        out = self.linear2(inner)
        if self.fault != "residual-missing":
            out = src + out
        return self.norm2(out)  # bug: norm-stale


class Encoder(nn.Module):
    """The whole model; embeddings are looked up at once."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d = size.width
        self.words, self.kinds = nn.Embedding(60, d), nn.Embedding(2, d)
        self.register_parameter("where", nn.Parameter(torch.zeros(20, d)))
        self.norm = nn.LayerNorm(d, eps=1e-12)
        self.stack = nn.ModuleList(
            EncoderLayer(size, faults.get(n, "")) for n in range(size.layers)
        )
        self.to_pooled = nn.Linear(d, d)
        self.fault = faults.get(OUTSIDE, "")

    def embed(self, ids: Tensor, kinds: Tensor) -> Tensor:
        first = 2 if self.fault == "place-offset" else 0
        places = self.where[first : first + ids.shape[1]]
        if self.fault == "segment-zero":
            kinds = kinds * 0  # bug: segment-zero
        if self.fault == "segment-missing":
            total = self.words(ids) + places
        else:
            total = self.words(ids) + self.kinds(kinds) + places  # bug: place-offset
        return total if self.fault == "embed-norm" else self.norm(total)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
        keep = mask.bool()[:, None, None, :]
        h = self.embed(ids, kinds)
        for layer in self.stack:
            h = layer(h, keep)
        at = -1 if self.fault == "pool-last" else 0
        pooled = self.to_pooled(h.select(1, at))  # bug: pool-last
        return pooled if self.fault == "pool-tanh" else pooled.tanh()


def convert(old: bert.Bert, new: Encoder) -> None:
    """Copy the weights of the reference."""
    first = old.embeddings
    new.words.weight.copy_(first.word_embeddings.weight)
    new.where.copy_(first.position_embeddings.weight)
    new.kinds.weight.copy_(first.token_type_embeddings.weight)
    new.norm.load_state_dict(first.LayerNorm.state_dict())
    new.to_pooled.load_state_dict(old.pooler.state_dict())
    for mine, layer in zip(old.layer, new.stack, strict=True):
        parts = mine.attention.query, mine.attention.key, mine.attention.value
        layer.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        layer.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        layer.out_proj.load_state_dict(mine.attention_output.state_dict())
        layer.linear1.load_state_dict(mine.intermediate.state_dict())
        layer.linear2.load_state_dict(mine.output.state_dict())
        layer.norm1.load_state_dict(mine.attention_norm.state_dict())
        layer.norm2.load_state_dict(mine.output_norm.state_dict())


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return words, segments and a mask with padding in the second row."""
    segments = torch.tensor([[0] * 7 + [1] * 5, [0] * 4 + [1] * 8])
    mask = torch.tensor([[1] * 12, [1] * 9 + [0] * 3])
    return tokens(), segments, mask


BERT = Architecture(
    "bert", bert.Bert, Encoder, convert, inputs, (("layer.{}",), ("stack.{}",)),
    (
        *bugs("head-count bias-stale scale-twice causal mask-soft softmax-dim norm-eps"),
        *bugs("norm-before gelu-tanh norm-stale"),
        *bugs("norm-eps-small", cross=False),
        *bugs("mask-missing residual-missing", omits=True),
        *bugs("place-offset segment-zero pool-last", (OUTSIDE,)),
        *bugs("segment-missing embed-norm pool-tanh", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
