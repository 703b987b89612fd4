"""A network of pictures without attention: patches are mixed by a gate, as its paper has it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

PATCHES = 16


class SpatialGate(nn.Module):
    """Half of the channels is mixed over places and gates the other half."""

    def __init__(self, half: int, bug: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(half, eps=1e-3 if bug == "gate-eps" else 1e-5)
        self.proj = nn.Linear(PATCHES, PATCHES)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        u, v = x.chunk(2, dim=-1)
        if self.bug == "halves-swapped":
            u, v = v, u  # bug: halves-swapped
        if self.bug != "gate-norm-missing":
            v = self.norm(v)  # bug: gate-norm-missing, gate-eps, halves-swapped
        v = v.transpose(1, 2)
        if self.bug == "places-turned":
            v = F.linear(v, self.proj.weight.T, self.proj.bias)  # bug: places-turned
        elif self.bug == "place-bias":
            v = F.linear(v, self.proj.weight)
        else:
            v = self.proj(v)  # bug: place-bias
        v = v.transpose(1, 2)
        if self.bug != "gate-one":
            v = v + 1  # bug: gate-one
        return u + v if self.bug == "gate-added" else u * v  # bug: gate-added, halves-swapped


class Block(nn.Module):
    """A norm, channels up, a gate, channels down."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.up, self.down = (
            nn.Linear(size.width, 4 * size.width),
            nn.Linear(2 * size.width, size.width),
        )
        self.gate = SpatialGate(2 * size.width, bug)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        short = x
        x = self.norm(x)
        if self.bug == "short-normed":
            short = x
        how = "tanh" if self.bug == "gelu-tanh" else "none"
        x = F.gelu(self.up(x), approximate=how)  # bug: gelu-tanh
        x = self.down(self.gate(x))
        return x if self.bug == "short-missing" else x + short  # bug: short-normed, short-missing


class GatedMLP(nn.Module):
    """Pictures in, classes out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, size.width, 4, stride=4)
        self.blocks = nn.ModuleList(Block(size, faults.get(n, "")) for n in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 10)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        if self.bug == "pool-first":
            return self.head(self.norm(x.mean(1)))  # bug: pool-first
        x = self.norm(x)
        x = x.amax(1) if self.bug == "pool-max" else x.mean(1)  # bug: pool-max
        if self.bug == "head-bias":
            return F.linear(x, self.head.weight)
        return self.head(x)  # bug: head-bias
