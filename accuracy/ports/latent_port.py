"""A port of the decoder of `latent`: halves turned apart, weights absorbed, experts in one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import latent
from accuracy.ports.latent import LATENT, PLAIN, QUERIES, TURNED, VALUE
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Rotary(nn.Module):
    """Tables of cosines and sines."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        theta = 500.0 if fault == "rope-base" else 10000.0
        powers = torch.arange(TURNED // 2) * 2 / TURNED
        self.register_buffer("rates", theta**-powers, persistent=False)
        self.fault = fault

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        at = torch.arange(length)[:, None]
        at = at * 2 if self.fault == "rope-late" else at  # bug: rope-late
        angle = at * self.rates  # bug: rope-base, rope-late
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first half with the second."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Part(nn.Module):
    """One layer; queries meet the latent itself, heads are last but one."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d, n = size.width, size.heads
        self.entry = nn.Linear(d, QUERIES + LATENT + TURNED, bias=False)
        self.asking = nn.Linear(QUERIES, n * PLAIN, bias=False)
        self.asking_turned = nn.Linear(QUERIES, n * TURNED, bias=False)
        self.key_up = nn.Parameter(torch.zeros(n, PLAIN, LATENT))
        self.value_up = nn.Parameter(torch.zeros(n, VALUE, LATENT))
        self.exit = nn.Linear(n * VALUE, d, bias=False)
        self.gains = nn.ParameterList(torch.ones(one) for one in (d, QUERIES, LATENT, d))
        self.inner, self.outer = (
            nn.Linear(d, 96 + 96 + 48, bias=False),
            nn.Linear(96 + 48, d, bias=False),
        )
        self.rotary, self.n, self.fault = Rotary(fault), n, fault

    def rooted(self, z: Tensor, which: int, eps: float = 1e-6) -> Tensor:
        return F.rms_norm(z, z.shape[-1:], self.gains[which], eps)  # bug: norm-eps

    def attend(self, z: Tensor) -> Tensor:
        b, t, _ = z.shape
        asked, base, key = self.entry(z).split((QUERIES, LATENT, TURNED), 2)
        asked = asked if self.fault == "query-norm" else self.rooted(asked, 1)
        base = base if self.fault == "latent-norm" else self.rooted(base, 2)
        plain = self.asking(asked).view(b, t, self.n, PLAIN)
        spun = self.asking_turned(asked).view(b, t, self.n, TURNED)
        cos, sin = self.rotary(t)
        spun = rotate(spun, cos[:, None], sin[:, None])
        if self.fault != "key-unturned":
            key = rotate(key, cos, sin)
        absorbed = torch.einsum("bthp,hpl->bthl", plain, self.key_up)
        points = torch.einsum("bthl,bsl->bhts", absorbed, base)
        points = points + torch.einsum("bthr,bsr->bhts", spun, key)
        size = PLAIN if self.fault == "scale-plain" else PLAIN + TURNED
        points = points / size**0.5  # bug: scale-plain
        above = torch.arange(t)[None] > torch.arange(t)[:, None]
        if self.fault == "mask-strict":
            above = above | torch.eye(t, dtype=torch.bool)  # bug: mask-strict
            above[0, 0] = False  # bug: mask-strict
        points = points + torch.zeros(t, t).masked_fill(above, -1e30)
        shares = points.softmax(-1)
        seen = torch.einsum("bhts,bsl->bthl", shares, base)
        return self.exit(torch.einsum("bthl,hvl->bthv", seen, self.value_up).flatten(2))

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.attend(self.rooted(z, 0, 1e-2 if self.fault == "norm-eps" else 1e-6))
        y = self.rooted(z, 3)
        gate, up, third = self.inner(y).split((96, 96, 48), 2)
        if self.fault == "gate-up":
            gate, up = up, gate  # bug: gate-up
        if self.fault == "gelu":
            gate = F.gelu(gate)  # bug: gelu
        else:
            gate = gate / (1 + torch.exp(-gate))  # bug: gate-up
        if self.fault == "shared-raw":
            third = F.linear(z, self.inner.weight[192:])  # bug: shared-raw
        third = third.clamp(min=0) ** 2
        if self.fault == "shared-missing":
            return z + F.linear(gate * up, self.outer.weight[:, :96])
        out = self.outer(torch.cat((gate * up, third), 2))  # bug: gate-up
        return out + (y if self.fault == "short-normed" else z)  # bug: short-normed


class Writer(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.words, self.fault = nn.Parameter(torch.zeros(60, size.width)), faults.get(OUTSIDE, "")
        self.parts = nn.ModuleList(Part(size, faults.get(n, "")) for n in range(size.layers))
        self.gain, self.back = nn.Parameter(torch.ones(size.width)), nn.Parameter(
            torch.zeros(size.width, 60))  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        z = self.words[ids]
        for part in self.parts:
            z = part(z)
        if self.fault != "final-norm":
            z = z / (z.pow(2).mean(-1, True) + 1e-6).sqrt() * self.gain
        points = z @ self.back
        return points if self.fault == "cap-missing" else points.div(5).tanh().mul(5)


def apart(weight: Tensor) -> Tensor:
    """Put pairs of neighbours, the rows of a weight, into two halves."""
    return torch.cat((weight[..., ::2, :], weight[..., 1::2, :]), -2)


def convert(old: latent.Decoder, new: Writer) -> None:
    """Copy the weights of the reference."""
    new.words.copy_(old.embed.weight)
    new.gain.copy_(old.norm.weight)
    new.back.copy_(old.head.weight.T)
    for mine, part in zip(old.layers, new.parts, strict=True):
        one = mine.attention
        n = one.heads
        down = one.kv_down.weight
        part.entry.weight.copy_(torch.cat((one.q_down.weight, down[:LATENT], apart(down[LATENT:]))))
        asked = one.q_up.weight.view(n, PLAIN + TURNED, QUERIES)
        part.asking.weight.copy_(asked[:, :PLAIN].flatten(0, 1))
        part.asking_turned.weight.copy_(apart(asked[:, PLAIN:]).flatten(0, 1))
        up = one.kv_up.weight.view(n, PLAIN + VALUE, LATENT)
        part.key_up.copy_(up[:, :PLAIN])
        part.value_up.copy_(up[:, PLAIN:])
        part.exit.weight.copy_(one.out.weight)
        norms = (mine.norm1, one.q_norm, one.kv_norm, mine.norm2)
        for gain, norm in zip(part.gains, norms, strict=True):
            gain.copy_(norm.weight)
        part.inner.weight.copy_(
            torch.cat((mine.gate.weight, mine.up.weight, mine.shared_in.weight)))  # fmt: skip
        part.outer.weight.copy_(torch.cat((mine.down.weight, mine.shared_out.weight), 1))


MLA = Architecture(
    "latent", latent.Decoder, Writer, convert, lambda: (tokens(),),
    (("layers.{}",), ("parts.{}",)),
    (
        *bugs("rope-base rope-late scale-plain mask-strict norm-eps gate-up gelu shared-raw"),
        *bugs("short-normed"),
        *bugs("query-norm latent-norm key-unturned shared-missing", omits=True),
        *bugs("final-norm cap-missing", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
