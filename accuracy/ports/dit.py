"""A transformer of noisy pictures, whose norms are shifted and scaled by the time, as in papers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

PATCH, SIDE, WAVES = 4, 4, 32


def waves(steps: Tensor, bug: str) -> Tensor:
    """Return cosines and sines of steps at falling rates."""
    rates = torch.exp(-math.log(10000) * torch.arange(WAVES // 2) / (WAVES // 2))
    if bug == "time-rate":
        rates = 100.0 ** (-torch.arange(WAVES // 2) / (WAVES // 2))  # bug: time-rate
    angles = steps[:, None] * rates[None]
    if bug == "time-turned":
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)  # bug: time-turned
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


class Attention(nn.Module):
    """Heads over all patches."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.qkv, self.proj = (
            nn.Linear(size.width, 3 * size.width),
            nn.Linear(size.width, size.width),
        )
        self.heads, self.bug = size.heads, bug

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.bug == "query-key":
            q, k = k, q  # bug: query-key
        scale = d**-0.5 if self.bug == "scale-width" else (d // self.heads) ** -0.5
        scores = (q * scale) @ k.transpose(-2, -1)  # bug: scale-width, query-key
        if self.bug == "softmax-queries":
            weights = scores.softmax(dim=-2)  # bug: softmax-queries
        else:
            weights = scores.softmax(dim=-1)
        y = weights @ v
        if self.bug == "heads-first":
            return self.proj(y.reshape(b, n, d))  # bug: heads-first
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


def modulated(x: Tensor, shift: Tensor, scale: Tensor, bug: str) -> Tensor:
    """Scale and shift all places of a picture alike."""
    if bug == "one-missing":
        return x * scale.unsqueeze(1) + shift.unsqueeze(1)  # bug: one-missing
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # bug: shift-scale


class Block(nn.Module):
    """Attention and a network, both with norms that the time steers."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        eps = 1e-3 if bug == "norm-eps" else 1e-6
        self.norm1 = nn.LayerNorm(size.width, elementwise_affine=False, eps=eps)
        self.attn = Attention(size, bug)
        self.norm2 = nn.LayerNorm(size.width, elementwise_affine=False, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(size.width, 128), nn.Linear(128, size.width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(size.width, 6 * size.width))
        self.bug = bug

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        if self.bug == "silu-missing":
            steer = self.modulation[1](c)
        else:
            steer = self.modulation(c)  # bug: silu-missing
        shift1, scale1, gate1, shift2, scale2, gate2 = steer.chunk(6, dim=1)
        if self.bug == "shift-scale":
            shift1, scale1 = scale1, shift1  # bug: shift-scale
        if self.bug == "gates-swapped":
            gate1, gate2 = gate2, gate1  # bug: gates-swapped
        y = self.norm1(x)  # bug: norm-eps
        y = modulated(y, shift1, scale1, self.bug)  # bug: shift-scale
        y = self.attn(y)
        if self.bug == "gate-missing":
            x = x + y
        else:
            x = x + gate1.unsqueeze(1) * y  # bug: gate-missing, gates-swapped
        if self.bug == "steer-again":
            shift2, scale2 = shift1, scale1  # bug: steer-again
        y = x if self.bug == "norm-missing" else self.norm2(x)  # bug: norm-missing
        y = self.fc1(modulated(y, shift2, scale2, ""))  # bug: steer-again
        how = "none" if self.bug == "gelu-exact" else "tanh"
        y = self.fc2(F.gelu(y, approximate=how))  # bug: gelu-exact
        if self.bug == "short-missing":
            return gate2.unsqueeze(1) * y
        return x + gate2.unsqueeze(1) * y  # bug: gates-swapped, short-missing


class DiT(nn.Module):
    """A picture and its time in, a picture out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.bug = size.width, faults.get(OUTSIDE, "")
        self.patch = nn.Conv2d(3, d, PATCH, stride=PATCH)
        self.places = nn.Parameter(torch.zeros(1, SIDE * SIDE, d))
        self.time1, self.time2 = nn.Linear(WAVES, d), nn.Linear(d, d)
        self.blocks = nn.ModuleList(Block(size, faults.get(n, "")) for n in range(size.layers))
        self.norm = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6)
        self.steer = nn.Linear(d, 2 * d)
        self.head = nn.Linear(d, 3 * PATCH * PATCH)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        if self.bug != "places-missing":
            x = x + self.places  # bug: places-missing
        c = self.time2(F.silu(self.time1(waves(time, self.bug))))
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.steer(F.silu(c)).chunk(2, dim=1)
        if self.bug == "last-shift":
            x = self.norm(x) * (1 + scale[:, None])
        else:
            x = modulated(self.norm(x), shift, scale, "")  # bug: last-shift
        x = self.head(x).reshape(-1, SIDE, SIDE, PATCH, PATCH, 3)
        if self.bug == "rows-columns":
            x = torch.einsum("nhwqpc->nchpwq", x)  # bug: rows-columns
        else:
            x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(image.shape)
