"""What is run: models small enough to show the cost per event, and one of a usual size.

Out come `Workload`s, each a model and a function that runs it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import clew


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, and one run of it."""

    name: str
    model: nn.Module
    run: Callable[[], object]


def encoder() -> Workload:
    """Six encoder layers, so small that only the number of ops counts."""
    model, x = _encoder(layers=6, width=64, heads=4, hidden=128, batch=2, tokens=16)
    return _forward("encoder", model, x)


def encoder_training() -> Workload:
    """The same, forward and backward."""
    model, x = _encoder(layers=6, width=64, heads=4, hidden=128, batch=2, tokens=16)
    parameters = list(model.parameters())

    def run() -> object:
        for parameter in parameters:
            parameter.grad = None
        loss = model(x).sum()
        loss.backward()
        return loss

    return Workload("encoder forward + backward", model, run)


def encoder_step() -> Workload:
    """A training step of the same, with Adam."""
    model, x = _encoder(layers=6, width=64, heads=4, hidden=128, batch=2, tokens=16)
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> object:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Workload("encoder, a step with Adam", model, run)


def tiny_layers() -> Workload:
    """64 pairs of Linear and ReLU on four rows: nothing but overhead."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(64) for layer in (nn.Linear(32, 32), nn.ReLU())))
    return _forward("64 × (Linear, ReLU)", model, torch.randn(4, 32))


def gpt2(layers: int = 12) -> Workload:
    """The GPT-2 of `transformers` with random weights, one sequence of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers)).eval()
    return _forward(f"GPT-2, {layers} × 768", model, torch.randint(0, 50257, (1, 64)))


def wide_encoder(layers: int = 12) -> Workload:
    """Encoder layers of a usual size, 4 × 128 tokens: here the kernels take the time."""
    model, x = _encoder(layers, width=768, heads=12, hidden=3072, batch=4, tokens=128)
    return _forward(f"encoder {layers} × 768, 512 tokens", model, x)


def wide_step(layers: int = 12) -> Workload:
    """A training step of encoder layers of a usual size, with AdamW."""
    model, x = _encoder(layers, width=768, heads=12, hidden=3072, batch=4, tokens=128)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Workload(f"a step of encoder {layers} × 768, 512 tokens", model, run)


def training_trace(wanted: int) -> clew.Trace:
    """The trace of training steps, with statistics, until there are about so many events."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(2, 8, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    step()
    with clew.trace(model) as one:
        step()
    with clew.trace(model, values="stats") as t:
        for _ in range(wanted // len(one) + 1):
            step()
            t.step()
    return t


def _encoder(
    layers: int, width: int, heads: int, hidden: int, batch: int, tokens: int
) -> tuple[nn.Module, Tensor]:
    # With the fused path a layer is a single op; switched off, each layer runs 44.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    return model, torch.randn(batch, tokens, width)


def _forward(name: str, model: nn.Module, x: Tensor) -> Workload:
    def run() -> object:
        with torch.no_grad():
            return model(x)

    return Workload(name, model, run)
