"""Small programs whose traces the golden files show. Line numbers here are part of those files."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew
from tests.golden.ticks import read  # noqa: F401  tests say programs.read(programs.training())


class Block(nn.Module):
    """A layer with a residual connection; `width` and `act` make one differ from another."""

    def __init__(self, width: int = 8, act: str = "relu") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, width)
        self.down = nn.Linear(width, 4)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        h = h.relu() if self.act == "relu" else h.tanh()
        return x + self.down(h)


class Stack(nn.Module):
    """Six blocks, of which the fourth may differ."""

    def __init__(self, **fourth: object) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(**fourth if i == 3 else {}) for i in range(6))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Checkpointed(Stack):
    """Blocks whose forward pass is run again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class Gated(nn.Module):
    """Ops between the layers of a loop, with a constant that counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(5)
        )
        self.gate = nn.Parameter(torch.ones(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x + layer(x) * self.gate[i]
        return x.mean(0)


class Recurrent(nn.Module):
    """One cell called in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


def doubled(x: Tensor, times: int) -> Tensor:
    """A loop on one line, and one over two."""
    for _ in range(times):
        x = x * 2 + 1
    for _ in range(times):
        x = x.relu()
        x = x - 1
    return x


def stack(**fourth: object) -> clew.Trace:
    model, x = Stack(**fourth), torch.ones(2, 4)
    with clew.trace(model) as t:
        model(x)
    return t


def training(steps: int = 3) -> clew.Trace:
    model, x, y = Stack(), torch.ones(2, 4), torch.zeros(2, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model) as t:
        for _ in range(steps):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            t.step()
    return t


def checkpointed() -> clew.Trace:
    model, x = Checkpointed(), torch.ones(2, 4, requires_grad=True)
    with clew.trace(model) as t:
        loss = model(x).sum()
        loss.backward()
    return t


def gated() -> clew.Trace:
    model, x = Gated(), torch.ones(2, 4)
    with torch.no_grad(), clew.trace(model) as t:
        model(x)
    return t


def recurrent() -> clew.Trace:
    model, x = Recurrent(), torch.ones(2, 4, 3)
    with torch.no_grad(), clew.trace(model) as t:
        model(x)
    return t


def loops() -> clew.Trace:
    x = torch.ones(2)
    with clew.trace() as t:
        doubled(x, 3)
    return t


def encoder() -> clew.Trace:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    x = torch.ones(2, 5, 16)
    with torch.no_grad(), clew.trace(model) as t:
        model(x)
    return t


def crash() -> clew.Trace:
    model, x = Stack(), torch.ones(2, 4)
    model.blocks[3].down = nn.Linear(5, 4)
    with contextlib.suppress(RuntimeError), clew.trace(model) as t:
        model(x)
    return t


def growing() -> clew.Trace:
    """One model called with more and more tokens."""
    model = Stack()
    inputs = [torch.ones(n, 4) for n in range(1, 9)]
    with torch.no_grad(), clew.trace(model) as t:
        for x in inputs:
            model(x)
    return t


class Noted(nn.Module):
    """A layer with variables worth a look, and a tap."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        nn.init.constant_(self.proj.weight, 0.25)
        nn.init.constant_(self.proj.bias, 0.5)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        parts = {"gate": self.proj(x).sigmoid(), "value": x}
        out = parts["gate"] * parts["value"]
        out[:, 0] = 0
        return clew.tap("gated", out, self)


def largest(tensors: list[Tensor]) -> tuple[str, float]:
    """Bindings of numbers and texts, several in one line."""
    name, most = "none", 0.0
    for number, tensor in enumerate(tensors):
        found = round(tensor.max().item(), 3)
        if found > most:
            name, most = f"tensor {number}", found
    return name, most


def named() -> clew.Trace:
    """One training step with variables, a tap, gradients, parameters and updates."""
    model = nn.Sequential(Noted(), Noted(), Noted())
    x = torch.arange(8.0).reshape(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture = [
        "*.forward.out", "0.forward.parts", "1.forward.self.runs", "2.forward",
        "programs.py:largest.*", "1:grad", "0.proj.bias:grad", "0.proj.bias:update",
        "0.proj.bias:param",
    ]  # fmt: skip
    with clew.trace(model, values="stats", capture=capture) as t:
        y = model(x)
        y.sum().backward()
        optimizer.step()
        largest([x, y])
    return t


def once(program: Callable[..., clew.Trace]) -> Callable[..., clew.Trace]:
    """Run a program once in a test process: its trace is only read."""
    return functools.cache(program)


stack, training, crash, named = map(once, (stack, training, crash, named))
checkpointed, gated, recurrent = map(once, (checkpointed, gated, recurrent))
loops, encoder, growing = map(once, (loops, encoder, growing))
