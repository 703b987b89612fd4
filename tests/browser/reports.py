"""The traces whose reports the browser opens: training, a crash, NaN, two ranks, many events."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import clew


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.out(weights @ v)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = Attention(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


class Net(nn.Module):
    def __init__(self, width: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TOKENS = torch.arange(12).reshape(2, 6)


def training(steps: int = 2) -> clew.Trace:
    """Steps of training, statistics of everything, the data of the attention."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats", capture=["blocks.*.attn", "op:_softmax"]) as t:
        for _ in range(steps):
            optimizer.zero_grad()
            model(TOKENS).logsumexp(-1).mean().backward()
            optimizer.step()
            t.step()
    return t


def variables() -> clew.Trace:
    """Locals of one method, a tap, a gradient."""
    torch.manual_seed(0)
    model = Net(layers=1)
    wanted = ["blocks.0.attn.forward.*", "blocks.0.norm:grad"]
    with clew.trace(model, values="stats", capture=wanted) as t:
        loss = clew.tap("loss", model(TOKENS).logsumexp(-1).mean())
        loss.backward()
    return t


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.last = nn.Linear(5, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.net(tokens))


class Pictures(nn.Module):
    """A convolution over pictures in colour, and eight heads of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor, x: Tensor) -> Tensor:
        q = x.reshape(2, 5, 8, 2).transpose(1, 2)
        return (q @ q.mT).softmax(-1).sum() + self.conv(images).sum()


def pictures(steps: int = 3) -> clew.Trace:
    """Kept data of several steps: pictures, attention, gradients."""
    torch.manual_seed(0)
    model = Pictures()
    with clew.trace(model, capture=["conv:in.*", "op:_softmax", "**:grad"]) as t:
        for _ in range(steps):
            model(torch.rand(2, 3, 12, 12), torch.randn(2, 5, 16)).backward()
            t.step()
    return t


def crash() -> clew.Trace:
    """A run that ends in an exception."""
    model = Wrong()
    try:
        with clew.trace(model) as t:
            model(TOKENS)
    except RuntimeError:
        return t
    raise AssertionError("the model was meant to fail")


def nonfinite() -> clew.Trace:
    """A logarithm of numbers below zero."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with clew.trace(model, values="full") as t:
        (model(torch.ones(2, 4)) - 10).log().sum()
    return t


class Bad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(-x.abs() - 1)


def nan_from(where: str) -> clew.Trace:
    """NaN by module calls alone, from the batch, or from a weight."""
    model = nn.Sequential(nn.Linear(3, 3), Bad() if where == "modules" else nn.Tanh())
    batch = torch.ones(2, 3)
    if where == "batch":
        batch[0, 0] = torch.nan
    if where == "weight":
        nn.init.constant_(model[0].weight, torch.nan)
    level = "modules" if where == "modules" else "ops"
    with clew.trace(model, level=level, values="stats") as t:
        model(batch)
    return t


class Masked(nn.Module):
    """Attention weights with a mask of -inf and buckets of distances that choose log(0) away."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        distance = torch.arange(size).float()
        bias = torch.where(distance < 2, distance, distance.log())
        later = torch.ones(size, size).triu(1).bool()
        scores = (x @ x.mT + bias).masked_fill(later, -torch.inf)
        return scores.softmax(-1) @ x


def masked() -> clew.Trace:
    """Infinities that are meant."""
    model = Masked()
    with clew.trace(model, values="stats") as t:
        model(torch.ones(1, 4, 3)).sum()
    return t


def two_ranks(folder: Path) -> clew.Trace:
    """The same forward pass on two ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        for rank in range(2):
            patch.setenv("RANK", str(rank))
            model = Net(layers=1)
            with clew.trace(model, values="stats", out=folder):
                model(TOKENS)
    return clew.load(folder)


def many(events: int) -> clew.Trace:
    """Training steps until there are so many events."""
    torch.manual_seed(0)
    model = Net(layers=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(TOKENS).logsumexp(-1).mean().backward()
        optimizer.step()

    step()
    with clew.trace(model) as one:
        step()
    with clew.trace(model) as t:
        for _ in range(events // len(one) + 1):
            step()
            t.step()
    return t
