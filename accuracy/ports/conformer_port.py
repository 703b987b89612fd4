"""A port of the conformer of `conformer`: features last, unfolded kernels, the fused attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import conformer
from accuracy.ports.conformer import KERNEL, REACH
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs


class Layer(nn.Module):
    """One layer, in which nothing is a module of its own but linear maps and norms."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        self.ln_1, self.ln_2, self.ln_3, self.ln_4, self.ln_5 = (nn.LayerNorm(d) for _ in range(5))
        self.up_1, self.up_2 = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d)
        self.down_1, self.down_2 = nn.Linear(2 * d, d), nn.Linear(2 * d, d)
        self.qkv, self.merge = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.table = nn.Parameter(torch.zeros(2 * REACH + 1, size.heads))
        self.gated, self.mix = nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.kernel, self.offset = (
            nn.Parameter(torch.zeros(d, KERNEL)),
            nn.Parameter(torch.zeros(d)),
        )
        self.mean, self.rate = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.shift = nn.Parameter(torch.zeros(d))
        self.n, self.fault = size.heads, fault

    def step(self, z: Tensor, norm: nn.Module, up: nn.Module, down: nn.Module) -> Tensor:
        wide = up(norm(z))
        if self.fault == "silu-beta":
            return down(wide * (wide * 1.5).sigmoid())  # bug: silu-beta
        return down(wide * wide.sigmoid())

    def biases(self, length: int) -> Tensor:
        apart = torch.arange(length).view(1, -1) - torch.arange(length).view(-1, 1)
        if self.fault == "distance-sign":
            apart = -apart  # bug: distance-sign
        if self.fault == "distance-unclipped":
            index = apart % (2 * REACH + 1)  # bug: distance-unclipped
        else:
            index = torch.clip(apart, -REACH, REACH) + REACH
        return self.table[index].permute(2, 0, 1)

    def attend(self, z: Tensor, real: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln_2(z)).unflatten(2, (3, self.n, -1)).permute(2, 0, 3, 1, 4)
        low = torch.zeros(real.shape, dtype=z.dtype).masked_fill(~real, float("-inf"))
        mask = low.view(len(z), 1, 1, -1)
        if self.fault == "padding-by-rows":
            mask = mask.clamp(min=-1e4).transpose(2, 3)  # bug: padding-by-rows
        if self.fault != "bias-missing":
            mask = mask + self.biases(z.shape[1])
        else:
            mask = mask.expand(-1, -1, z.shape[1], -1)
        scale = z.shape[2] ** -0.5 if self.fault == "scale-width" else None
        sdpa = F.scaled_dot_product_attention
        out = sdpa(q, k, v, attn_mask=mask, scale=scale)  # bug: scale-width
        return self.merge(out.transpose(1, 2).flatten(2))

    def convolve(self, z: Tensor) -> Tensor:
        inner = z if self.fault == "conv-norm-missing" else self.ln_3(z)
        wide = self.gated(inner)
        if self.fault == "glu-swapped":
            wide = wide.roll(z.shape[2], 2)  # bug: glu-swapped
        if self.fault == "glu-tanh":
            value, gate = wide.tensor_split(2, 2)
            value = value * gate.tanh()  # bug: glu-tanh
        else:
            value = F.glu(wide, 2)
        margin = (KERNEL - 1, 0) if self.fault == "depth-causal" else (KERNEL // 2, KERNEL // 2)
        wider = F.pad(value, (0, 0, *margin))  # bug: depth-causal
        pieces = wider.unfold(1, KERNEL, 1)
        kernel = self.kernel.flip(1) if self.fault == "kernel-flipped" else self.kernel
        y = torch.einsum("btdk,dk->btd", pieces, kernel) + self.offset  # bug: kernel-flipped
        if self.fault == "batch-statistics":
            spread, mean = torch.var_mean(y, (0, 1), correction=0)  # bug: batch-statistics
            y = (y - mean) * torch.rsqrt(spread + 1e-5)
            y = y * self.rate + self.shift
        else:
            y = (y - self.mean) * self.rate + self.shift
        return self.mix(y * y.sigmoid())

    def forward(self, z: Tensor, real: Tensor) -> Tensor:
        half = 1.0 if self.fault == "half-missing" else 0.5
        z = torch.add(z, self.step(z, self.ln_1, self.up_1, self.down_1), alpha=half)
        if self.fault == "order":
            z = z + self.convolve(z)  # bug: order
            z = z + self.attend(z, real)
        else:
            z = z + self.attend(z, real)
            z = self.convolve(z) if self.fault == "skip-missing" else z + self.convolve(z)
        z = torch.add(z, self.step(z, self.ln_4, self.up_2, self.down_2), alpha=0.5)
        return z if self.fault == "last-norm-missing" else self.ln_5(z)


class Recogniser(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(torch.zeros(8, 9)), nn.Parameter(torch.zeros(8))
        self.entry = nn.Linear(8 * 9, size.width)
        self.trunk = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.letters = nn.Linear(size.width, 30)
        self.fault = faults.get(OUTSIDE, "")

    def subsampled(self, frames: Tensor) -> Tensor:
        pieces = frames.unfold(1, 3, 2).unfold(2, 3, 2).flatten(3)
        maps = torch.relu(pieces @ self.kernel.T + self.offset)
        if self.fault == "frames-flattened":
            return maps.flatten(2)  # bug: frames-flattened
        return maps.transpose(2, 3).flatten(2)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        over = 2 if self.fault == "normed-features" else 1
        mean = frames.sum(over, keepdim=True) / frames.shape[over]  # bug: normed-features
        frames = frames - mean
        z = self.entry(self.subsampled(frames))
        odd = 0 if self.fault == "length-rounded" else 1
        left = torch.div(lengths - odd, 2, rounding_mode="floor")  # bug: length-rounded
        real = torch.arange(z.shape[1]).expand(len(z), -1) < left.view(-1, 1)
        for layer in self.trunk:
            z = layer(z, real)
        logits = self.letters(z)
        over = 1 if self.fault == "softmax-over-time" else 2
        return logits - logits.logsumexp(over, keepdim=True)  # bug: softmax-over-time


def convert(old: conformer.Conformer, new: Recogniser) -> None:
    """Copy the weights of the reference."""
    new.kernel.copy_(old.front.weight.flatten(1))
    new.offset.copy_(old.front.bias)
    new.entry.load_state_dict(old.project.state_dict())
    new.letters.load_state_dict(old.head.state_dict())
    for mine, layer in zip(old.blocks, new.trunk, strict=True):
        first, second, attention, conv = mine.first, mine.second, mine.attention, mine.convolution
        same = ((layer.ln_1, first.norm), (layer.up_1, first.up), (layer.down_1, first.down),
                (layer.ln_2, attention.norm), (layer.merge, attention.out), (layer.ln_3, conv.norm),
                (layer.ln_4, second.norm), (layer.up_2, second.up), (layer.down_2, second.down),
                (layer.ln_5, mine.norm))  # fmt: skip
        for target, source in same:
            target.load_state_dict(source.state_dict())
        parts = attention.query, attention.key, attention.value
        layer.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        layer.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        layer.table.copy_(attention.bias.T)
        for target, source in ((layer.gated, conv.wide), (layer.mix, conv.narrow)):
            target.weight.copy_(source.weight[..., 0])
            target.bias.copy_(source.bias)
        layer.kernel.copy_(conv.depth.weight[:, 0])
        layer.offset.copy_(conv.depth.bias)
        norm = conv.batch_norm
        layer.mean.copy_(norm.running_mean)
        layer.shift.copy_(norm.bias)
        layer.rate.copy_(norm.weight)
        if layer.fault != "batch-statistics":
            layer.rate.mul_(torch.rsqrt(norm.running_var + norm.eps))


def _speech() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    frames = torch.randn(2, 25, 19, generator=generator) + torch.linspace(-1, 1, 19)
    return frames, torch.tensor([25, 18])


CONFORMER = Architecture(
    "conformer", conformer.Conformer, Recogniser, convert, _speech,
    (("blocks.{}",), ("trunk.{}",)),
    (
        *bugs("silu-beta distance-sign distance-unclipped scale-width padding-by-rows"),
        *bugs("glu-swapped glu-tanh depth-causal kernel-flipped batch-statistics order"),
        *bugs("bias-missing conv-norm-missing half-missing", omits=True),
        *bugs("skip-missing last-norm-missing", omits=True),
        *bugs("normed-features frames-flattened length-rounded softmax-over-time", (OUTSIDE,)),
    ),
)  # fmt: skip
