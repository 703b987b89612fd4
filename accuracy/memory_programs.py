"""Programs whose memory is known: training and inference of architectures as people write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Program:
    """A model, a function that runs it, and the optimizer whose state is to be found, if any.

    `run` is given a function to call after each step; `kept` holds what the program keeps.
    """

    model: nn.Module
    run: Callable[[Callable[[], Any]], Any]
    optimizer: torch.optim.Optimizer | None = None
    kept: Any = None


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A small language model, with blocks that may be checkpointed and a tied head."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(100, 32), nn.Embedding(24, 32)
        self.blocks = nn.ModuleList([Block(32, 4) for _ in range(3)])
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.tok.weight
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


class Unet(nn.Module):
    """Down and up again, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        skip = F.relu(self.down(image))
        x = F.relu(self.middle(F.max_pool2d(skip, 2)))
        return self.last(torch.cat([skip, self.up(x)], dim=1))


class Tagger(nn.Module):
    """An LSTM over words."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 16, sparse=sparse)
        self.rnn = nn.LSTM(16, 12, num_layers=2, batch_first=True)
        self.out = nn.Linear(12, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(words))[0])


def cnn() -> nn.Module:
    """Make convolutions with batch norm and ReLU in place."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def _trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    steps: int = 3,
    parts: int = 1,
    zeroed: bool = True,
) -> Program:
    def run(step: Callable[[], Any]) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=zeroed)
            for _ in range(parts):
                loss().backward()
            optimizer.step()
            step()

    return Program(model, run, optimizer)


def _images(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.randint(0, 10, (8,)))


def _words(model: nn.Module, classes: int) -> Tensor:
    tokens = torch.randint(0, 100, (4, 24))
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % classes)


def cnn_sgd() -> Program:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return _trained(model, optimizer, lambda: _images(model))


def gpt_adamw() -> Program:
    model = Gpt()
    return _trained(model, torch.optim.AdamW(model.parameters()), lambda: _words(model, 100))


def gpt_checkpointed() -> Program:
    model = Gpt(checkpointed=True)
    return _trained(model, torch.optim.AdamW(model.parameters()), lambda: _words(model, 100))


def gpt_accumulated() -> Program:
    model = Gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return _trained(model, optimizer, lambda: _words(model, 100) / 4, parts=4)


def gpt_zeroed_in_place() -> Program:
    model = Gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return _trained(model, optimizer, lambda: _words(model, 100), zeroed=False)


def encoder_adam() -> Program:
    layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters())
    return _trained(model, optimizer, lambda: model(torch.randn(4, 10, 24)).pow(2).mean())


def lstm_sgd() -> Program:
    model = Tagger()
    return _trained(model, torch.optim.SGD(model.parameters(), 0.1), lambda: _words(model, 5))


def lstm_sparse() -> Program:
    model = Tagger(sparse=True)
    return _trained(model, torch.optim.SGD(model.parameters(), 0.1), lambda: _words(model, 5))


def unet_adam() -> Program:
    model = Unet()
    optimizer = torch.optim.Adam(model.parameters())
    return _trained(model, optimizer, lambda: model(torch.randn(2, 3, 16, 16)).square().mean())


def unet_autocast() -> Program:
    model = Unet()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(torch.randn(2, 3, 16, 16)).float().square().mean()

    return _trained(model, torch.optim.SGD(model.parameters(), 0.1), loss)


def penalised() -> Program:
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss() -> Tensor:
        x = torch.randn(16, 20, requires_grad=True)
        y = model(x).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return y + slope.norm()

    return _trained(model, torch.optim.SGD(model.parameters(), 0.1), loss)


def _without_training(
    model: nn.Module, once: Callable[[list[Tensor]], Any], steps: int = 5
) -> Program:
    kept: list[Tensor] = []

    def run(step: Callable[[], Any]) -> None:
        for _ in range(steps):
            once(kept)
            step()

    return Program(model, run, None, kept)


def inference() -> Program:
    model = cnn().eval()

    def once(kept: list[Tensor]) -> None:
        with torch.no_grad():
            model(torch.randn(8, 3, 16, 16))

    return _without_training(model, once)


def inference_with_graphs() -> Program:
    model = Unet()
    return _without_training(model, lambda kept: model(torch.randn(2, 3, 16, 16)))


def losses_with_graphs() -> Program:
    model = Unet()

    def once(kept: list[Tensor]) -> None:
        kept.append(model(torch.randn(2, 3, 16, 16)).mean())

    return _without_training(model, once)


def results_kept() -> Program:
    model = Unet()

    def once(kept: list[Tensor]) -> None:
        with torch.no_grad():
            kept.append(model(torch.randn(2, 3, 16, 16)))

    return _without_training(model, once)


def views_and_writes() -> Program:
    model = nn.Linear(32, 32)

    def once(kept: list[Tensor]) -> None:
        table = torch.zeros(64, 32)
        table[:16] = model(torch.ones(16, 32)).detach()
        halves = table.chunk(2)
        del table
        kept[:] = [halves[0].t(), halves[1].expand(4, 32, 32)[0].contiguous()]

    return _without_training(model, once)


PROGRAMS: dict[str, Callable[[], Program]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        cnn_sgd, gpt_adamw, gpt_checkpointed, gpt_accumulated, gpt_zeroed_in_place, encoder_adam,
        lstm_sgd, lstm_sparse, unet_adam, unet_autocast, penalised, inference,
        inference_with_graphs, losses_with_graphs, results_kept, views_and_writes,
    )
}  # fmt: skip
