"""A port of the network of `resnet`: channels last, norms written out or folded into factors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import resnet
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture


class Affine(nn.Module):
    """A batch norm with fixed statistics, on the last axis."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.mean, self.var, self.gain, self.shift = (
            nn.Parameter(torch.ones(channels), requires_grad=False) for _ in range(4)
        )
        self.eps = eps

    def forward(self, z: Tensor) -> Tensor:
        factor = self.gain * torch.rsqrt(self.var + self.eps)  # bug: norm-eps
        return z * factor + (self.shift - self.mean * factor)  # bug: norm-eps, variance-root

    def by_batch(self, z: Tensor) -> Tensor:
        var, mean = torch.var_mean(z, (0, 1, 2), correction=0)  # bug: norm-train
        return (z - mean) / torch.sqrt(var + self.eps) * self.gain + self.shift  # bug: norm-train


class LastConv(nn.Module):
    """A convolution of (batch, rows, columns, channels)."""

    def __init__(self, inner: int, outer: int, side: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(outer, inner // groups, side, side))
        self.stride, self.side, self.groups = stride, side, groups

    def forward(self, z: Tensor) -> Tensor:
        z = z.permute(0, 3, 1, 2)
        pad = self.side // 2
        return F.conv2d(z, self.kernel, None, self.stride, pad, 1, self.groups).permute(0, 2, 3, 1)


class Unit(nn.Module):
    """One residual unit; projections of one pixel are matrix products."""

    def __init__(self, inner: int, outer: int, stride: int, fault: str) -> None:
        super().__init__()
        mid = outer // 2
        self.squeeze = nn.Linear(inner, mid, bias=False)
        self.spatial = LastConv(mid, mid, 3, stride, 2)
        self.expand = nn.Linear(mid, outer, bias=False)
        self.n1 = Affine(mid, 1e-2 if fault == "norm-eps" else 1e-5)
        self.n2, self.n3 = Affine(mid), Affine(outer)
        self.changes = stride > 1 or inner != outer
        if self.changes:
            self.side_way, self.side_norm = nn.Linear(inner, outer, bias=False), Affine(outer)
        self.stride, self.fault = stride, fault

    def harm(self) -> None:
        if self.fault == "kernel-turned":
            self.spatial.kernel.copy_(self.spatial.kernel.transpose(2, 3).clone())
        if self.fault == "variance-root":
            self.n3.var.sqrt_()

    def forward(self, z: Tensor) -> Tensor:
        y = self.n1(self.squeeze(z))
        if self.fault != "relu-missing":
            y = y.clamp_min(0)
        y = self.middle(y)
        if self.fault == "shuffle":
            y = y.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)  # bug: shuffle
        y = self.n2.by_batch(y) if self.fault == "norm-train" else self.n2(y)
        if self.fault == "relu-leaky":
            y = torch.maximum(y, 0.1 * y)  # bug: relu-leaky
        else:
            y = y.clamp_min(0)
        y = self.expand(y)
        if self.fault != "norm-missing":
            y = self.n3(y)  # bug: variance-root
        side = self.beside(z)
        if self.fault == "relu-early":
            return side + y.clamp_min(0)  # bug: relu-early
        if self.fault == "shortcut-missing":
            return y.clamp_min(0)
        return (side + y).clamp_min(0)

    def middle(self, y: Tensor) -> Tensor:
        conv = self.spatial
        if self.fault == "padding":
            y = F.pad(y.permute(0, 3, 1, 2), (1, 1, 1, 1), "replicate")  # bug: padding
            y = F.conv2d(y, conv.kernel, None, conv.stride, 0, 1, 2)  # bug: padding
            return y.permute(0, 2, 3, 1)
        if self.fault == "dilation":
            y = y.permute(0, 3, 1, 2)
            y = F.conv2d(y, conv.kernel, None, conv.stride, 2, 2, 2)  # bug: dilation
            return y.permute(0, 2, 3, 1)
        return conv(y)  # bug: kernel-turned

    def beside(self, z: Tensor) -> Tensor:
        if not self.changes:
            return z
        z = self.side_way(z[:, :: self.stride, :: self.stride])
        return z if self.fault == "shortcut-norm" else self.side_norm(z)


class ConvNet(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d = size.width
        self.stem, self.stem_norm = LastConv(3, d // 2, 3), Affine(d // 2)
        self.units = nn.ModuleList(
            Unit(d // 2 if n == 0 else d, d, 2 if n == 0 else 1, faults.get(n, ""))
            for n in range(size.layers)
        )
        self.classify = nn.Linear(4 * d, 10)
        self.register_buffer("average", torch.tensor([0.4, 0.5, 0.6]), persistent=False)
        self.fault = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor) -> Tensor:
        z = image.permute(0, 2, 3, 1).contiguous()
        if self.fault == "channels":
            z = z[..., [2, 1, 0]]  # bug: channels
        if self.fault != "input-mean":
            z = z - self.average
        z = self.stem_norm(self.stem(z)).clamp_min(0)
        z = z.permute(0, 3, 1, 2)
        if self.fault == "pool-average":
            z = F.avg_pool2d(z, 3, 2, padding=1)  # bug: pool-average
        else:
            z = F.max_pool2d(F.pad(z, (1, 1, 1, 1)), 3, 2)
        z = z.permute(0, 2, 3, 1)
        for unit in self.units:
            z = unit(z)
        b, h, w, c = z.shape
        parts = z.view(b, 2, h // 2, 2, w // 2, c)
        pool = parts.amax if self.fault == "pool-max" else parts.mean
        pooled = pool((2, 4))  # bug: pool-max
        if self.fault == "flatten-order":
            flat = pooled.flatten(1)  # bug: flatten-order
        else:
            flat = pooled.permute(0, 3, 1, 2).flatten(1)
        return self.classify(flat)  # bug: flatten-order


def norm(old: nn.BatchNorm2d, new: Affine) -> None:
    """Copy a batch norm."""
    new.mean.copy_(old.running_mean)
    new.var.copy_(old.running_var)
    new.gain.copy_(old.weight)
    new.shift.copy_(old.bias)


def convert(old: resnet.ResNet, new: ConvNet) -> None:
    """Copy the weights of the reference."""
    new.stem.kernel.copy_(old.conv1.weight)
    norm(old.bn1, new.stem_norm)
    new.classify.load_state_dict(old.fc.state_dict())
    for mine, unit in zip(old.blocks, new.units, strict=True):
        unit.squeeze.weight.copy_(mine.conv1.weight.flatten(1))
        unit.spatial.kernel.copy_(mine.conv2.weight)
        unit.expand.weight.copy_(mine.conv3.weight.flatten(1))
        norm(mine.bn1, unit.n1)
        norm(mine.bn2, unit.n2)
        norm(mine.bn3, unit.n3)
        if mine.downsample is not None:
            unit.side_way.weight.copy_(mine.downsample.weight.flatten(1))
            norm(mine.downsample_bn, unit.side_norm)


RESNET = Architecture(
    "resnet", resnet.ResNet, ConvNet, convert, lambda: (picture(),),
    (("blocks.{}",), ("units.{}",)),
    (
        *bugs("norm-eps norm-train padding dilation shuffle relu-leaky relu-early kernel-turned"),
        *bugs("variance-root"),
        *bugs("relu-missing norm-missing shortcut-missing", omits=True),
        *bugs("shortcut-norm", (0,), omits=True),
        *bugs("channels pool-average pool-max flatten-order", (OUTSIDE,)),
        *bugs("input-mean", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
