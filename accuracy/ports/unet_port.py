"""A port of the network of `unet`: pixels as rows, norms written out, fused attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import unet
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture


class Groups(nn.Module):
    """A group norm, written out."""

    def __init__(self, channels: int, eps: float = 1e-5, count: int = 4) -> None:
        super().__init__()
        self.gain, self.shift = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )
        self.eps, self.count = eps, count

    def forward(self, p: Tensor) -> Tensor:
        parts = p.reshape(p.shape[0], self.count, -1)  # bug: group-count
        var, mean = torch.var_mean(parts, -1, correction=0, keepdim=True)
        parts = (parts - mean) / torch.sqrt(var + self.eps)  # bug: norm-eps
        return parts.view_as(p) * self.gain[:, None, None] + self.shift[:, None, None]


class Stage(nn.Module):
    """Convolutions and attention of one level."""

    def __init__(self, inner: int, outer: int, fault: str) -> None:
        super().__init__()
        self.before = Groups(inner, 1e-2 if fault == "norm-eps" else 1e-5)
        self.between = Groups(outer, count=8 if fault == "group-count" else 4)
        self.one, self.two = (
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.Conv2d(outer, outer, 3, padding=1),
        )
        self.when, self.side = nn.Linear(32, outer), nn.Linear(inner, outer)
        self.calm = Groups(outer)
        self.qkv, self.out = nn.Linear(outer, 3 * outer), nn.Linear(outer, outer)
        self.fault = fault

    def forward(self, p: Tensor, moment: Tensor) -> Tensor:
        y = self.before(p)
        y = self.one(y * torch.sigmoid(y))
        moment = moment if self.fault == "time-raw" else F.silu(moment)
        added = self.when(moment).unflatten(-1, (-1, 1, 1))  # bug: time-raw
        if self.fault == "time-product":
            y = y * added  # bug: time-product
        elif self.fault != "time-missing":
            y = y + added
        y = self.between(y)
        y = y.clamp(min=0) if self.fault == "silu-relu" else y * torch.sigmoid(y)  # bug: silu-relu
        y = self.two(y)
        if self.fault == "skip-plain":
            y = y + F.pad(p, (0, 0, 0, 0, 0, y.shape[1] - p.shape[1]))  # bug: skip-plain
        else:
            y = y + self.side(p.movedim(1, -1)).movedim(-1, 1)
        return self.look(y)

    def look(self, y: Tensor) -> Tensor:
        pixels = self.calm(y).flatten(2).mT
        q, k, v = self.qkv(pixels).chunk(3, -1)
        if self.fault == "attention-turned":
            weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            seen = weights.mT @ v  # bug: attention-turned
        else:
            scale = 1.0 if self.fault == "attention-scale" else None
            seen = F.scaled_dot_product_attention(q, k, v, scale=scale)  # bug: attention-scale
        return y + self.out(seen).mT.unflatten(-1, y.shape[-2:])


class Denoiser(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        c = size.width // 2
        self.clock = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.start = nn.Conv2d(3, c, 3, padding=1)
        sizes = (c, c), (c, 2 * c), (3 * c, c)
        self.stages = nn.ModuleList(Stage(*pair, faults.get(n, "")) for n, pair in enumerate(sizes))
        self.end_norm, self.end = Groups(c), nn.Conv2d(c, 3, 3, padding=1)
        self.fault = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor, times: Tensor) -> Tensor:
        speeds = 10000.0 ** (-torch.arange(8) / 8)
        turns = torch.outer(times.float(), speeds)
        waves = [turns.cos(), turns.sin()]
        if self.fault == "time-order":
            waves = waves[::-1]
        moment = self.clock(torch.cat(waves, 1).to(image.dtype))  # bug: time-order
        top = self.stages[0](self.start(image), moment)
        b, c, h, w = top.shape
        parts = top.view(b, c, h // 2, 2, w // 2, 2)
        pool = parts.amax if self.fault == "down-max" else parts.mean
        low = self.stages[1](pool((3, 5)), moment)  # bug: down-max
        if self.fault == "up-smooth":
            wide = F.interpolate(low, scale_factor=2, mode="bilinear")  # bug: up-smooth
        else:
            wide = low.repeat_interleave(2, -1).repeat_interleave(2, -2)
        both = (top, wide) if self.fault == "concat-order" else (wide, top)
        y = self.stages[2](torch.cat(both, 1), moment)  # bug: concat-order
        y = self.end_norm(y)
        return self.end(y if self.fault == "out-silu" else F.silu(y))


def norm(old: nn.GroupNorm, new: Groups) -> None:
    """Copy a group norm."""
    new.gain.copy_(old.weight)
    new.shift.copy_(old.bias)


def pixelwise(old: list[nn.Conv2d], new: nn.Linear) -> None:
    """Copy convolutions of one pixel."""
    new.weight.copy_(torch.cat([conv.weight.flatten(1) for conv in old]))
    new.bias.copy_(torch.cat([conv.bias for conv in old if conv.bias is not None]))


def convert(old: unet.UNet, new: Denoiser) -> None:
    """Copy the weights of the reference."""
    new.clock[0].load_state_dict(old.time_in.state_dict())
    new.clock[2].load_state_dict(old.time_out.state_dict())
    new.start.load_state_dict(old.conv_in.state_dict())
    new.end.load_state_dict(old.conv_out.state_dict())
    norm(old.norm_out, new.end_norm)
    for mine, stage in zip(old.levels, new.stages, strict=True):
        norm(mine.res.norm1, stage.before)
        norm(mine.res.norm2, stage.between)
        norm(mine.attn.norm, stage.calm)
        stage.one.load_state_dict(mine.res.conv1.state_dict())
        stage.two.load_state_dict(mine.res.conv2.state_dict())
        stage.when.load_state_dict(mine.res.time_emb.state_dict())
        pixelwise([mine.res.skip], stage.side)
        pixelwise([mine.attn.q, mine.attn.k, mine.attn.v], stage.qkv)
        pixelwise([mine.attn.proj], stage.out)


UNET = Architecture(
    "unet", unet.UNet, Denoiser, convert, lambda: (picture(), torch.tensor([3, 170])),
    (("levels.{}",), ("stages.{}",)),
    (
        *bugs("norm-eps time-raw time-product group-count silu-relu attention-turned"),
        *bugs("skip-plain"),
        *bugs("time-missing attention-scale", omits=True),
        *bugs("time-order down-max up-smooth concat-order", (OUTSIDE,)),
        *bugs("out-silu", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
