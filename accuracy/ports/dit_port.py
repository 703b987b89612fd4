"""A port of the network of `dit`: all steering at once, fused attention, channels cut by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import dit
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture

sdpa = F.scaled_dot_product_attention


class Stage(nn.Module):
    """One layer, given its steering."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.wide, self.narrow = nn.Linear(d, 128), nn.Linear(128, d)
        self.n, self.fault = size.heads, fault

    def steered(self, z: Tensor, by: Tensor, eps: float = 1e-6) -> Tensor:
        shift, scale = by.unbind(1)
        middle = z.mean(-1, keepdim=True)
        spread = z.var(-1, correction=0, keepdim=True)
        z = (z - middle) / torch.sqrt(spread + eps)  # bug: norm-eps
        return torch.addcmul(shift[:, None], z, scale[:, None])  # bug: one-missing

    def mixed(self, z: Tensor) -> Tensor:
        b, n, d = z.shape
        q, k, v = (
            part(z).view(b, n, self.n, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        if self.fault == "query-key":
            q, k = k, q  # bug: query-key
        if self.fault == "softmax-queries":
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(2)  # bug: softmax-queries
            out = weights @ v
        elif self.fault == "scale-width":
            out = sdpa(q, k, v, scale=d**-0.5)  # bug: scale-width
        else:
            out = sdpa(q, k, v)  # bug: query-key
        if self.fault == "heads-first":
            out = out.reshape(b, n, d)  # bug: heads-first
        else:
            out = out.transpose(1, 2).flatten(2)
        return self.o(out)

    def forward(self, z: Tensor, by: Tensor) -> Tensor:
        one = torch.tensor([0.0, 1.0])[None, :, None]
        first, gate1, second, gate2 = by[:, :2], by[:, 2:3], by[:, 3:5], by[:, 5:]
        if self.fault == "shift-scale":
            first = first.flip(1)  # bug: shift-scale
        if self.fault == "gates-swapped":
            gate1, gate2 = gate2, gate1  # bug: gates-swapped
        ones = 0 if self.fault == "one-missing" else one
        eps = 1e-3 if self.fault == "norm-eps" else 1e-6
        out = self.mixed(self.steered(z, first + ones, eps))  # bug: one-missing
        if self.fault == "gate-missing":
            z = z + out
        else:
            z = torch.addcmul(z, out, gate1)  # bug: gates-swapped
        given = first if self.fault == "steer-again" else second  # bug: steer-again
        if self.fault == "norm-missing":
            inner = z * (1 + given[:, 1:]) + given[:, :1]  # bug: norm-missing
        else:
            inner = self.steered(z, given + one)  # bug: steer-again
        inner = self.wide(inner)
        if self.fault == "gelu-exact":
            inner = F.gelu(inner)  # bug: gelu-exact
        else:
            cubic = inner + 0.044715 * inner.pow(3)
            inner = 0.5 * inner * (1 + torch.tanh(0.7978845608028654 * cubic))
        out = self.narrow(inner) * gate2  # bug: gates-swapped
        return out if self.fault == "short-missing" else out + z


class Denoiser(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.d = size.width, size.width
        self.fault, self.faults = faults.get(OUTSIDE, ""), faults
        self.tiles, self.grid = nn.Linear(48, d), nn.Parameter(torch.zeros(16, d))
        self.clock = nn.Sequential(nn.Linear(dit.WAVES, d), nn.SiLU(), nn.Linear(d, d))
        self.steering = nn.Linear(d, (6 * size.layers + 2) * d)
        self.stages = nn.ModuleList(Stage(size, faults.get(n, "")) for n in range(size.layers))
        self.last = nn.Linear(d, 48)

    def hands(self, time: Tensor) -> Tensor:
        half = dit.WAVES // 2
        base = 100.0 if self.fault == "time-rate" else 10000.0
        rates = base ** -(torch.arange(half) / half)  # bug: time-rate
        turns = torch.outer(time, rates)
        both = [turns.cos(), turns.sin()]
        if self.fault == "time-turned":
            both = both[::-1]
        return torch.stack(both, 1).flatten(1)  # bug: time-turned

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        b = image.shape[0]
        cut = image.unfold(2, 4, 4).unfold(3, 4, 4)  # b, c, rows, columns, 4, 4
        z = self.tiles(cut.permute(0, 2, 3, 1, 4, 5).reshape(b, 16, 48))
        z = z if self.fault == "places-missing" else z + self.grid
        clock = self.clock(self.hands(time))
        by = self.steering(clock * clock.sigmoid()).view(b, -1, self.d)
        for n, stage in enumerate(self.stages):
            mine = by[:, 6 * n : 6 * n + 6]
            if stage.fault == "silu-missing":
                every = self.steering(clock).view(b, -1, self.d)  # bug: silu-missing
                mine = every[:, 6 * n : 6 * n + 6]
            z = stage(z, mine)
        z = F.layer_norm(z, (self.d,), eps=1e-6)
        shift, scale = by[:, -2:-1], by[:, -1:]
        z = z * (scale + 1) if self.fault == "last-shift" else z * (scale + 1) + shift
        z = self.last(z).view(b, 4, 4, 4, 4, 3)
        if self.fault == "rows-columns":
            z = z.transpose(3, 4)  # bug: rows-columns
        return z.permute(0, 5, 1, 3, 2, 4).reshape(b, 3, 16, 16)


def convert(old: dit.DiT, new: Denoiser) -> None:
    """Copy the weights of the reference."""
    new.tiles.weight.copy_(old.patch.weight.flatten(1))
    new.tiles.bias.copy_(old.patch.bias)
    new.grid.copy_(old.places[0])
    new.clock[0].load_state_dict(old.time1.state_dict())
    new.clock[2].load_state_dict(old.time2.state_dict())
    new.last.load_state_dict(old.head.state_dict())
    steering = [*(block.modulation[1] for block in old.blocks), old.steer]
    new.steering.weight.copy_(torch.cat([one.weight for one in steering]))
    new.steering.bias.copy_(torch.cat([one.bias for one in steering]))
    for block, stage in zip(old.blocks, new.stages, strict=True):
        weights, biases = block.attn.qkv.weight.chunk(3), block.attn.qkv.bias.chunk(3)
        for part, weight, bias in zip((stage.q, stage.k, stage.v), weights, biases, strict=True):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        stage.o.load_state_dict(block.attn.proj.state_dict())
        stage.wide.load_state_dict(block.fc1.state_dict())
        stage.narrow.load_state_dict(block.fc2.state_dict())


DIT = Architecture(
    "dit", dit.DiT, Denoiser, convert, lambda: (picture(), torch.tensor([3.0, 41.0])),
    (("blocks.{}",), ("stages.{}",)),
    (
        *bugs("query-key scale-width softmax-queries heads-first one-missing shift-scale"),
        *bugs("gates-swapped steer-again gelu-exact norm-eps"),
        *bugs("gate-missing norm-missing short-missing", omits=True),
        *bugs("silu-missing", omits=True, cross=False),
        *bugs("time-rate time-turned rows-columns", (OUTSIDE,)),
        *bugs("places-missing last-shift", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
