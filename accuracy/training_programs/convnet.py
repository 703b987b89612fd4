"""Train a small convolutional net with batch norm: SGD with momentum, clipping, a schedule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 6


class Block(nn.Module):
    """Convolution, batch norm and a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return x + F.relu(y)


class ConvNet(nn.Module):
    """A stem, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        pooled = h.mean(dim=(2, 3))
        return self.head(pooled)


def make() -> nn.Module:
    torch.manual_seed(0)
    return ConvNet()


def pictures() -> list[tuple[Tensor, Tensor]]:
    data = torch.Generator().manual_seed(1)
    labels = torch.arange(6) % 4
    return [(torch.rand(6, 3, 8, 8, generator=data), labels) for _ in range(8)]


def augmented(x: Tensor) -> Tensor:
    flip = torch.rand(x.shape[0]) < 0.5
    return torch.where(flip[:, None, None, None], x.flip(3), x)


def train(model: nn.Module) -> None:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    model.train()
    for x, y in pictures()[:STEPS]:
        x = augmented(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
