"""A port of the network of `gmlp`: channels first, norms written out, einsum over places."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import gmlp
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture


class ChannelNorm(nn.Module):
    """A layer norm over the second axis."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale, self.offset = (
            nn.Parameter(torch.ones(channels, 1)),
            nn.Parameter(torch.zeros(channels, 1)),
        )
        self.eps = eps

    def forward(self, p: Tensor) -> Tensor:
        centred = p - p.mean(1, keepdim=True)
        power = centred.pow(2).mean(1, keepdim=True)
        return centred * torch.rsqrt(power + self.eps) * self.scale + self.offset  # bug: gate-eps


class Mixing(nn.Module):
    """One block."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        self.before, self.inside = (
            ChannelNorm(d),
            ChannelNorm(2 * d, 1e-3 if fault == "gate-eps" else 1e-5),
        )
        self.w_in, self.b_in = nn.Parameter(torch.zeros(4 * d, d)), nn.Parameter(torch.zeros(4 * d))
        self.w_out, self.b_out = nn.Parameter(torch.zeros(d, 2 * d)), nn.Parameter(torch.zeros(d))
        self.w_at, self.b_at = nn.Parameter(torch.zeros(16, 16)), nn.Parameter(torch.zeros(16))
        self.fault = fault

    def forward(self, p: Tensor) -> Tensor:
        normed = self.before(p)
        wide = torch.einsum("oc,bcp->bop", self.w_in, normed) + self.b_in[:, None]
        if self.fault == "gelu-tanh":
            wide = F.gelu(wide, approximate="tanh")  # bug: gelu-tanh
        else:
            wide = wide * 0.5 * (1 + torch.erf(wide / 2**0.5))
        half = wide.shape[1] // 2
        kept, mixed = wide[:, :half], wide[:, half:]
        if self.fault == "halves-swapped":
            kept, mixed = mixed, kept  # bug: halves-swapped
        if self.fault != "gate-norm-missing":
            mixed = self.inside(mixed)  # bug: halves-swapped
        if self.fault == "places-turned":
            mixed = torch.einsum("pq,bcp->bcq", self.w_at, mixed)  # bug: places-turned
        else:
            mixed = torch.einsum("qp,bcp->bcq", self.w_at, mixed)
        if self.fault != "place-bias":
            mixed = mixed + self.b_at
        if self.fault == "gate-added":
            gated = mixed + 1 + kept  # bug: gate-added
        elif self.fault == "gate-one":
            gated = mixed * kept
        else:
            gated = kept * (mixed + 1)  # bug: halves-swapped
        narrow = torch.einsum("oc,bcp->bop", self.w_out, gated) + self.b_out[:, None]
        if self.fault == "short-missing":
            return narrow
        return narrow + (normed if self.fault == "short-normed" else p)  # bug: short-normed


class Mixer(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault = size.width, faults.get(OUTSIDE, "")
        self.pixels = nn.Linear(48, d)
        self.body = nn.Sequential(*(Mixing(size, faults.get(n, "")) for n in range(size.layers)))
        self.after, self.classes = ChannelNorm(d), nn.Linear(d, 10)

    def forward(self, image: Tensor) -> Tensor:
        b = image.shape[0]
        tiles = image.view(b, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(b, 16, 48)
        p = self.body(self.pixels(tiles).mT)
        if self.fault == "pool-first":
            p = self.after(p.mean(2, keepdim=True)).squeeze(2)  # bug: pool-first
        else:
            p = self.after(p)
            p = p.max(2).values if self.fault == "pool-max" else p.sum(2) / 16  # bug: pool-max
        found = p @ self.classes.weight.T
        return found if self.fault == "head-bias" else found + self.classes.bias


def norm(old: nn.LayerNorm, new: ChannelNorm) -> None:
    """Copy a norm."""
    new.scale.copy_(old.weight[:, None])
    new.offset.copy_(old.bias[:, None])


def convert(old: gmlp.GatedMLP, new: Mixer) -> None:
    """Copy the weights of the reference."""
    new.pixels.weight.copy_(old.patch.weight.flatten(1))
    new.pixels.bias.copy_(old.patch.bias)
    norm(old.norm, new.after)
    new.classes.load_state_dict(old.head.state_dict())
    for mine, block in zip(old.blocks, new.body, strict=True):
        norm(mine.norm, block.before)
        norm(mine.gate.norm, block.inside)
        for part, weight, bias in (
            (mine.up, block.w_in, block.b_in),
            (mine.down, block.w_out, block.b_out),
            (mine.gate.proj, block.w_at, block.b_at),
        ):
            weight.copy_(part.weight)
            bias.copy_(part.bias)


GMLP = Architecture(
    "gmlp", gmlp.GatedMLP, Mixer, convert, lambda: (picture(),),
    (("blocks.{}",), ("body.{}",)),
    (
        *bugs("halves-swapped gate-eps places-turned gate-added gelu-tanh short-normed"),
        *bugs("gate-norm-missing gate-one short-missing", omits=True),
        *bugs("place-bias", omits=True),
        *bugs("pool-first pool-max", (OUTSIDE,)),
        *bugs("head-bias", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
