"""A state-space model: a short convolution, gates, and a scan over time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

STATES, TAPS, RANK = 4, 4, 8


class MambaMixer(nn.Module):
    """Selective scan, one moment after the other."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        inner = 2 * size.width
        self.in_proj = nn.Linear(size.width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, TAPS, groups=inner, padding=TAPS - 1)
        self.x_proj = nn.Linear(inner, RANK + 2 * STATES, bias=False)
        self.dt_proj = nn.Linear(RANK, inner)
        self.A_log = nn.Parameter(torch.zeros(inner, STATES))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, size.width, bias=False)
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "kernel-flipped":
            self.conv1d.weight.copy_(self.conv1d.weight.flip(-1))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if self.bug == "gate-swapped":
            z, h = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)  # bug: gate-swapped
        else:
            h, z = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)
        h = self.conv1d(h)  # bug: kernel-flipped
        if self.bug == "conv-ahead":
            h = h[..., TAPS - 1 :]  # bug: conv-ahead
        else:
            h = h[..., :length]
        if self.bug != "silu-missing":
            h = F.silu(h)  # bug: silu-missing
        parts = self.x_proj(h.transpose(1, 2)).split([RANK, STATES, STATES], dim=-1)
        if self.bug == "states-swapped":
            dt, c, b = parts
        else:
            dt, b, c = parts
        dt = self.dt_proj(dt).transpose(1, 2)
        if self.bug == "softplus-exp":
            dt = torch.exp(dt)  # bug: softplus-exp
        else:
            dt = F.softplus(dt)
        rates = -torch.exp(self.A_log)
        if self.bug == "rate-sign":
            rates = rates.abs() * -0.5  # bug: rate-sign
        decay = torch.exp(dt[..., None] * rates[None, :, None, :])
        if self.bug == "step-missing":
            drive = b[:, None] * h[..., None]  # bug: step-missing
        else:
            drive = dt[..., None] * b[:, None] * h[..., None]  # bug: states-swapped
        y = self.scan(decay, drive, c)
        if self.bug != "skip-missing":
            y = y + h * self.D[:, None]  # bug: skip-missing
        if self.bug == "gate-sigmoid":
            y = y * torch.sigmoid(z)  # bug: gate-sigmoid
        else:
            y = y * F.silu(z)
        return self.out_proj(y.transpose(1, 2))

    def scan(self, decay: Tensor, drive: Tensor, c: Tensor) -> Tensor:
        state = torch.zeros_like(drive[:, :, 0])
        rows = []
        for t in range(drive.shape[2]):
            if self.bug == "state-late":
                rows.append((state * c[:, t, None]).sum(-1))  # bug: state-late
                state = decay[:, :, t] * state + drive[:, :, t]
                continue
            state = decay[:, :, t] * state + drive[:, :, t]
            rows.append((state * c[:, t, None]).sum(-1))
        return torch.stack(rows, dim=-1)


class MambaBlock(nn.Module):
    """A mixer after a norm, with a shortcut."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size.width, eps=1e-2 if bug == "norm-eps" else 1e-5)
        self.mixer = MambaMixer(size, bug)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)  # bug: norm-eps
        more = self.mixer(normed)
        return more if self.bug == "residual-missing" else x + more  # bug: residual-missing


class Mamba(nn.Module):
    """Words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(60, size.width)
        self.layers = nn.ModuleList(MambaBlock(size, faults.get(n, "")) for n in range(size.layers))
        self.norm_f = nn.RMSNorm(size.width, eps=1e-5)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        x = x if self.bug == "final-norm" else self.norm_f(x)  # bug: final-norm
        return F.linear(x, self.embeddings.weight)
