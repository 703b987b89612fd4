"""A port of the encoder of `speech`: windows times matrices, one matrix for q, k and v."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import speech
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs


class Post(nn.Module):
    """One layer."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d, self.n, self.fault = size.width, size.heads, fault
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.first, self.second = nn.LayerNorm(d), nn.LayerNorm(d)
        self.wide, self.narrow = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def look(self, z: Tensor, valid: Tensor) -> Tensor:
        b, t, d = z.shape
        q, k, v = self.qkv(z).view(b, t, 3, self.n, -1).permute(2, 0, 3, 1, 4)
        if self.fault == "key-query":
            k = q  # bug: key-query
        scale = 1.0 if self.fault == "scale-missing" else 1 / math.sqrt(d / self.n)
        scores = q @ k.mT * scale  # bug: scale-missing, key-query
        if self.fault == "mask-queries":
            scores = scores + torch.where(valid, 0.0, -1e4)[:, None, :, None]  # bug: mask-queries
        elif self.fault != "mask-missing":
            scores = scores + torch.where(valid, 0.0, -math.inf)[:, None, None, :]
        seen = scores.softmax(-1) @ v
        if self.fault == "heads-unturned":
            return self.out(seen.reshape(b, t, d))  # bug: heads-unturned
        return self.out(seen.transpose(1, 2).flatten(2))

    def forward(self, z: Tensor, valid: Tensor) -> Tensor:
        if self.fault == "pre-norm":
            z = z + self.look(self.first(z), valid)  # bug: pre-norm
        else:
            z = self.first(z + self.look(z, valid))
        if self.fault == "norm-twice":
            z = self.first(z)  # bug: norm-twice
        y = self.wide(z)
        if self.fault != "act-missing":
            y = y * (1 + torch.erf(y * math.sqrt(0.5))) / 2
        last = self.first if self.fault == "norm-reused" else self.second
        return last(z + self.narrow(y))  # bug: norm-reused


class Listener(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault = size.width, faults.get(OUTSIDE, "")
        self.taps1, self.taps2 = nn.Linear(10, 32, bias=False), nn.Linear(96, 32, bias=False)
        self.gain, self.shift = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))
        self.calm, self.lift = nn.LayerNorm(32), nn.Linear(32, d)
        self.around, self.enter = nn.Conv1d(d, d, 4, groups=4), nn.LayerNorm(d)
        self.stack = nn.ModuleList(Post(size, faults.get(n, "")) for n in range(size.layers))
        self.spell = nn.Linear(d, 12)

    def hear(self, wave: Tensor) -> Tensor:
        var, mean = torch.var_mean(wave, 1, keepdim=True)
        wave = (wave - mean) * var.rsqrt()
        y = self.taps1(wave.unfold(1, 10, 5))
        var, mean = torch.var_mean(y, 1, correction=0, keepdim=True)
        y = F.gelu((y - mean) / torch.sqrt(var + 1e-5) * self.gain + self.shift)
        y = self.taps2(y.unfold(1, 3, 2).flatten(2))
        y = y.clamp(min=0) if self.fault == "conv-relu" else F.gelu(y)  # bug: conv-relu
        return self.lift(self.calm(y))

    def forward(self, wave: Tensor, lengths: Tensor) -> Tensor:
        z = self.hear(wave)
        frames = torch.div(torch.div(lengths - 5, 5, rounding_mode="floor") - 1, 2).floor()
        if self.fault == "length-late":
            frames = frames + 1  # bug: length-late
        valid = torch.arange(z.shape[1]) < frames[:, None]  # bug: length-late
        z = z * valid[:, :, None]  # bug: length-late
        left = 1 if self.fault == "places-late" else 2
        along = self.around(F.pad(z.mT, (left, 3 - left)))  # bug: places-late
        z = z + F.gelu(along).mT
        if self.fault != "norm-in":
            z = self.enter(z)
        for one in self.stack:
            z = one(z, valid)
        return self.spell(z)


def convert(old: speech.Speech, new: Listener) -> None:
    """Copy the weights of the reference."""
    new.taps1.weight.copy_(old.conv1.weight[:, 0])
    new.taps2.weight.copy_(old.conv2.weight.flatten(1))
    new.gain.copy_(old.group.weight)
    new.shift.copy_(old.group.bias)
    for a, b in (
        (old.norm, new.calm), (old.project, new.lift), (old.places, new.around),
        (old.norm_in, new.enter), (old.letters, new.spell),
    ):  # fmt: skip
        b.load_state_dict(a.state_dict())
    for mine, one in zip(old.layers, new.stack, strict=True):
        one.qkv.weight.copy_(torch.cat([mine.q.weight, mine.k.weight, mine.v.weight]))
        one.qkv.bias.copy_(torch.cat([mine.q.bias, mine.k.bias, mine.v.bias]))
        for a, b in (
            (mine.o, one.out), (mine.norm1, one.first), (mine.norm2, one.second),
            (mine.fc1, one.wide), (mine.fc2, one.narrow),
        ):  # fmt: skip
            b.load_state_dict(a.state_dict())


SPEECH = Architecture(
    "speech", speech.Speech, Listener, convert, speech.inputs,
    (("layers.{}",), ("stack.{}",)),
    (
        *bugs("key-query mask-queries heads-unturned pre-norm norm-twice norm-reused"),
        *bugs("scale-missing mask-missing act-missing", omits=True),
        *bugs("conv-relu length-late places-late", (OUTSIDE,)),
        *bugs("norm-in", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
