"""A decoder whose keys and values come from a small latent, half of them turned by position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

TURNED, PLAIN, VALUE, LATENT, QUERIES = 8, 12, 16, 24, 40


class RootNorm(nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def angles(length: int, bug: str) -> Tensor:
    """Return by how much each pair of numbers is turned at each place."""
    base = 500.0 if bug == "rope-base" else 10000.0  # bug: rope-base
    rates = 1.0 / base ** (torch.arange(0, TURNED, 2).float() / TURNED)  # bug: rope-base
    places = torch.arange(length).float()
    if bug == "rope-late":
        places = places * 2  # bug: rope-late
    return torch.outer(places, rates)


def turned(x: Tensor, by: Tensor) -> Tensor:
    """Turn neighbours as complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(by), by)).flatten(-2)


class LatentAttention(nn.Module):
    """Queries through a bottleneck; keys and values from a latent and one turned key for all."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        d, n = size.width, size.heads
        self.q_down, self.q_up = (
            nn.Linear(d, QUERIES, bias=False),
            nn.Linear(QUERIES, n * (PLAIN + TURNED), bias=False),
        )
        self.q_norm, self.kv_norm = RootNorm(QUERIES), RootNorm(LATENT)
        self.kv_down = nn.Linear(d, LATENT + TURNED, bias=False)
        self.kv_up = nn.Linear(LATENT, n * (PLAIN + VALUE), bias=False)
        self.out = nn.Linear(n * VALUE, d, bias=False)
        self.heads, self.bug = n, bug

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q_down(x)
        if self.bug != "query-norm":
            q = self.q_norm(q)  # bug: query-norm
        q = self.q_up(q).view(b, t, self.heads, PLAIN + TURNED).transpose(1, 2)
        q_plain, q_turned = q.split([PLAIN, TURNED], dim=-1)
        latent, key = self.kv_down(x).split([LATENT, TURNED], dim=-1)
        if self.bug != "latent-norm":
            latent = self.kv_norm(latent)  # bug: latent-norm
        kv = self.kv_up(latent).view(b, t, self.heads, PLAIN + VALUE).transpose(1, 2)
        k_plain, v = kv.split([PLAIN, VALUE], dim=-1)
        by = angles(t, self.bug)
        q_turned = turned(q_turned, by)
        key = key.unsqueeze(1)
        if self.bug != "key-unturned":
            key = turned(key, by)  # bug: key-unturned
        k = torch.cat([k_plain, key.expand(-1, self.heads, -1, -1)], dim=-1)
        q = torch.cat([q_plain, q_turned], dim=-1)
        if self.bug == "scale-plain":
            scale = PLAIN**-0.5  # bug: scale-plain
        else:
            scale = (PLAIN + TURNED) ** -0.5
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale  # bug: scale-plain
        diagonal = 0 if self.bug == "mask-strict" else 1
        banned = torch.ones(t, t, dtype=torch.bool).triu(diagonal)  # bug: mask-strict
        banned[0, 0] = False
        scores = scores.masked_fill(banned, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        y = torch.einsum("bhqk,bhkd->bqhd", weights, v)
        return self.out(y.reshape(b, t, -1))


class Layer(nn.Module):
    """Attention and a gated network, with a shared expert beside it."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        d = size.width
        self.norm1, self.norm2 = RootNorm(d, 1e-2 if bug == "norm-eps" else 1e-6), RootNorm(d)
        self.attention = LatentAttention(size, bug)
        self.gate, self.up, self.down = (
            nn.Linear(d, 96, bias=False), nn.Linear(d, 96, bias=False), nn.Linear(96, d, bias=False)
        )  # fmt: skip
        self.shared_in, self.shared_out = nn.Linear(d, 48, bias=False), nn.Linear(48, d, bias=False)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))  # bug: norm-eps
        y = self.norm2(x)
        gate, up = self.gate(y), self.up(y)
        if self.bug == "gate-up":
            gate, up = up, gate  # bug: gate-up
        if self.bug == "gelu":
            gate = F.gelu(gate)  # bug: gelu
        else:
            gate = F.silu(gate)  # bug: gate-up
        routed = self.down(gate * up)  # bug: gate-up
        if self.bug == "shared-missing":
            return x + routed
        given = x if self.bug == "shared-raw" else y
        shared = F.relu(self.shared_in(given)).square()  # bug: shared-raw, shared-missing
        shared = self.shared_out(shared)  # bug: shared-missing
        if self.bug == "short-normed":
            return y + routed + shared  # bug: short-normed
        return x + routed + shared  # bug: shared-missing


class Decoder(nn.Module):
    """Words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, size.width)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.norm, self.head = RootNorm(size.width), nn.Linear(size.width, 60, bias=False)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        x = x if self.bug == "final-norm" else self.norm(x)  # bug: final-norm
        logits = self.head(x)
        if self.bug == "cap-missing":
            return logits
        return 5 * torch.tanh(logits / 5)  # bug: cap-missing
