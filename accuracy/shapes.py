"""Questions about shapes with known answers, asked of architectures as people write them.

Each question names a tensor and a dimension. The answer is where the dimension comes from: the
parameters, inputs and ops at the ends of its chain, and some words for what happened on the way.
The answers were written down from the code of the models, not from what Clew says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clew
from clew.events.op_names import bare_op

ENGINES = ("python", "native")


@dataclass(frozen=True)
class Question:
    """A question, the engine that recorded the run, the right answer and the one given."""

    name: str
    engine: str
    expected: str
    answered: str

    @property
    def is_right(self) -> bool:
        """Return whether the answer is the right one."""
        return self.expected == self.answered


@dataclass(frozen=True)
class Asked:
    """What to ask of a model: an address, a dimension, its origins and words of the way there."""

    address: str
    dim: int
    origins: frozenset[str]
    words: frozenset[str] = frozenset()


def asks(address: str, dim: int, *origins: str, words: str = "") -> Asked:
    """Make a question; origins are a name or an op, and a dimension or a size."""
    return Asked(address, dim, frozenset(origins), frozenset(words.split()))


def questions(engines: tuple[str, ...] = ENGINES) -> Iterator[Question]:
    """Ask every question of every architecture, with each engine."""
    for build, asked in ARCHITECTURES:
        for engine in engines:
            torch.manual_seed(0)
            model, inputs = build()
            with clew.trace(model, engine=engine) as trace:
                model(*inputs)
            for one in asked:
                name = f"{build.__name__}: {one.address or 'output'} dim {one.dim}"
                yield Question(name, engine, _expected(one), _answered(trace, one))


def _expected(asked: Asked) -> str:
    return _text(asked.origins, asked.words)


def _answered(trace: clew.Trace, asked: Asked) -> str:
    try:
        chain = trace.why_shape(asked.address, asked.dim)
    except clew.ClewError as broken:
        return f"error: {broken}"
    origins = frozenset(_origin(link) for link in chain.origins)
    # Only the words that were asked for; a chain may have more.
    return _text(origins, asked.words & {link.how for link in chain.links})


def _origin(link: Any) -> str:
    if link.name:
        return f"{link.name} {link.after.dim}"
    op = "nothing" if link.event is None else bare_op(link.event.name)
    return f"{op} {link.after.size}"


def _text(origins: frozenset[str], words: frozenset[str]) -> str:
    return " + ".join(sorted(origins)) + "".join(f", {word}" for word in sorted(words))


Built = tuple[nn.Module, tuple[Tensor, ...]]


class Block(nn.Module):
    """A transformer block with heads split by view and transpose."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        weights = clew.tap("weights", weights, module=self)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.proj(mixed)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A language model with a learned table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(50, 24), nn.Embedding(32, 24)
        self.blocks = nn.ModuleList([Block(24, 3), Block(24, 3)])
        self.head = nn.Linear(24, 50, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def gpt() -> Built:
    return Gpt(), (torch.zeros(2, 7, dtype=torch.long),)


class Vit(nn.Module):
    """Patches by a convolution, a class token, an encoder of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 20, kernel_size=4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 20))
        self.encoder = nn.TransformerEncoderLayer(20, 5, 40, batch_first=True)
        self.head = nn.Linear(20, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        return self.head(self.encoder(x)[:, 0])


def vit() -> Built:
    return Vit(), (torch.randn(2, 3, 8, 12),)


class Residual(nn.Module):
    """A residual block that halves the image."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = nn.Conv2d(inside, outside, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.down(x))


class Resnet(nn.Module):
    """Residual blocks and a mean over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer = Residual(8, 16)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer(self.pool(F.relu(self.stem(image))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet() -> Built:
    return Resnet(), (torch.randn(2, 3, 32, 48),)


class Unet(nn.Module):
    """Down, up again by a transposed convolution, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.last = nn.Conv2d(10, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        skip = F.relu(self.down(image))
        x = F.relu(self.middle(F.avg_pool2d(skip, 2)))
        return self.last(torch.cat([skip, self.up(x)], dim=1))


def unet() -> Built:
    return Unet(), (torch.randn(2, 1, 12, 20),)


class Tagger(nn.Module):
    """An LSTM in two directions over characters, its last states, facts beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 9)
        self.rnn = nn.LSTM(9, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.facts = nn.Linear(3, 4)
        self.out = nn.Linear(14, 6)

    def forward(self, text: Tensor, facts: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(text))
        beside = self.facts(facts).unsqueeze(1).expand(-1, states.shape[1], -1)
        return self.out(torch.cat([states, beside], dim=-1))


def tagger() -> Built:
    return Tagger(), (torch.zeros(2, 11, dtype=torch.long), torch.randn(2, 3))


class Mixer(nn.Module):
    """Layers over tokens and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Linear(6, 6)
        self.channels = nn.Linear(10, 10)
        self.head = nn.Linear(60, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        x = x + F.gelu(self.channels(x))
        return self.head(x.flatten(1))


def mixer() -> Built:
    return Mixer(), (torch.randn(3, 6, 10),)


class Graph(nn.Module):
    """Messages along edges, summed up in the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(14, 9)
        self.update = nn.GRUCell(9, 7)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        pairs = torch.cat([nodes[edges[0]], nodes[edges[1]]], dim=1)
        messages = F.relu(self.message(pairs))
        summed = torch.zeros(nodes.shape[0], 9).index_add(0, edges[1], messages)
        return self.update(summed, nodes)


def graph() -> Built:
    return Graph(), (torch.randn(5, 7), torch.randint(0, 5, (2, 13)))


class Crossed(nn.Module):
    """Attention by einsum from one sequence to another, with grouped keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(12, 12)
        self.kv = nn.Linear(10, 12)
        self.out = nn.Linear(12, 8)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 3))
        k, v = self.kv(memory).unflatten(-1, (2, 2, 3)).unbind(2)
        k, v = (part.repeat_interleave(2, dim=2) for part in (k, v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
        weights = clew.tap("weights", weights, module=self)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, v)
        return self.out(mixed.flatten(2))


def crossed() -> Built:
    return Crossed(), (torch.randn(2, 5, 12), torch.randn(2, 9, 10))


class Audio(nn.Module):
    """Dilated convolutions over a wave, halved by gates, and frames of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 5, stride=3)
        self.gated = nn.Conv1d(16, 12, 3, dilation=2)
        self.out = nn.Linear(6, 5)

    def forward(self, wave: Tensor) -> Tensor:
        x = F.pad(wave.unsqueeze(1), (2, 0))
        x = F.glu(self.gated(F.relu(self.conv(x))), dim=1)
        return self.out(x.permute(0, 2, 1))


def audio() -> Built:
    return Audio(), (torch.randn(2, 60),)


class Captioner(nn.Module):
    """A GRU that an image starts, its last step, a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Linear(11, 7)
        self.rnn = nn.GRU(5, 7, batch_first=True)
        self.out = nn.Linear(7, 13)

    def forward(self, words: Tensor, image: Tensor) -> Tensor:
        states, _ = self.rnn(words, self.look(image).unsqueeze(0))
        return self.out(states[:, -1:])


def captioner() -> Built:
    return Captioner(), (torch.randn(1, 9, 5), torch.randn(1, 11))


ARCHITECTURES: list[tuple[Callable[[], Built], list[Asked]]] = [
    (gpt, [
        asks("blocks.0.proj:in", 1, ":in.0 1", words="permuted"),
        asks("blocks.0.proj:in", 2, "blocks.0.qkv.weight 0", words="merged split permuted"),
        asks("blocks.1.weights", 1, "blocks.1.qkv.weight 0", words="split"),
        asks("blocks.1.weights", 2, ":in.0 1"),
        asks("blocks.1.weights", 3, ":in.0 1"),
        asks("blocks.1.mlp.1", 2, "blocks.1.mlp.0.weight 0"),
        asks("head", 0, ":in.0 0"),
        asks("head", 2, "head.weight 0"),
        asks("head:in", 2, "tok.weight 1"),
    ]),
    (vit, [
        asks("encoder:in", 1, "cls 1", ":in.0 2", ":in.0 3", words="concatenated merged resized"),
        asks("encoder:in", 2, "cls 2"),
        asks("head", 0, ":in.0 0", words=""),
        asks("patch", 3, ":in.0 3", words="resized"),
    ]),
    (resnet, [
        asks("layer", 1, "layer.conv2.weight 0"),
        asks("layer", 2, ":in.0 2", words="resized"),
        asks("fc:in", 1, "layer.conv2.weight 0"),
        asks("avgpool", 3, "mean 1", words="reduced"),
    ]),
    (unet, [
        asks("last:in", 1, "down.weight 0", "up.weight 1", words="concatenated"),
        asks("up", 3, ":in.0 3", words="resized"),
        asks("", 2, ":in.0 2"),
    ]),
    (tagger, [
        asks("out:in", 1, ":in.0 1"),
        asks("", 0, ":in.0 0"),
        asks("rnn:out.0", 2, "rnn.weight_hh_l1 1", "rnn.weight_hh_l1_reverse 1",
             words="concatenated"),
    ]),
    (mixer, [
        asks("head:in", 1, ":in.0 1", ":in.0 2", words="merged"),
        asks("tokens", 1, ":in.0 2", words="permuted"),
        asks("tokens", 2, "tokens.weight 0"),
    ]),
    (graph, [
        asks("message:in", 0, ":in.1 1"),
        asks("message:in", 1, ":in.0 1", words="concatenated"),
        asks("update:in.0", 0, "zeros 5", words="created"),
    ]),
    (crossed, [
        asks("weights", 2, ":in.0 1"),
        asks("weights", 3, ":in.1 1"),
        asks("weights", 1, "q.weight 0", words="split"),
        asks("out:in", 1, ":in.0 1"),
    ]),
    (audio, [
        asks("out:in", 1, ":in.0 1", words="resized permuted"),
        asks("out:in", 2, "gated.weight 0", words="resized"),
        asks("conv:in", 1, "unsqueeze 1", words="created"),
    ]),
    (captioner, [
        asks("out", 0, ":in.0 0"),
        asks("out", 1, ":in.0 1", words="sliced"),
        asks("rnn:out.0", 1, ":in.0 1"),
        asks("out:in", 2, "rnn.weight_hh_l0 1"),
    ]),
]  # fmt: skip
