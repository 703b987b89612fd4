"""Train a tagger with an LSTM on sentences of several lengths, with an evaluation each epoch."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

EPOCHS = 2
WORDS, TAGS = 30, 5


class Tagger(nn.Module):
    """Embedding, LSTM in two directions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 10, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(20, TAGS)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(ids))
        return self.head(self.drop(states))


def make() -> nn.Module:
    torch.manual_seed(0)
    return Tagger()


def sentences() -> list[list[int]]:
    source = random.Random(3)
    return [[source.randrange(1, WORDS) for _ in range(source.randrange(3, 9))] for _ in range(18)]


def padded(batch: list[list[int]]) -> tuple[Tensor, Tensor]:
    size = max(map(len, batch))
    ids = torch.tensor([one + [0] * (size - len(one)) for one in batch])
    return ids, torch.where(ids > 0, ids % TAGS, -100)


def train(model: nn.Module) -> None:
    torch.manual_seed(7)
    random.seed(7)
    data = sentences()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3, alpha=0.9, momentum=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
    for _ in range(EPOCHS):
        model.train()
        random.shuffle(data)
        for ids, tags in DataLoader(data, batch_size=6, collate_fn=padded):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten(), ignore_index=-100)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            model(padded(data[:4])[0])
