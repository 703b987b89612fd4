"""Train a recurrent net to follow curves: a loss of two parts, and an optimizer by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

STEPS = 6


class Follower(nn.Module):
    """A GRU cell, run by hand, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, 24)
        self.head = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 24)
        out = []
        for moment in x.unbind(1):
            state = self.cell(moment, state)
            out.append(self.head(state))
        return torch.stack(out, dim=1)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Follower()


def curves(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    phases = [0.3, 1.1, 2.0, 2.4, 3.3, 4.2, 5.0, 5.9]
    for n in range(count):
        times = [[phase + 0.4 * t + 0.9 * n for t in range(7)] for phase in phases]
        points = torch.tensor([[(math.cos(t), math.sin(t)) for t in row] for row in times])
        yield points[:, :-1], points[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    guess = model(x)
    near = (guess - y).square().mean()
    smooth = (guess[:, 1:] - guess[:, :-1]).abs().mean()
    return near + 0.1 * smooth


def update(model: nn.Module, velocity: dict[str, Tensor], rate: float) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            velocity[name] = 0.9 * velocity.get(name, torch.zeros_like(weight)) + weight.grad
            weight -= rate * velocity[name]
            weight.grad = None


def train(model: nn.Module) -> None:
    velocity: dict[str, Tensor] = {}
    model.train()
    for x, y in curves(STEPS):
        loss = loss_of(model, x, y)
        loss.backward()
        update(model, velocity, 0.1)
