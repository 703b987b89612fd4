"""A port of the network of `mobile`: norms folded into convolutions, channels last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import mobile
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture


class Inverted(nn.Module):
    """One block on (batch, height, width, channels)."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        c, self.fault = size.width // 2, fault
        self.grow, self.shrink = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.taps, self.taps_bias = (
            nn.Parameter(torch.zeros(3, 3, 4 * c)),
            nn.Parameter(torch.zeros(4 * c)),
        )
        self.in_, self.out = nn.Linear(4 * c, c), nn.Linear(c, 4 * c)

    def around(self, y: Tensor) -> Tensor:
        h, w = y.shape[1:3]
        if self.fault == "pad-mirrored":
            rows = F.pad(y.movedim(3, 1), (1, 1, 1, 1), mode="reflect")  # bug: pad-mirrored
            rows = rows.movedim(1, 3)
        else:
            rows = F.pad(y, (0, 0, 1, 1, 1, 1))
        total = self.taps_bias
        for i in range(3):
            for j in range(3):
                total = total + rows[:, i : i + h, j : j + w] * self.taps[i, j]
        return total

    def weigh(self, y: Tensor) -> Tensor:
        s = y.flatten(1, 2)
        s = s.max(1).values if self.fault == "squeeze-max" else s.mean(1)  # bug: squeeze-max
        s = self.in_(s)
        s = s if self.fault == "squeeze-linear" else s * s.sigmoid()
        s = self.out(s)
        if self.fault == "squeeze-hard":
            s = (s / 6 + 0.5).clamp(0, 1)  # bug: squeeze-hard
        else:
            s = s.sigmoid()
        return y * s[:, None, None]

    def forward(self, z: Tensor) -> Tensor:
        y = self.grow(z)
        y = self.around(y * y.sigmoid())
        y = y.clamp(0, 6) if self.fault == "relu6" else y * y.sigmoid()  # bug: relu6
        y = y if self.fault == "squeeze-missing" else self.weigh(y)
        y = self.shrink(y)
        y = y * y.sigmoid() if self.fault == "act-last" else y  # bug: act-last
        return y if self.fault == "short-missing" else y + z


class Pocket(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        c, self.fault = size.width // 2, faults.get(OUTSIDE, "")
        self.begin = nn.Conv2d(3, c, 3, stride=2)
        self.parts = nn.ModuleList(Inverted(size, faults.get(n, "")) for n in range(size.layers))
        self.last = nn.Linear(c, 10)

    def forward(self, image: Tensor) -> Tensor:
        if self.fault != "centre-missing":
            image = image / 0.22 - 0.45 / 0.22
        sides = (1, 0, 1, 0) if self.fault == "pad-both" else (0, 1, 0, 1)
        y = F.silu(self.begin(F.pad(image, sides))).permute(0, 2, 3, 1)  # bug: pad-both
        for part in self.parts:
            y = part(y)
        y = y.mean((1, 2))
        if self.fault == "head-temper":
            y = 2 * y  # bug: head-temper
        y = self.last(y)
        return y - y.logsumexp(1, keepdim=True)


def folded(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a convolution with its norm."""
    gain = bn.weight / (bn.running_var + bn.eps).sqrt()
    return conv.weight * gain[:, None, None, None], bn.bias - bn.running_mean * gain


def convert(old: mobile.Mobile, new: Pocket) -> None:
    """Copy the weights of the reference."""

    def put(layer: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor) -> None:
        layer.weight.copy_(weight.view_as(layer.weight))
        layer.bias.copy_(bias)

    put(new.begin, *folded(old.stem, old.bn))
    new.last.load_state_dict(old.head.state_dict())
    for mine, part in zip(old.blocks, new.parts, strict=True):
        put(part.grow, *folded(mine.expand, mine.bn1))
        put(part.shrink, *folded(mine.project, mine.bn3))
        weight, bias = folded(mine.along, mine.bn2)
        part.taps.copy_(weight[:, 0].permute(1, 2, 0))
        part.taps_bias.copy_(bias)
        put(part.in_, mine.squeeze.down.weight, mine.squeeze.down.bias)
        put(part.out, mine.squeeze.up.weight, mine.squeeze.up.bias)


MOBILE = Architecture(
    "mobile", mobile.Mobile, Pocket, convert, lambda: (picture(),),
    (("blocks.{}",), ("parts.{}",)),
    (
        *bugs("squeeze-max squeeze-hard pad-mirrored relu6 act-last"),
        *bugs("norm-eps", cross=False),
        *bugs("squeeze-linear squeeze-missing short-missing", omits=True),
        *bugs("pad-both head-temper", (OUTSIDE,)),
        *bugs("centre-missing", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
