"""A small network of pictures: depthwise convolutions, norms of the batch, channels weighed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Squeeze(nn.Module):
    """Weigh channels by their means."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        axes, is_max = (2, 3), self.bug == "squeeze-max"
        s = x.amax(axes, True) if is_max else x.mean(axes, True)  # bug: squeeze-max
        s = self.down(s)
        s = s if self.bug == "squeeze-linear" else F.silu(s)  # bug: squeeze-linear
        s = self.up(s)
        if self.bug == "squeeze-hard":
            return x * F.hardsigmoid(s)  # bug: squeeze-hard
        return x * torch.sigmoid(s)


class Block(nn.Module):
    """Wider, along, weighed, narrower."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        c = size.width // 2
        eps = 1e-1 if bug == "norm-eps" else 1e-3
        self.expand, self.bn1 = nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c, eps=eps)
        self.along = nn.Conv2d(4 * c, 4 * c, 3, padding=1, groups=4 * c, bias=False)
        self.bn2, self.squeeze = nn.BatchNorm2d(4 * c, eps=1e-3), Squeeze(4 * c, bug)
        self.project, self.bn3 = nn.Conv2d(4 * c, c, 1, bias=False), nn.BatchNorm2d(c, eps=1e-3)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.bn1(self.expand(x)))  # bug: norm-eps
        mode = "reflect" if self.bug == "pad-mirrored" else "constant"
        y = F.pad(y, (1, 1, 1, 1), mode=mode)  # bug: pad-mirrored
        y = self.bn2(F.conv2d(y, self.along.weight, groups=y.shape[1]))
        y = F.relu6(y) if self.bug == "relu6" else F.silu(y)  # bug: relu6
        if self.bug != "squeeze-missing":
            y = self.squeeze(y)  # bug: squeeze-missing
        y = self.bn3(self.project(y))
        if self.bug == "act-last":
            y = F.silu(y)  # bug: act-last
        return y if self.bug == "short-missing" else x + y  # bug: short-missing


class Mobile(nn.Module):
    """Pictures in, classes out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        c, self.bug = size.width // 2, faults.get(OUTSIDE, "")
        self.stem, self.bn = nn.Conv2d(3, c, 3, stride=2, bias=False), nn.BatchNorm2d(c, eps=1e-3)
        self.blocks = nn.ModuleList(Block(size, faults.get(n, "")) for n in range(size.layers))
        self.head = nn.Linear(c, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = image
        if self.bug != "centre-missing":
            x = (x - 0.45) / 0.22  # bug: centre-missing
        if self.bug == "pad-both":
            x = F.pad(x, (1, 0, 1, 0))  # bug: pad-both
        else:
            x = F.pad(x, (0, 1, 0, 1))
        x = F.silu(self.bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        if self.bug == "head-temper":
            x = x * 2  # bug: head-temper
        return self.head(x).log_softmax(1)
