"""Train a generator and a discriminator against each other, each with an optimizer of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 4


class Generator(nn.Module):
    """From noise to points."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.LeakyReLU(0.2))
        self.head = nn.Linear(24, 4)

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.head(self.body(z)))


class Critic(nn.Module):
    """From points to a score."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 24))
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.leaky_relu(self.up(x), 0.1))


def make() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"generator": Generator(), "critic": Critic()})


def train(models: nn.ModuleDict) -> None:
    torch.manual_seed(1)
    generator, critic = models["generator"], models["critic"]
    by_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.99))
    by_critic = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.5, 0.99))
    for step in range(STEPS):
        centre = 1 + 0.1 * step
        real = torch.randn(10, 4) * 0.5 + centre
        fake = generator(torch.randn(10, 6))
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        by_critic.zero_grad()
        loss.backward()
        by_critic.step()
        fooled = F.softplus(-critic(fake)).mean()
        by_generator.zero_grad()
        fooled.backward()
        by_generator.step()
