"""A decoder that forgets at a rate for each head, in its parallel form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


def rates(heads: int, bug: str) -> Tensor:
    """Return how much each head keeps from one place to the next."""
    kept = 1 - 2.0 ** (-2 - torch.arange(heads))
    return kept.flip(0) if bug == "rates-flipped" else kept  # bug: rates-flipped


class Retention(nn.Module):
    """Heads that keep less the further back it is."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.g, self.o = (
            nn.Linear(size.width, size.width, bias=False) for _ in range(5)
        )
        self.group = nn.GroupNorm(
            1 if bug == "group-count" else size.heads, size.width, eps=1e-5, affine=False
        )
        self.heads, self.bug = size.heads, bug

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        if self.bug == "value-key":
            v = k  # bug: value-key
        if self.bug != "scale-missing":
            k = k * (width // self.heads) ** -0.5  # bug: scale-missing
        steps = torch.arange(length)
        back = steps[:, None] - steps[None, :]
        if self.bug == "decay-late":
            back = back + 1  # bug: decay-late
        decay = rates(self.heads, self.bug)[:, None, None] ** back.clamp(
            min=0
        )  # bug: rates-flipped
        decay = decay.tril(-1 if self.bug == "self-missing" else 0)  # bug: self-missing
        mixed = (q @ k.transpose(2, 3) * decay) @ v  # bug: value-key
        mixed = mixed.transpose(1, 2).reshape(batch * length, width)
        if self.bug != "group-missing":
            mixed = self.group(mixed)  # bug: group-count, group-missing
        gate = self.g(x)
        if self.bug == "gate-sigmoid":
            gate = torch.sigmoid(gate)  # bug: gate-sigmoid
        else:
            gate = F.silu(gate)
        return self.o(gate * mixed.view(batch, length, width))


class Layer(nn.Module):
    """Retention and a gated network."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(size.width, eps=1e-5), nn.RMSNorm(size.width, eps=1e-5)
        self.retention = Retention(size, bug)
        self.up, self.gate = (nn.Linear(size.width, 2 * size.width) for _ in range(2))
        self.down = nn.Linear(2 * size.width, size.width)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.retention(self.norm1(x))
        y = x if self.bug == "norm-missing" else self.norm2(x)  # bug: norm-missing
        gate = self.gate(y)
        gate = F.relu(gate) if self.bug == "relu" else F.silu(gate)  # bug: relu
        if self.bug == "up-added":
            return x + self.down(gate + self.up(y))  # bug: up-added
        return x + self.down(gate * self.up(y))


class RetNet(nn.Module):
    """Words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, size.width)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.last = nn.LayerNorm(size.width)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * 1.5
        for layer in self.layers:
            x = layer(x)
        x = x if self.bug == "final-norm" else self.last(x)  # bug: final-norm
        logits = F.linear(x, self.embed.weight)
        if self.bug == "logit-scale":
            logits = logits * 0.25  # bug: logit-scale
        return logits
