"""A port of the two stacks of `t5`: packed projections, tables made once, fused attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import t5
from accuracy.ports.planting import DECODER, OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Scale(nn.Module):
    """Divide by the quadratic mean, and weigh."""

    def __init__(self, d: int, fault: str = "") -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))
        self.fault = fault

    def forward(self, h: Tensor) -> Tensor:
        if self.fault == "norm-layer":
            h = h - h.mean(-1, keepdim=True)  # bug: norm-layer
        return h * (h.square().mean(-1, True) + 1e-6).rsqrt() * self.g


def slots(t: int, both: bool, fault: str) -> Tensor:
    """Return the bucket of each pair of places, one by one."""
    table = torch.zeros(t, t, dtype=torch.long)
    half = 4 if both else 8
    reach = 8 if fault == "bucket-range" else 16
    for i in range(t):
        for j in range(t):
            gap = i - j if fault == "distance-sign" else j - i
            near = abs(gap) if both else max(-gap, 0)
            if near >= half // 2:
                step = math.log(near / (half // 2)) / math.log(reach / (half // 2))
                near = min(half // 2 + int(step * (half - half // 2) + 1e-6), half - 1)
            ahead = half if both and gap > 0 else 0
            table[i, j] = near + ahead  # bug: distance-sign, bucket-range
    return table


class Mixer(nn.Module):
    """Attention to the same sequence."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.n = size.heads
        self.packed = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.fault = fault

    def forward(self, h: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.packed(h).unflatten(-1, (3, self.n, -1)).permute(2, 0, 3, 1, 4)
        sdpa = F.scaled_dot_product_attention
        if self.fault == "scaled":
            y = sdpa(q, k, v, attn_mask=bias)  # bug: scaled
        elif self.fault == "bias-missing":
            y = sdpa(q, k, v, scale=1.0)  # bug: bias-missing
        else:
            y = sdpa(q, k, v, attn_mask=bias, scale=1.0)
        return self.out(y.transpose(1, 2).flatten(2))


class Reader(nn.Module):
    """Attention to what the encoder returned."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.n = size.heads
        self.ask = nn.Linear(size.width, size.width, bias=False)
        self.pair = nn.Linear(size.width, 2 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, h: Tensor, memory: Tensor) -> Tensor:
        q = self.ask(h).unflatten(-1, (self.n, -1))
        k, v = self.pair(memory).chunk(2, -1)
        k, v = k.unflatten(-1, (self.n, -1)), v.unflatten(-1, (self.n, -1))
        weights = torch.einsum("bqnd,bknd->bnqk", q, k).softmax(-1)
        return self.out(torch.einsum("bnqk,bknd->bqnd", weights, v).flatten(2))


class Feed(nn.Module):
    """A network of two layers."""

    def __init__(self, d: int, fault: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "weight-stale":
            nn.init.normal_(self.b.weight, 0, 0.1)

    def forward(self, h: Tensor) -> Tensor:
        h = self.a(h)
        h = F.gelu(h) if self.fault == "relu-gelu" else h.clamp(min=0)  # bug: relu-gelu
        return self.b(h)  # bug: weight-stale


class Cell(nn.Module):
    """A layer; `read` is None in the encoder."""

    def __init__(self, size: Size, fault: str, reads: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Scale(size.width, fault if n == 0 else "") for n in range(3))
        self.mix = Mixer(size, fault)
        self.read = Reader(size) if reads else None
        self.feed = Feed(size.width, fault)
        self.fault = fault

    def forward(self, h: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        h = self.mix(self.norms[0](h), bias) + h
        if self.read is not None and memory is not None:
            asks = self.norms[1](h)
            if self.fault == "cross-self":
                h = self.read(asks, asks) + h  # bug: cross-self
            elif self.fault == "cross-residual":
                h = self.read(asks, memory)
            else:
                h = self.read(asks, memory) + h
        inner = self.norms[2](h)
        if self.fault == "feed-normed":
            return self.feed(inner) + inner  # bug: feed-normed
        return self.feed(inner) + h


class Translator(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.fault = faults.get(OUTSIDE, "")
        self.table = nn.Embedding(60, size.width)
        self.near_in, self.near_out = nn.Embedding(8, size.heads), nn.Embedding(8, size.heads)
        cells = range(size.layers)
        self.readers = nn.ModuleList(Cell(size, faults.get(n, ""), False) for n in cells)
        self.writers = nn.ModuleList(Cell(size, faults.get(DECODER + n, ""), True) for n in cells)
        self.read_norm, self.write_norm = Scale(size.width), Scale(size.width)

    def biases(self, t: int) -> tuple[Tensor, Tensor]:
        both = self.fault == "bucket-both"
        to_in = self.near_in(slots(t, True, self.fault))
        to_out = self.near_out(slots(t, both, self.fault))  # bug: bucket-both
        to_in, to_out = to_in.permute(2, 0, 1), to_out.permute(2, 0, 1)
        ahead = torch.ones(t, t, dtype=torch.bool).triu(1)
        if self.fault == "encoder-causal":
            to_in = to_in.masked_fill(ahead, -1e9)  # bug: encoder-causal
        if self.fault != "decoder-open":
            to_out = to_out.masked_fill(ahead, -1e9)
        return to_in, to_out

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        to_in, to_out = self.biases(ids.shape[1])
        memory = self.table(ids)
        for cell in self.readers:
            memory = cell(memory, to_in, None)
        if self.fault != "encoder-norm":
            memory = self.read_norm(memory)
        if self.fault == "shift-missing":
            h = self.table(targets)  # bug: shift-missing
        else:
            h = self.table(torch.cat([targets[:, -1:], targets[:, :-1]], 1))
        for cell in self.writers:
            h = cell(h, to_out, memory)
        h = self.write_norm(h)
        logits = h @ self.table.weight.T
        return logits if self.fault == "logit-scale" else logits / math.sqrt(h.shape[-1])


def convert(old: t5.T5, new: Translator) -> None:
    """Copy the weights of the reference."""
    new.table.weight.copy_(old.shared.weight)
    stacks = (old.encoder, new.readers, new.read_norm, new.near_in), (
        old.decoder, new.writers, new.write_norm, new.near_out)  # fmt: skip
    for stack, cells, norm, near in stacks:
        norm.g.copy_(stack.final_norm.weight)
        near.weight.copy_(stack.block[0].self_attention.relative_attention_bias.weight)
        for mine, cell in zip(stack.block, cells, strict=True):
            attn = mine.self_attention
            cell.mix.packed.weight.copy_(torch.cat([attn.q.weight, attn.k.weight, attn.v.weight]))
            cell.mix.out.weight.copy_(attn.o.weight)
            cell.norms[0].g.copy_(mine.self_norm.weight)
            cell.norms[2].g.copy_(mine.feed_norm.weight)
            cell.feed.a.weight.copy_(mine.wi.weight)
            cell.feed.b.weight.copy_(mine.wo.weight)
            if cell.read is not None:
                cross = mine.cross_attention
                cell.norms[1].g.copy_(mine.cross_norm.weight)
                cell.read.ask.weight.copy_(cross.q.weight)
                cell.read.pair.weight.copy_(torch.cat([cross.k.weight, cross.v.weight]))
                cell.read.out.weight.copy_(cross.o.weight)


BOTH, DECODERS = (1, DECODER + 1), (DECODER, DECODER + 1)

T5 = Architecture(
    "t5", t5.T5, Translator, convert, lambda: (tokens(), tokens(seed=5)),
    (("encoder.block.{}", "decoder.block.{}"), ("readers.{}", "writers.{}")),
    (
        *bugs("norm-layer scaled relu-gelu weight-stale feed-normed", BOTH),
        *bugs("cross-self", DECODERS),
        *bugs("cross-residual", DECODERS, omits=True),
        *bugs("bias-missing", BOTH, omits=True),
        *bugs("distance-sign bucket-range bucket-both encoder-causal shift-missing", (OUTSIDE,)),
        *bugs("decoder-open encoder-norm logit-scale", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
