"""Crashes planted in generative models: a GAN, a diffusion model, a residual audio network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.planted import Planted, run_of


class Adversaries(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 12), nn.LeakyReLU(), nn.Linear(12, 1))


def _gan() -> tuple[nn.Module, Callable[[], Any]]:
    model = Adversaries()
    judge = torch.optim.Adam(model.discriminator.parameters())

    def run() -> None:
        noise, real = torch.randn(5, 6), torch.randn(5, 4)
        fake = model.generator(noise)
        doubt = model.discriminator(fake).mean() - model.discriminator(real).mean()
        doubt.backward()
        judge.step()
        trust = -model.discriminator(fake).mean()
        trust.backward()  # crash: gan-shared

    return model, run


def _penalty() -> tuple[nn.Module, Callable[[], Any]]:
    model = Adversaries()

    def run() -> None:
        real, fake = torch.randn(5, 4), torch.randn(5, 4)
        share = torch.rand(5)
        mixed = share * real + (1 - share) * fake  # crash: gan-mix
        model.discriminator(mixed)

    return model, run


class Denoiser(nn.Module):
    """A convolution that is told the time, and the schedule of its noise."""

    schedule: Tensor

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, 8), nn.SiLU())
        self.last = nn.Conv2d(8, 3, 3)
        self.register_buffer("schedule", torch.linspace(0.9, 0.1, 10))
        self.fault = fault

    def forward(self, image: Tensor, step: Tensor) -> Tensor:
        kept = self.schedule[step + 1]  # crash: diffusion-step
        if self.fault == "noise":
            image = image * kept  # crash: diffusion-noise
        moment = self.time(torch.ones(len(image), 16))
        features = self.first(image)
        if self.fault == "time":
            features = features + moment  # crash: diffusion-time
        features = features + moment[:, :, None, None]
        return image - self.last(features)  # crash: diffusion-padding


class Wave(nn.Module):
    """Dilated convolutions with residual connections."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv1d(4, 4, 3, dilation=2**at, padding=2**at) for at in range(2)]
        )
        if fault == "third":
            self.layers.append(nn.Conv1d(4, 4, 3, dilation=4, padding=2))
        self.pool = nn.AvgPool1d(4)
        self.fault = fault

    def forward(self, wave: Tensor) -> Tensor:
        for layer in self.layers:
            changed = layer(wave).relu()
            wave = wave + changed  # crash: wave-residual
        while self.fault == "pool":
            wave = self.pool(wave)  # crash: wave-pool
        outputs = [wave, self.pool(wave), wave[..., 1:]]
        return torch.cat(outputs, dim=1)  # crash: wave-skips


class Codes(nn.Module):
    """Vectors that are replaced by the nearest of a book."""

    def __init__(self) -> None:
        super().__init__()
        self.book = nn.Parameter(torch.randn(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.book).topk(9, largest=False)  # crash: codes-nearest
        return F.embedding(nearest.indices, self.book)


CRASHES = [
    Planted("gan-shared", "second backward", _gan, None, ("trust",), ("doubt.backward()",),
            r"fake\.detach\(\)"),
    Planted("gan-mix", "broadcast", _penalty, None, ("share", "real"), ("[5]", "[5,4]"),
            r"share\.unsqueeze\(1\)"),
    Planted("diffusion-step", "index",
            lambda: run_of(Denoiser(), torch.ones(2, 3, 9, 9), torch.tensor([3, 9])), "",
            ("self.schedule", "step + 1"), ("10", "[10]"), None),
    Planted("diffusion-noise", "broadcast",
            lambda: run_of(Denoiser("noise"), torch.ones(2, 3, 9, 9), torch.tensor([3, 4])), "",
            ("image", "kept"), ("[2,3,9,9]", "[2]"), r"kept\[:, None, None, None\]"),
    Planted("diffusion-time", "broadcast",
            lambda: run_of(Denoiser("time"), torch.ones(2, 3, 9, 9), torch.tensor([3, 4])), "",
            ("features", "moment"), ("[2,8,9,9]", "[2,8]"), r"moment\[:, :, None, None\]"),
    Planted("diffusion-padding", "broadcast",
            lambda: run_of(Denoiser(), torch.ones(2, 3, 9, 9), torch.tensor([3, 4])), "",
            ("image", "self.last(features)"), ("resized: 9 → 7",), "padding=1 in last"),
    Planted("wave-residual", "broadcast",
            lambda: run_of(Wave("third"), torch.ones(2, 4, 16)), "", ("wave", "changed"),
            ("16", "12", "dilation 4"), "padding=4 in layers.2"),
    Planted("wave-pool", "kernel", lambda: run_of(Wave("pool"), torch.ones(2, 4, 16)), "pool",
            ("wave",), ("[2,4,1]",), None),
    Planted("wave-skips", "cat", lambda: run_of(Wave(), torch.ones(2, 4, 16)), "",
            ("outputs[0]", "outputs[1]", "outputs[2]"), ("16", "4", "15"), None),
    Planted("codes-nearest", "top k", lambda: run_of(Codes(), torch.ones(3, 5)), "",
            ("torch.cdist(x, self.book)",), ("9", "7"), r"min\(9, torch.cdist"),
]  # fmt: skip
