"""A residual network of convolutions and batch norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut; a stride halves the picture."""

    def __init__(self, inner: int, outer: int, stride: int, bug: str) -> None:
        super().__init__()
        middle = outer // 2
        self.conv1 = nn.Conv2d(inner, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle, eps=1e-2 if bug == "norm-eps" else 1e-5)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        if stride > 1 or inner != outer:
            self.downsample: nn.Module | None = nn.Conv2d(inner, outer, 1, stride, bias=False)
            self.downsample_bn = nn.BatchNorm2d(outer)
        else:
            self.downsample = None
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "kernel-turned":
            self.conv2.weight.copy_(self.conv2.weight.transpose(2, 3).clone())
        if self.bug == "variance-root":
            self.bn3.running_var.sqrt_()

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x)
        out = self.bn1(out)  # bug: norm-eps
        if self.bug != "relu-missing":
            out = F.relu(out)  # bug: relu-missing
        conv = self.conv2
        if self.bug == "padding":
            out = F.pad(out, (1, 1, 1, 1), mode="replicate")  # bug: padding
            out = F.conv2d(out, conv.weight, None, conv.stride, 0, 1, conv.groups)  # bug: padding
        elif self.bug == "dilation":
            out = F.conv2d(out, conv.weight, None, conv.stride, 2, 2, conv.groups)  # bug: dilation
        else:
            out = self.conv2(out)  # bug: kernel-turned
        if self.bug == "shuffle":
            out = out.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)  # bug: shuffle
        if self.bug == "norm-train":
            weights = self.bn2.weight, self.bn2.bias
            out = F.batch_norm(out, None, None, *weights, True)  # bug: norm-train
        else:
            out = self.bn2(out)
        out = F.leaky_relu(out, 0.1) if self.bug == "relu-leaky" else F.relu(out)  # bug: relu-leaky
        out = self.conv3(out)
        if self.bug != "norm-missing":
            out = self.bn3(out)  # bug: norm-missing, variance-root
        way = x
        if self.downsample is not None:
            way = self.downsample(x)
            if self.bug != "shortcut-norm":
                way = self.downsample_bn(way)  # bug: shortcut-norm
        if self.bug == "relu-early":
            return way + F.relu(out)  # bug: relu-early
        if self.bug != "shortcut-missing":
            out = out + way  # bug: shortcut-missing
        return F.relu(out)


class ResNet(nn.Module):
    """Pictures in, classes out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        width = size.width
        self.conv1 = nn.Conv2d(3, width // 2, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.blocks = nn.ModuleList(
            Bottleneck(
                width // 2 if n == 0 else width, width, 2 if n == 0 else 1, faults.get(n, "")
            )
            for n in range(size.layers)
        )
        self.fc = nn.Linear(width * 4, 10)
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]), persistent=False)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor) -> Tensor:
        image = image.flip(1) if self.bug == "channels" else image  # bug: channels
        if self.bug != "input-mean":
            image = image - self.mean.view(1, 3, 1, 1)  # bug: input-mean
        x = F.relu(self.bn1(self.conv1(image)))
        if self.bug == "pool-average":
            x = F.avg_pool2d(x, 3, 2, 1)  # bug: pool-average
        else:
            x = F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        if self.bug == "pool-max":
            x = F.adaptive_max_pool2d(x, 2)  # bug: pool-max
        else:
            x = F.adaptive_avg_pool2d(x, 2)
        if self.bug == "flatten-order":
            x = x.permute(0, 2, 3, 1).flatten(1)  # bug: flatten-order
        else:
            x = torch.flatten(x, 1)
        return self.fc(x)
