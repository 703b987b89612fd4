"""Train a classifier with dropout on rows of a table, shuffled by a DataLoader, with AdamW."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6


class Classifier(nn.Module):
    """Two hidden layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(12, 32)
        self.mid = nn.Linear(32, 32)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.up(x))
        h = self.drop(h)
        h = h + torch.tanh(self.mid(h))
        return self.head(h)


def make() -> nn.Module:
    torch.manual_seed(0)
    return Classifier()


def batches() -> Iterator[list[Tensor]]:
    data = torch.Generator().manual_seed(1)
    x = torch.randn(96, 12, generator=data)
    y = torch.randint(0, 5, (96,), generator=data)
    order = torch.Generator().manual_seed(2)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=order)
    yield from loader


def train(model: nn.Module) -> None:
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    model.train()
    for step, (x, y) in enumerate(batches()):
        if step == STEPS:
            break
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
