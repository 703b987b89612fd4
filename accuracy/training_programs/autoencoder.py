"""Train a variational autoencoder on pictures: a scaled loss, averaged weights."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 5


class Autoencoder(nn.Module):
    """Convolutions to a mean and a variance, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(96, 16)
        )
        self.decode = nn.Sequential(
            nn.Linear(8, 96), nn.Unflatten(1, (6, 4, 4)), nn.GroupNorm(2, 6), nn.SiLU(),
            nn.ConvTranspose2d(6, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(x).chunk(2, dim=1)
        noise = torch.randn_like(mean)
        z = mean + noise * torch.exp(0.5 * spread)
        return self.decode(z), mean, spread


def make() -> nn.Module:
    torch.manual_seed(0)
    return Autoencoder()


def loss_of(out: Tensor, x: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    far = F.binary_cross_entropy_with_logits(out, x)
    kl = -0.5 * (1 + spread - mean.square() - spread.exp()).mean()
    return far + 0.05 * kl


def train(model: nn.Module) -> None:
    torch.manual_seed(5)
    pictures = torch.rand(40, 1, 8, 8)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW([
        {"params": model.encode.parameters(), "lr": 2e-3},
        {"params": model.decode.parameters(), "lr": 4e-3},
    ], weight_decay=0.02)  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(STEPS):
        x = pictures[torch.randperm(40)[:8]]
        optimizer.zero_grad()
        out, mean, spread = model(x)
        loss = loss_of(out, x, mean, spread)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for held, weight in zip(average.parameters(), model.parameters(), strict=True):
                held.lerp_(weight, 0.1)
