"""Pairs of runs that a comparison is made of: the same code with one change, and a port."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clew

WIDTH = 8
LAYERS = 7
FAULTY = 3
X = torch.linspace(-2, 3, 2 * 5 * WIDTH).sin().reshape(2, 5, WIDTH)


class Block(nn.Module):
    """A block whose norm or activation can be wrong."""

    def __init__(self, eps: float = 1e-5, bare: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=eps)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.bare = bare

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        if not self.bare:
            h = h.relu()
        return x + self.down(h)


class Net(nn.Module):
    """Blocks one after the other; the one in the middle may be faulty."""

    def __init__(self, **fault: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(**(fault if n == FAULTY else {})) for n in range(LAYERS))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Step(nn.Module):
    """A block of the port, with its linear layers written out."""

    def __init__(self, block: Block, scale: float) -> None:
        super().__init__()
        self.ln, self.block, self.scale = block.norm, [block], scale

    def forward(self, x: Tensor) -> Tensor:
        (block,) = self.block
        h = torch.clamp(F.linear(self.ln(x), block.up.weight, block.up.bias), min=0) * self.scale
        return torch.add(F.linear(h, block.down.weight, block.down.bias), x)


class Body(nn.Module):
    """What the port has around its blocks, and the original has not."""

    def __init__(self, net: Net, scale: float) -> None:
        super().__init__()
        self.h = nn.ModuleList(
            Step(block, scale if n == FAULTY else 1.0)
            for n, block in enumerate(net.layers)
            if isinstance(block, Block)
        )

    def forward(self, x: Tensor) -> Tensor:
        for step in self.h:
            x = step(x)
        return x


class Port(nn.Module):
    """The same function by other ops, in other modules."""

    def __init__(self, net: Net, scale: float = 1.0) -> None:
        super().__init__()
        self.body, self.out = Body(net, scale), net.head

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


def recorded(model: nn.Module, **options: Any) -> clew.Trace:
    """Record one forward pass, by default with statistics of all values."""
    with torch.no_grad(), clew.trace(model, **{"values": "stats", **options}) as t:
        model(X)
    return t


def original() -> Net:
    """Return the reference, always with the same weights."""
    torch.manual_seed(0)
    return Net()


def changed(**fault: Any) -> Net:
    """Return the reference with a fault in one layer."""
    torch.manual_seed(0)
    return Net(**fault)
