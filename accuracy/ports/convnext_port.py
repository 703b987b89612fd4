"""A port of the network of `convnext`: channels last, patches and pixels by matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import convnext
from accuracy.ports.convnext import KERNEL
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture


class Pixels(nn.Module):
    """One block on pixels whose channels come last."""

    def __init__(self, d: int, fault: str) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(KERNEL, KERNEL, d))
        self.offset = nn.Parameter(torch.zeros(d))
        self.ln = nn.LayerNorm(d, eps=1e-2 if fault == "norm-eps" else 1e-6)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.boost, self.strength = (
            nn.Parameter(torch.zeros(2 * d)), nn.Parameter(torch.ones(d)),
        )  # fmt: skip
        self.inner, self.outer = nn.Linear(d, 16), nn.Linear(16, d)
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "kernel-turned":
            self.kernel.copy_(self.kernel.transpose(0, 1).clone())

    def spread(self, p: Tensor) -> Tensor:
        half = KERNEL // 2
        sides = (half + 1, half - 1) if self.fault == "depth-shifted" else (half, half)
        padded = F.pad(p, (0, 0, *sides, half, half))  # bug: depth-shifted
        height, width = p.shape[1:3]
        total = self.offset.expand(p.shape).clone()
        for row in range(KERNEL):
            for column in range(KERNEL):
                piece = padded[:, row : row + height, column : column + width]
                total += piece * self.kernel[row, column]  # bug: kernel-turned
        return total

    def forward(self, p: Tensor) -> Tensor:
        q = self.spread(p)
        if self.fault != "norm-missing":
            q = self.ln(q)  # bug: norm-eps
        q = self.up(q)
        if self.fault == "gelu-tanh":
            q = 0.5 * q * (1 + torch.tanh(0.7978845608 * (q + 0.044715 * q**3)))  # bug: gelu-tanh
        else:
            q = q * 0.5 * (1 + torch.erf(q / 2**0.5))
        axes = 3 if self.fault == "response-axis" else (1, 2)
        size = (q * q).sum(axes, keepdim=True).sqrt()  # bug: response-axis
        share = size
        if self.fault != "response-raw":
            share = size / (size.mean(3, keepdim=True) + 1e-6)
        q = torch.addcmul(q, self.boost * share, q)  # bug: response-raw
        q = self.down(q)
        if self.fault != "gate-missing":
            flat = q.flatten(1, 2)
            if self.fault == "squeeze-max":
                pooled = flat.max(1).values  # bug: squeeze-max
            else:
                pooled = flat.mean(1)
            q = q * self.outer(self.inner(pooled).clamp_min(0)).sigmoid()[:, None, None]
        return p + q if self.fault == "gamma-missing" else torch.addcmul(p, q, self.strength)


class Vision(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault = size.width, faults.get(OUTSIDE, "")
        self.entry = nn.Linear(12, d)
        self.rest = nn.ModuleList(Pixels(d, faults.get(n, "")) for n in range(size.layers))
        self.ln, self.classes = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, image: Tensor) -> Tensor:
        if self.fault == "channels":
            image = image[:, [2, 1, 0]]  # bug: channels
        b, c, h, w = image.shape
        pieces = image.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).flatten(3)
        p = self.entry(pieces)  # bug: channels
        for part in self.rest:
            p = part(p)
        flat = p.view(b, -1, p.shape[-1])
        if self.fault == "norm-first":
            return self.classes(self.ln(flat).mean(1))  # bug: norm-first
        pooled = flat.amax(1) if self.fault == "pool-max" else flat.mean(1)  # bug: pool-max
        return self.classes(self.ln(pooled))


def convert(old: convnext.ConvNext, new: Vision) -> None:
    """Copy the weights of the reference."""
    new.entry.weight.copy_(old.stem.weight.flatten(1))
    new.entry.bias.copy_(old.stem.bias)
    for mine, part in zip(old.blocks, new.rest, strict=True):
        part.kernel.copy_(mine.depth.weight[:, 0].permute(1, 2, 0))
        part.offset.copy_(mine.depth.bias)
        part.ln.weight.copy_(mine.norm.weight)
        part.ln.bias.copy_(mine.norm.bias)
        for target, source in ((part.up, mine.wide), (part.down, mine.narrow)):
            target.weight.copy_(source.weight.flatten(1))
            target.bias.copy_(source.bias)
        part.boost.copy_(mine.response)
        part.strength.copy_(mine.gamma)
        part.inner.load_state_dict(mine.squeeze.state_dict())
        part.outer.load_state_dict(mine.excite.state_dict())
    new.ln.load_state_dict(old.last.state_dict())
    new.classes.load_state_dict(old.head.state_dict())


CONVNEXT = Architecture(
    "convnext", convnext.ConvNext, Vision, convert, lambda: (picture(),),
    (("blocks.{}",), ("rest.{}",)),
    (
        *bugs("kernel-turned depth-shifted norm-eps gelu-tanh response-axis response-raw"),
        *bugs("squeeze-max"),
        *bugs("norm-missing gate-missing gamma-missing", omits=True),
        *bugs("channels norm-first pool-max", (OUTSIDE,)),
    ),
)  # fmt: skip
