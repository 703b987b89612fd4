"""A network that removes noise: steps down and up with skips, times, group norms, attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


def time_features(times: Tensor, width: int, bug: str) -> Tensor:
    """Return sines and cosines of times."""
    half = width // 2
    speeds = torch.exp(-math.log(10000) * torch.arange(half).float() / half)
    angles = times[:, None].float() * speeds[None]
    if bug == "time-order":
        return torch.cat([angles.sin(), angles.cos()], dim=-1)  # bug: time-order
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResBlock(nn.Module):
    """Two convolutions; the time is added between them."""

    def __init__(self, inner: int, outer: int, bug: str) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inner, eps=1e-2 if bug == "norm-eps" else 1e-5)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.time_emb = nn.Linear(32, outer)
        self.norm2 = nn.GroupNorm(8 if bug == "group-count" else 4, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1)
        self.bug = bug

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.norm1(x)  # bug: norm-eps
        h = self.conv1(F.silu(h))
        emb = self.time_emb(time if self.bug == "time-raw" else F.silu(time))  # bug: time-raw
        if self.bug == "time-product":
            h = h * emb[:, :, None, None]  # bug: time-product
        elif self.bug != "time-missing":
            h = h + emb[:, :, None, None]  # bug: time-missing
        h = self.norm2(h)  # bug: group-count
        h = F.relu(h) if self.bug == "silu-relu" else F.silu(h)  # bug: silu-relu
        h = self.conv2(h)
        if self.bug == "skip-plain":
            return h + F.pad(x, (0, 0, 0, 0, 0, h.shape[1] - x.shape[1]))  # bug: skip-plain
        return h + self.skip(x)


class SpatialAttention(nn.Module):
    """Attention among pixels."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.q, self.k, self.v, self.proj = (nn.Conv2d(width, width, 1) for _ in range(4))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, wide = x.shape
        h = self.norm(x)
        q, k, v = self.q(h).flatten(2), self.k(h).flatten(2), self.v(h).flatten(2)
        weights = torch.bmm(q.permute(0, 2, 1), k)
        if self.bug != "attention-scale":
            weights = weights * width**-0.5  # bug: attention-scale
        weights = torch.softmax(weights, dim=2)
        if self.bug == "attention-turned":
            h = torch.bmm(v, weights)  # bug: attention-turned
        else:
            h = torch.bmm(v, weights.permute(0, 2, 1))
        return x + self.proj(h.view(batch, width, height, wide))


class Level(nn.Module):
    """A block and attention."""

    def __init__(self, inner: int, outer: int, bug: str) -> None:
        super().__init__()
        self.res = ResBlock(inner, outer, bug)
        self.attn = SpatialAttention(outer, bug)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.attn(self.res(x, time))


class UNet(nn.Module):
    """Pictures and times in, noise out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        width = size.width // 2
        self.time_in, self.time_out = nn.Linear(16, 32), nn.Linear(32, 32)
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        sizes = (width, width), (width, 2 * width), (3 * width, width)
        self.levels = nn.ModuleList(Level(*pair, faults.get(n, "")) for n, pair in enumerate(sizes))
        self.norm_out = nn.GroupNorm(4, width)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor, times: Tensor) -> Tensor:
        time = time_features(times, 16, self.bug).to(image.dtype)
        time = self.time_out(F.silu(self.time_in(time)))
        first = self.levels[0](self.conv_in(image), time)
        if self.bug == "down-max":
            small = F.max_pool2d(first, 2)  # bug: down-max
        else:
            small = F.avg_pool2d(first, 2)
        deep = self.levels[1](small, time)
        if self.bug == "up-smooth":
            large = F.interpolate(deep, scale_factor=2, mode="bilinear")  # bug: up-smooth
        else:
            large = F.interpolate(deep, scale_factor=2, mode="nearest")
        if self.bug == "concat-order":
            x = torch.cat([first, large], dim=1)  # bug: concat-order
        else:
            x = torch.cat([large, first], dim=1)
        x = self.norm_out(self.levels[2](x, time))
        return self.conv_out(x if self.bug == "out-silu" else F.silu(x))  # bug: out-silu
