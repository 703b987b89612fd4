"""A port of the decoder of `retention`: a state that is carried on from place to place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import retention
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Carried(nn.Module):
    """One layer."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        self.g1, self.g2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.packed = nn.Linear(d, 4 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.both, self.back = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
        self.n, self.fault = size.heads, fault

    def rooted(self, z: Tensor, gain: Tensor) -> Tensor:
        return z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gain

    def states(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        powers = torch.arange(self.n).float() + 2
        keep = 1 - torch.exp2(-powers)
        if self.fault == "rates-flipped":
            keep = keep.flip(0)  # bug: rates-flipped
        keep = keep.view(1, self.n, 1, 1)
        state = q.new_zeros(q.shape[0], self.n, q.shape[3], v.shape[3])
        rows = []
        for t in range(q.shape[1]):
            new = k[:, t].unsqueeze(3) * v[:, t].unsqueeze(2)  # bug: value-key
            if self.fault == "self-missing":
                rows.append((q[:, t].unsqueeze(2) @ (state * keep)).squeeze(2))  # bug: self-missing
                state = state * keep + new
                continue
            if self.fault == "decay-late":
                state = (state + new) * keep  # bug: decay-late
            else:
                state = state * keep + new  # bug: rates-flipped
            rows.append((q[:, t].unsqueeze(2) @ state).squeeze(2))
        return torch.stack(rows, 1)

    def retain(self, z: Tensor) -> Tensor:
        q, k, v, gate = self.packed(z).chunk(4, -1)
        q, k, v = (part.unflatten(2, (self.n, -1)) for part in (q, k, v))
        if self.fault == "value-key":
            v = k  # bug: value-key
        if self.fault != "scale-missing":
            q = q / q.shape[-1] ** 0.5
        mixed = self.states(q, k, v)
        if self.fault != "group-missing":
            mixed = mixed.flatten(2) if self.fault == "group-count" else mixed
            var, mean = torch.var_mean(mixed, -1, correction=0, keepdim=True)  # bug: group-count
            mixed = (mixed - mean) / (var + 1e-5).sqrt()
        if self.fault == "gate-sigmoid":
            gate = gate.sigmoid()  # bug: gate-sigmoid
        else:
            gate = gate * gate.sigmoid()
        return self.out(mixed.reshape(z.shape) * gate)

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.retain(self.rooted(z, self.g1))
        inner = z if self.fault == "norm-missing" else self.rooted(z, self.g2)
        gate, up = self.both(inner).tensor_split(2, -1)
        gate = gate.clamp(min=0) if self.fault == "relu" else F.silu(gate)  # bug: relu
        joined = gate + up if self.fault == "up-added" else gate * up  # bug: up-added
        return z + self.back(joined)


class Decoder(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.words = nn.Embedding(60, size.width)
        self.parts = nn.ModuleList(Carried(size, faults.get(n, "")) for n in range(size.layers))
        self.ln, self.fault = nn.LayerNorm(size.width), faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        z = 1.5 * self.words.weight[ids]
        for part in self.parts:
            z = part(z)
        if self.fault != "final-norm":
            z = self.ln(z)
        logits = torch.einsum("btd,wd->btw", z, self.words.weight)
        return logits / 4 if self.fault == "logit-scale" else logits  # bug: logit-scale


def convert(old: retention.RetNet, new: Decoder) -> None:
    """Copy the weights of the reference."""
    new.words.weight.copy_(old.embed.weight)
    new.ln.load_state_dict(old.last.state_dict())
    for mine, part in zip(old.layers, new.parts, strict=True):
        r = mine.retention
        part.g1.copy_(mine.norm1.weight)
        part.g2.copy_(mine.norm2.weight)
        part.packed.weight.copy_(torch.cat([one.weight for one in (r.q, r.k, r.v, r.g)]))
        part.out.weight.copy_(r.o.weight)
        part.both.weight.copy_(torch.cat([mine.gate.weight, mine.up.weight]))
        part.both.bias.copy_(torch.cat([mine.gate.bias, mine.up.bias]))
        part.back.load_state_dict(mine.down.state_dict())


RETENTION = Architecture(
    "retention", retention.RetNet, Decoder, convert, lambda: (tokens(length=8),),
    (("layers.{}",), ("parts.{}",)),
    (
        *bugs("value-key rates-flipped decay-late self-missing group-count gate-sigmoid relu"),
        *bugs("up-added"),
        *bugs("scale-missing group-missing norm-missing", omits=True),
        *bugs("logit-scale", (OUTSIDE,)),
        *bugs("final-norm", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
