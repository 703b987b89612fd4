"""A port of the decoder of `llama`: pairs rotated as complex numbers, fused projections."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import llama
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Norm(nn.Module):
    """Scale features to a mean square of one."""

    def __init__(self, dim: int, fault: str = "") -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.fault = fault

    def forward(self, h: Tensor) -> Tensor:
        eps = 1e-2 if self.fault == "norm-eps" else 1e-5
        if self.fault == "norm-mean":
            h = h - h.mean(dim=-1, keepdim=True)  # bug: norm-mean
        gain = (h * h).mean(dim=-1, keepdim=True).add(eps).sqrt()  # bug: norm-eps
        if self.fault == "norm-plus-one":
            return (h / gain) * (self.scale + 1.0)  # bug: norm-plus-one
        return self.scale * (h / gain)


def turns(dim: int, length: int, fault: str) -> Tensor:
    """Return unit complex numbers for each position and pair of features."""
    base = 500.0 if fault == "rope-theta" else 10000.0
    power = torch.arange(0, dim, 2)[: dim // 2].float() / dim
    freqs = base ** (-power)  # bug: rope-theta
    steps = torch.arange(length, dtype=torch.float32)
    if fault == "rope-scaling":
        steps = steps * 0.25  # bug: rope-scaling
    angles = steps[:, None] * freqs[None, :]
    if fault == "rope-sign":
        angles = angles.neg()  # bug: rope-sign
    return torch.polar(torch.ones_like(angles), angles)


def turned(x: Tensor, by: Tensor, fault: str) -> Tensor:
    """Rotate (batch, time, heads, features)."""
    if fault == "rope-layout":
        pairs = torch.complex(*x.float().chunk(2, dim=-1))  # bug: rope-layout
        moved = torch.view_as_real(pairs * by[None, :, None, :])
        return moved.transpose(-1, -2).flatten(3).to(x.dtype)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * by[None, :, None, :]).flatten(3).to(x.dtype)


class SelfAttention(nn.Module):
    """Grouped attention with one projection for queries, keys and values."""

    def __init__(self, size: Size, fault: str = "") -> None:
        super().__init__()
        self.n_q, self.n_kv, self.dim = size.heads, size.heads // 2, size.width // size.heads
        self.wqkv = nn.Linear(size.width, (self.n_q + 2 * self.n_kv) * self.dim, bias=False)
        self.wo = nn.Linear(size.width, size.width, bias=False)
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "weight-stale":
            nn.init.normal_(self.wo.weight, 0, 0.1)
        if self.fault == "weight-transposed":
            self.wo.weight.copy_(self.wo.weight.T.clone())

    def forward(self, h: Tensor) -> Tensor:
        b, t, d = h.shape
        packed = self.wqkv(h)  # bug: rope-weights
        sizes = [self.n_q * self.dim, self.n_kv * self.dim, self.n_kv * self.dim]
        q, k, v = (z.view(b, t, -1, self.dim) for z in packed.split(sizes, dim=-1))
        by = turns(self.dim, t, self.fault)
        q = turned(q, by, self.fault)
        if self.fault == "rope-shift":
            by = by.roll(1, 0)  # bug: rope-shift
        if self.fault != "rope-missing":
            k = turned(k, by, self.fault)
        k, v = self.spread(k), self.spread(v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = self.attend(q, k, v, d, t)
        if self.fault != "heads-merged":
            y = y.transpose(1, 2)
        y = y.reshape(b, t, d)  # bug: heads-merged
        return self.wo(y)  # bug: weight-stale, weight-transposed

    def spread(self, z: Tensor) -> Tensor:
        b, t, n, dim = z.shape
        copies = self.n_q // self.n_kv
        if self.fault == "gqa-tile":
            return z[:, :, None].expand(b, t, copies, n, dim).flatten(2, 3)  # bug: gqa-tile
        return z[:, :, :, None].expand(b, t, n, copies, dim).flatten(2, 3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, width: int, length: int) -> Tensor:
        sdpa = F.scaled_dot_product_attention
        scale = {"scale": width**-0.5, "scale-missing": 1.0}.get(self.fault)
        if self.fault in ("mask-shift", "window"):
            seen = torch.ones(length, length, dtype=torch.bool)
            if self.fault == "mask-shift":
                seen = seen.tril(1)  # bug: mask-shift
            else:
                seen = seen.tril() & seen.triu(-3)  # bug: window
            return sdpa(q, k, v, attn_mask=seen)  # bug: mask-shift, window
        if self.fault == "softcap":
            scores = torch.tanh(q @ k.mT * self.dim**-0.5 / 2) * 2  # bug: softcap
            scores = scores + torch.full_like(scores, float("-inf")).triu(1)
            return scores.softmax(-1) @ v
        if self.fault == "mask-missing":
            return sdpa(q, k, v)  # bug: mask-missing
        return sdpa(q, k, v, is_causal=True, scale=scale)  # bug: scale, scale-missing


class GatedNetwork(nn.Module):
    """A gated network, both inputs in one matrix."""

    def __init__(self, dim: int, fault: str = "") -> None:
        super().__init__()
        self.w13 = nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(2 * dim, dim, bias=False)
        self.fault = fault

    def forward(self, h: Tensor) -> Tensor:
        gate, up = self.w13(h).chunk(2, dim=-1)
        if self.fault == "gate-up":
            gate, up = up, gate
        if self.fault == "silu-gelu":
            return self.w2(up * F.gelu(gate))  # bug: silu-gelu
        return self.w2(up * F.silu(gate))  # bug: gate-up


class TransformerBlock(nn.Module):
    """One layer."""

    def __init__(self, size: Size, fault: str = "") -> None:
        super().__init__()
        self.attention = SelfAttention(size, fault)
        self.feed_forward = GatedNetwork(size.width, fault)
        self.attention_norm = Norm(size.width, fault)
        self.ffn_norm = Norm(size.width)
        self.fault = fault

    def forward(self, h: Tensor) -> Tensor:
        inner = self.attention_norm(h)
        out = self.attention(inner)
        if self.fault == "residual-normed":
            out = torch.add(out, inner)  # bug: residual-normed
        elif self.fault != "residual-missing":
            out = torch.add(out, h)
        if self.fault == "norm-missing":
            return out + self.feed_forward(out)
        if self.fault == "norm-reused":
            return out + self.feed_forward(self.attention_norm(out))  # bug: norm-reused
        return out + self.feed_forward(self.ffn_norm(out))


class Decoder(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(60, size.width)
        self.blocks = nn.ModuleList(
            TransformerBlock(size, faults.get(n, "")) for n in range(size.layers)
        )
        self.out_norm = Norm(size.width)
        self.output = nn.Linear(size.width, 60, bias=False)
        self.fault = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tok_embeddings(ids)
        if self.fault == "embed-scale":
            h = h * h.shape[-1] ** 0.5  # bug: embed-scale
        for block in self.blocks:
            h = block(h)
        if self.fault != "final-norm":
            h = self.out_norm(h)
        if self.fault == "head-tied":
            return h @ self.tok_embeddings.weight.T  # bug: head-tied
        return self.output(h)


def paired(weight: Tensor, heads: int) -> Tensor:
    """Put the features of each head that are rotated together next to each other."""
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def convert(old: llama.Llama, new: Decoder) -> None:
    """Copy the weights of the reference."""
    new.tok_embeddings.weight.copy_(old.embed_tokens.weight)
    new.output.weight.copy_(old.lm_head.weight)
    new.out_norm.scale.copy_(old.norm.weight)
    for mine, block in zip(old.layers, new.blocks, strict=True):
        attn = mine.self_attn
        q, k = attn.q_proj.weight, attn.k_proj.weight
        if block.fault != "rope-weights":
            q, k = paired(q, attn.heads), paired(k, attn.kv_heads)
        block.attention.wqkv.weight.copy_(torch.cat([q, k, attn.v_proj.weight]))
        block.attention.wo.weight.copy_(attn.o_proj.weight)
        both = [mine.mlp.gate_proj.weight, mine.mlp.up_proj.weight]
        block.feed_forward.w13.weight.copy_(torch.cat(both))
        block.feed_forward.w2.weight.copy_(mine.mlp.down_proj.weight)
        block.attention_norm.scale.copy_(mine.input_layernorm.weight)
        block.ffn_norm.scale.copy_(mine.post_attention_layernorm.weight)


LLAMA = Architecture(
    "llama", llama.Llama, Decoder, convert, lambda: (tokens(),), (("layers.{}",), ("blocks.{}",)),
    (
        *bugs("norm-eps norm-mean norm-plus-one rope-theta rope-scaling rope-sign rope-shift"),
        *bugs("rope-weights", same=False),
        *bugs("rope-layout gqa-tile scale mask-shift window softcap heads-merged weight-stale"),
        *bugs("weight-transposed gate-up silu-gelu residual-normed norm-reused"),
        *bugs("rope-missing scale-missing mask-missing residual-missing norm-missing", omits=True),
        *bugs("embed-scale head-tied", (OUTSIDE,)),
        *bugs("final-norm", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
