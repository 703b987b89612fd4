"""A recurrent tagger with gates, as its equations are written: a matrix for each gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Cell(nn.Module):
    """One step: an update gate, a reset gate, and a candidate."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.w_z, self.w_r, self.w_n = (nn.Linear(width, width) for _ in range(3))
        self.u_z, self.u_r, self.u_n = (nn.Linear(width, width) for _ in range(3))
        self.bug = bug

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        z = torch.sigmoid(self.w_z(x) + self.u_z(h))
        r = torch.sigmoid(self.w_r(x) + self.u_r(h))
        if self.bug == "gates-swapped":
            z, r = r, z  # bug: gates-swapped
        if self.bug == "reset-early":
            n = self.w_n(x) + self.u_n(r * h)  # bug: reset-early, gates-swapped
        elif self.bug == "reset-missing":
            n = self.w_n(x) + self.u_n(h)
        else:
            n = self.w_n(x) + r * self.u_n(h)  # bug: reset-missing, gates-swapped
        if self.bug == "candidate-sigmoid":
            n = torch.sigmoid(n)  # bug: candidate-sigmoid
        else:
            n = torch.tanh(n)
        if self.bug == "update-flipped":
            return z * n + (1 - z) * h  # bug: update-flipped
        return (1 - z) * n + z * h  # bug: gates-swapped


class Layer(nn.Module):
    """A cell over time, a norm and a shortcut."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.cell = Cell(size.width, bug)
        self.norm = nn.LayerNorm(size.width, eps=1e-2 if bug == "norm-eps" else 1e-5)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)  # bug: norm-eps
        h = torch.zeros_like(x[:, 0])
        rows = []
        for t in range(x.shape[1]):
            if self.bug == "state-lost":
                h = torch.zeros_like(h)  # bug: state-lost
            h = self.cell(normed[:, t], h)  # bug: state-lost
            rows.append(h)
        y = torch.stack(rows, dim=1)
        return y if self.bug == "residual-missing" else x + y  # bug: residual-missing


class Tagger(nn.Module):
    """Words in, one class out, by a weighted mean over time."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, size.width)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.key, self.query = nn.Linear(size.width, size.width), nn.Linear(size.width, 1)
        self.out = nn.Linear(size.width, 10)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.bug != "embed-scale":
            x = x * 0.5  # bug: embed-scale
        for layer in self.layers:
            x = layer(x)
        keys = self.key(x)
        keys = F.relu(keys) if self.bug == "key-relu" else torch.tanh(keys)  # bug: key-relu
        dim = 0 if self.bug == "pool-rows" else 1
        weights = torch.softmax(self.query(keys), dim=dim)  # bug: pool-rows
        if self.bug == "pool-last":
            return self.out(x[:, -1])  # bug: pool-last
        return self.out((weights * x).sum(1))
