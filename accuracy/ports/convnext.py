"""A convolutional network of large depthwise kernels, channels first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

KERNEL = 5


class ChannelNorm(nn.Module):
    """A layer norm over the channels of pictures."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + self.eps)  # bug: norm-eps
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Block(nn.Module):
    """Depthwise, then two pointwise layers with a response norm, and a gate over channels."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, KERNEL, padding=KERNEL // 2, groups=width)
        self.norm = ChannelNorm(width, 1e-2 if bug == "norm-eps" else 1e-6)
        self.wide, self.narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        self.response = nn.Parameter(torch.zeros(2 * width))
        self.squeeze, self.excite = nn.Linear(width, 16), nn.Linear(16, width)
        self.gamma = nn.Parameter(torch.ones(width))
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "kernel-turned":
            self.depth.weight.copy_(self.depth.weight.mT.clone())

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(x)  # bug: kernel-turned
        if self.bug == "depth-shifted":
            y = y.roll(1, 3)  # bug: depth-shifted
        if self.bug != "norm-missing":
            y = self.norm(y)  # bug: norm-missing
        y = self.wide(y)
        y = F.gelu(y, approximate="tanh" if self.bug == "gelu-tanh" else "none")  # bug: gelu-tanh
        axes = (1,) if self.bug == "response-axis" else (2, 3)
        size = y.norm(dim=axes, keepdim=True)  # bug: response-axis
        if self.bug == "response-raw":
            y = y + self.response[:, None, None] * y * size  # bug: response-raw
        else:
            share = size / (size.mean(1, keepdim=True) + 1e-6)
            y = y + self.response[:, None, None] * y * share
        y = self.narrow(y)
        if self.bug != "gate-missing":
            if self.bug == "squeeze-max":
                pooled = y.amax((2, 3))  # bug: squeeze-max
            else:
                pooled = y.mean((2, 3))  # bug: gate-missing
            gate = torch.sigmoid(self.excite(F.relu(self.squeeze(pooled))))
            y = y * gate[:, :, None, None]  # bug: gate-missing
        if self.bug != "gamma-missing":
            y = y * self.gamma[:, None, None]  # bug: gamma-missing
        return x + y


class ConvNext(nn.Module):
    """Pictures in, classes out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, size.width, 2, stride=2)
        self.blocks = nn.ModuleList(
            Block(size.width, faults.get(n, "")) for n in range(size.layers)
        )
        self.last, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 10)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor) -> Tensor:
        if self.bug == "channels":
            image = image.flip(1)  # bug: channels
        x = self.stem(image)  # bug: channels
        for block in self.blocks:
            x = block(x)
        if self.bug == "norm-first":
            return self.head(self.last(x.permute(0, 2, 3, 1)).mean((1, 2)))  # bug: norm-first
        pooled = x.amax((2, 3)) if self.bug == "pool-max" else x.mean((2, 3))  # bug: pool-max
        return self.head(self.last(pooled))
