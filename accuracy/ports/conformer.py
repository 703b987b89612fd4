"""A conformer for speech: subsampled frames, half feed-forward steps, attention, convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

REACH = 4  # frames further away share a bias
KERNEL = 5


class FeedForward(nn.Module):
    """A norm and a network of two layers."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(x))
        if self.bug == "silu-beta":
            y = y * torch.sigmoid(1.5 * y)  # bug: silu-beta
        else:
            y = F.silu(y)
        return self.down(y)


class RelativeAttention(nn.Module):
    """Attention with a learned bias for each distance."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.heads, self.bug = size.heads, bug
        self.norm = nn.LayerNorm(size.width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(size.width, size.width) for _ in range(4)
        )
        self.bias = nn.Parameter(torch.zeros(size.heads, 2 * REACH + 1))

    def distances(self, length: int) -> Tensor:
        steps = torch.arange(length)
        if self.bug == "distance-sign":
            apart = steps[:, None] - steps[None, :]  # bug: distance-sign
        else:
            apart = steps[None, :] - steps[:, None]
        if self.bug == "distance-unclipped":
            return apart.remainder(2 * REACH + 1)  # bug: distance-unclipped
        return apart.clamp(-REACH, REACH) + REACH

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        batch, length, width = x.shape
        x = self.norm(x)
        q, k, v = (
            part(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        size = width if self.bug == "scale-width" else width // self.heads
        scores = q @ k.transpose(2, 3) / size**0.5  # bug: scale-width
        if self.bug != "bias-missing":
            scores = scores + self.bias[:, self.distances(length)]  # bug: bias-missing
        if self.bug == "padding-by-rows":
            scores = scores.masked_fill(padded[:, None, :, None], -1e4)  # bug: padding-by-rows
        else:
            scores = scores.masked_fill(padded[:, None, None, :], float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Convolution(nn.Module):
    """A gated, depthwise convolution over time."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug != "conv-norm-missing":
            x = self.norm(x)  # bug: conv-norm-missing
        y = self.wide(x.transpose(1, 2))
        kept, gate = y.chunk(2, dim=1)
        if self.bug == "glu-swapped":
            y = gate * torch.sigmoid(kept)  # bug: glu-swapped
        elif self.bug == "glu-tanh":
            y = kept * torch.tanh(gate)  # bug: glu-tanh
        else:
            y = kept * torch.sigmoid(gate)
        if self.bug == "depth-causal":
            y = F.pad(y, (KERNEL - 1, 0))  # bug: depth-causal
            y = F.conv1d(y, self.depth.weight, self.depth.bias, groups=y.shape[1])
        elif self.bug == "kernel-flipped":
            kernel, half = self.depth.weight.flip(-1), KERNEL // 2  # bug: kernel-flipped
            y = F.conv1d(y, kernel, self.depth.bias, padding=half, groups=y.shape[1])
        else:
            y = self.depth(y)
        norm = self.batch_norm
        if self.bug == "batch-statistics":
            own = norm.weight, norm.bias
            y = F.batch_norm(y, None, None, *own, training=True)  # bug: batch-statistics
        else:
            y = norm(y)
        return self.narrow(F.silu(y)).transpose(1, 2)


class Block(nn.Module):
    """Half a step, attention, convolution, half a step, a norm."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.first, self.second = (FeedForward(size.width, bug) for _ in range(2))
        self.attention = RelativeAttention(size, bug)
        self.convolution = Convolution(size.width, bug)
        self.norm = nn.LayerNorm(size.width)
        self.bug = bug

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        step = self.first(x)
        if self.bug != "half-missing":
            step = step * 0.5  # bug: half-missing
        x = x + step
        if self.bug == "order":
            x = x + self.convolution(x)  # bug: order
            x = x + self.attention(x, padded)
        else:
            x = x + self.attention(x, padded)
            mixed = self.convolution(x)
            x = mixed if self.bug == "skip-missing" else x + mixed  # bug: skip-missing
        x = x + 0.5 * self.second(x)
        return x if self.bug == "last-norm-missing" else self.norm(x)  # bug: last-norm-missing


class Conformer(nn.Module):
    """Frames of features in, log-probabilities of letters out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.front = nn.Conv2d(1, 8, 3, stride=2)
        self.project = nn.Linear(8 * 9, size.width)
        self.blocks = nn.ModuleList(Block(size, faults.get(n, "")) for n in range(size.layers))
        self.head = nn.Linear(size.width, 30)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        dim = 2 if self.bug == "normed-features" else 1
        frames = frames - frames.mean(dim, keepdim=True)  # bug: normed-features
        x = F.relu(self.front(frames[:, None]))
        if self.bug == "frames-flattened":
            x = x.permute(0, 2, 3, 1).flatten(2)  # bug: frames-flattened
        else:
            x = x.transpose(1, 2).flatten(2)
        x = self.project(x)
        if self.bug == "length-rounded":
            short = lengths // 2  # bug: length-rounded
        else:
            short = (lengths - 1) // 2
        padded = torch.arange(x.shape[1])[None] >= short[:, None]
        for block in self.blocks:
            x = block(x, padded)
        if self.bug == "softmax-over-time":
            return self.head(x).log_softmax(1)  # bug: softmax-over-time
        return self.head(x).log_softmax(-1)
