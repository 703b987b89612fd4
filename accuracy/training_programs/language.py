"""Train a small decoder on tokens: gradients of two parts of a batch, Adam, warm-up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 6
WIDTH, HEADS, TOKENS = 32, 4, 40


class Attention(nn.Module):
    """Causal self-attention with dropout of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = self.drop(scores.masked_fill(future, float("-inf")).softmax(-1))
        y = (weights @ v).transpose(1, 2).reshape(batch, length, WIDTH)
        return self.out(y)


class Layer(nn.Module):
    """Attention and two linear layers, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """Token and position embeddings, two layers, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


def make() -> nn.Module:
    torch.manual_seed(0)
    return Decoder()


def text(step: int) -> Tensor:
    source = torch.Generator().manual_seed(100 + step)
    return torch.randint(0, TOKENS, (4, 13), generator=source)


def train(model: nn.Module) -> None:
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 4))
    model.train()
    for step in range(STEPS):
        ids = text(step)
        optimizer.zero_grad()
        for part in ids.chunk(2):
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
