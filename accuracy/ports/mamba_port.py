"""A port of the state-space model of `mamba`: the scan as one product with a matrix of decays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import mamba
from accuracy.ports.mamba import RANK, STATES, TAPS
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Selective(nn.Module):
    """Time in front of channels; every moment at once."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        e = 2 * size.width
        self.signal, self.gate = (
            nn.Linear(size.width, e, bias=False),
            nn.Linear(size.width, e, bias=False),
        )
        self.taps, self.taps_bias = nn.Parameter(torch.zeros(TAPS, e)), nn.Parameter(torch.zeros(e))
        self.to_rank = nn.Linear(e, RANK, bias=False)
        self.to_write = nn.Linear(e, STATES, bias=False)
        self.to_read = nn.Linear(e, STATES, bias=False)
        self.to_step = nn.Linear(RANK, e)
        self.log_rate, self.direct = (
            nn.Parameter(torch.zeros(e, STATES)),
            nn.Parameter(torch.ones(e)),
        )
        self.back = nn.Linear(e, size.width, bias=False)
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "kernel-flipped":
            self.taps.copy_(self.taps.flip(0))

    def short(self, u: Tensor) -> Tensor:
        t = u.shape[1]
        before = (0, TAPS - 1) if self.fault == "conv-ahead" else (TAPS - 1, 0)
        padded = F.pad(u, (0, 0, *before))  # bug: conv-ahead
        moved = torch.stack([padded[:, n : n + t] for n in range(TAPS)], dim=2)
        return (moved * self.taps).sum(2) + self.taps_bias  # bug: kernel-flipped

    def forward(self, v: Tensor) -> Tensor:
        u, gate = self.signal(v), self.gate(v)
        if self.fault == "gate-swapped":
            u, gate = gate, u
        u = self.short(u)  # bug: gate-swapped
        if self.fault != "silu-missing":
            u = u * u.sigmoid()
        write, read = self.to_write(u), self.to_read(u)
        if self.fault == "states-swapped":
            write, read = read, write
        step = self.to_step(self.to_rank(u))
        step = step.exp() if self.fault == "softplus-exp" else F.softplus(step)  # bug: softplus-exp
        rate = self.log_rate.exp()
        if self.fault == "rate-sign":
            rate = rate * 0.5  # bug: rate-sign
        given = u if self.fault == "step-missing" else step * u
        y = self.mixed(step, rate, given, write, read)  # bug: step-missing, states-swapped
        if self.fault != "skip-missing":
            y = torch.addcmul(y, u, self.direct)
        if self.fault == "gate-sigmoid":
            return self.back(y * gate.sigmoid())  # bug: gate-sigmoid
        return self.back(y * F.silu(gate))

    def mixed(
        self, step: Tensor, rate: Tensor, given: Tensor, write: Tensor, read: Tensor
    ) -> Tensor:
        t = step.shape[1]
        passed = step.cumsum(1)
        between = passed[:, :, None] - passed[:, None, :]
        faded = torch.exp(-between[..., None] * rate)
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if self.fault == "state-late":
            faded = faded.roll(1, 1)  # bug: state-late
            seen = seen.tril(-1)  # bug: state-late
        faded = faded.masked_fill(~seen[None, :, :, None, None], 0.0)
        return torch.einsum(
            "bijes,bje,bjs,bis->bie", faded, given, write, read
        )  # bug: states-swapped


class StateLayer(nn.Module):
    """One layer."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size.width))
        self.selective = Selective(size, fault)
        self.fault = fault

    def forward(self, v: Tensor) -> Tensor:
        eps = 1e-2 if self.fault == "norm-eps" else 1e-5
        inner = v / (v.square().mean(-1, keepdim=True) + eps).sqrt() * self.gain  # bug: norm-eps
        out = self.selective(inner)
        return out if self.fault == "residual-missing" else out + v


class StateModel(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.words = nn.Embedding(60, size.width)
        self.cells = nn.ModuleList(StateLayer(size, faults.get(n, "")) for n in range(size.layers))
        self.gain = nn.Parameter(torch.ones(size.width))
        self.fault = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        v = self.words(ids)
        for cell in self.cells:
            v = cell(v)
        if self.fault != "final-norm":
            v = v / (v.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.gain
        return v @ self.words.weight.T


def convert(old: mamba.Mamba, new: StateModel) -> None:
    """Copy the weights of the reference."""
    new.words.weight.copy_(old.embeddings.weight)
    new.gain.copy_(old.norm_f.weight)
    for mine, cell in zip(old.layers, new.cells, strict=True):
        cell.gain.copy_(mine.norm.weight)
        mixer, part = mine.mixer, cell.selective
        signal, gate = mixer.in_proj.weight.chunk(2)
        part.signal.weight.copy_(signal)
        part.gate.weight.copy_(gate)
        part.taps.copy_(mixer.conv1d.weight[:, 0].T)
        part.taps_bias.copy_(mixer.conv1d.bias)
        rank, write, read = mixer.x_proj.weight.split([RANK, STATES, STATES])
        part.to_rank.weight.copy_(rank)
        part.to_write.weight.copy_(write)
        part.to_read.weight.copy_(read)
        part.to_step.load_state_dict(mixer.dt_proj.state_dict())
        part.log_rate.copy_(mixer.A_log)
        part.direct.copy_(mixer.D)
        part.back.weight.copy_(mixer.out_proj.weight)


MAMBA = Architecture(
    "mamba", mamba.Mamba, StateModel, convert, lambda: (tokens(),), (("layers.{}",), ("cells.{}",)),
    (
        *bugs("kernel-flipped gate-swapped conv-ahead states-swapped softplus-exp rate-sign"),
        *bugs("step-missing gate-sigmoid state-late norm-eps"),
        *bugs("silu-missing skip-missing residual-missing", omits=True),
        *bugs("final-norm", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
