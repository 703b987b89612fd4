"""A transformer on windows of a picture that are shifted in every second layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

WINDOW, GRID = 4, 8
SHIFT = WINDOW // 2


def windows(x: Tensor) -> Tensor:
    """Cut maps of (batch, rows, columns, width) into windows, a row of places each."""
    batch, rows, columns, width = x.shape
    x = x.view(batch, rows // WINDOW, WINDOW, columns // WINDOW, WINDOW, width)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, width)


def regions(side: int, bug: str) -> Tensor:
    """Return for each window which pairs of places come from different parts of the picture."""
    cuts = torch.zeros(side)
    cuts[-WINDOW:-SHIFT] = 1
    cuts[-SHIFT:] = 2
    if bug == "regions-rows":
        parts = (3 * cuts[:, None]).expand(side, side)  # bug: regions-rows
    else:
        parts = 3 * cuts[:, None] + cuts[None, :]
    parts = windows(parts[None, :, :, None]).squeeze(-1)
    return parts[:, :, None] != parts[:, None, :]


class WindowAttention(nn.Module):
    """Attention within windows, with a bias for each distance."""

    def __init__(self, width: int, heads: int, bug: str) -> None:
        super().__init__()
        self.heads, self.bug = heads, bug
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, heads))

    def bias(self) -> Tensor:
        steps = torch.arange(WINDOW)
        places = torch.stack(torch.meshgrid(steps, steps, indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + WINDOW - 1
        if self.bug == "table-columns":
            index = apart[1] * (2 * WINDOW - 1) + apart[0]  # bug: table-columns
        else:
            index = apart[0] * (2 * WINDOW - 1) + apart[1]
        return self.table[index].permute(2, 0, 1)

    def forward(self, x: Tensor, apart: Tensor | None) -> Tensor:
        count, places, width = x.shape
        q, k, v = self.qkv(x).view(count, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.bug == "scale-heads":
            q = q * self.heads**-0.5  # bug: scale-heads
        else:
            q = q * (width // self.heads) ** -0.5
        scores = q @ k.transpose(-2, -1)
        if self.bug != "bias-missing":
            scores = scores + self.bias()  # bug: bias-missing
        if apart is not None and self.bug != "mask-missing":
            scores = scores.view(-1, len(apart), self.heads, places, places)  # bug: mask-missing
            scores = scores.masked_fill(apart[:, None], -100.0)  # bug: mask-missing
            scores = scores.view(count, self.heads, places, places)
        mixed = scores.softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(count, places, width))


class Block(nn.Module):
    """One layer: windows, perhaps shifted, and a network of two layers."""

    def __init__(self, width: int, heads: int, shift: int, bug: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads, bug)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.shift, self.bug = shift, bug

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, columns, width = x.shape
        y = self.norm1(x)
        apart = None
        if self.shift and self.bug != "shift-missing":
            step = self.shift if self.bug == "shift-sign" else -self.shift
            y = torch.roll(y, (step, step), (1, 2))  # bug: shift-sign, shift-missing
        if self.shift:
            apart = regions(rows, self.bug)
        y = self.attn(windows(y), apart)
        y = y.view(batch, rows // WINDOW, columns // WINDOW, WINDOW, WINDOW, width)
        if self.bug == "windows-back":
            y = y.permute(0, 1, 4, 2, 3, 5).reshape(x.shape)  # bug: windows-back
        else:
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
        if self.shift and self.bug not in ("shift-missing", "shift-back-missing"):
            y = torch.roll(y, (self.shift, self.shift), (1, 2))  # bug: shift-back-missing
        x = x + y
        if self.bug == "mlp-unnormed":
            return x + self.fc2(F.gelu(self.fc1(x)))
        y = self.fc1(self.norm2(x))  # bug: mlp-unnormed
        if self.bug == "gelu-erf":
            y = F.gelu(y, approximate="tanh")  # bug: gelu-erf
        else:
            y = F.gelu(y)
        return x + self.fc2(y)


class Merging(nn.Module):
    """Join each four neighbours, and halve rows and columns."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.norm, self.reduce = (
            nn.LayerNorm(4 * width),
            nn.Linear(4 * width, 2 * width, bias=False),
        )
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        parts = x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]
        if self.bug == "merge-order":
            x = torch.cat([parts[0], parts[2], parts[1], parts[3]], -1)  # bug: merge-order
        else:
            x = torch.cat(parts, -1)
        if self.bug != "merge-norm-missing":
            x = self.norm(x)  # bug: merge-norm-missing
        return self.reduce(x)


class Swin(nn.Module):
    """Pictures in, classes out: two layers, joined neighbours, one more layer."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        width, self.bug = size.width, faults.get(OUTSIDE, "")
        self.patches = nn.Conv2d(3, width, 2, 2)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            Block(width, size.heads, SHIFT * (n % 2), faults.get(n, "")) for n in range(2)
        )
        self.merging = Merging(width, self.bug)
        self.layers.append(Block(2 * width, size.heads, 0, faults.get(2, "")))
        self.last, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.norm(self.patches(image).permute(0, 2, 3, 1))
        x = self.layers[1](self.layers[0](x))
        x = self.layers[2](self.merging(x))
        if self.bug == "pool-early":
            return self.head(self.last(x.mean((1, 2))))  # bug: pool-early
        x = self.last(x)
        x = x.amax((1, 2)) if self.bug == "pool-max" else x.mean((1, 2))  # bug: pool-max
        return self.head(x)
