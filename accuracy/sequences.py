"""Crashes planted in models of sequences: transformer, recurrent tagger, seq2seq, text CNN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.planted import Planted, run_of


class Attention(nn.Module):
    """Attention with several heads, written out."""

    def __init__(self, width: int, heads: int, fault: str = "") -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width + 4 if fault == "out" else width, width)
        self.fault = fault

    def split(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = 3 if self.fault == "heads" else self.heads
        x = x.view(batch, time, heads, width // self.heads)  # crash: attention-heads
        return x.transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(self.split, self.qkv(x).chunk(3, dim=-1))  # crash: block-half
        if self.fault == "scores":
            scores = q @ k  # crash: attention-scores
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask  # crash: attention-mask
        mixed = F.softmax(scores, dim=-1) @ v
        if self.fault == "merge":
            return self.out(mixed.transpose(1, 2).view(x.shape))  # crash: attention-merge
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(mixed)  # crash: attention-out


class Block(nn.Module):
    """Attention and a feed-forward network, each with a norm and a shortcut."""

    def __init__(self, width: int, fault: str = "") -> None:
        super().__init__()
        self.attention = Attention(width, 2, fault)
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 32), nn.GELU(), nn.Linear(16 if fault == "feed" else 32, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm(x), mask)
        return x + self.feed(self.norm(x))  # crash: block-feed


class Gpt(nn.Module):
    """A small decoder."""

    def __init__(self, fault: str = "", words: int = 20, longest: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 12)
        self.places = nn.Embedding(longest, 12)
        self.blocks = nn.ModuleList([Block(12), Block(12, fault)])
        self.head = nn.Linear(12, words)
        self.fault = fault

    def forward(self, ids: Tensor, target: Tensor | None = None) -> Tensor:
        places = torch.arange(ids.shape[1])
        x = self.words(ids)  # crash: gpt-word, gpt-float
        x = x + self.places(places)  # crash: gpt-long
        if self.fault == "half":
            x = x.half()
        mask = torch.ones(ids.shape[0], ids.shape[1]) if self.fault == "mask" else None
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x)
        if target is None:
            return logits
        if self.fault == "loss":
            return F.cross_entropy(logits, target)  # crash: gpt-loss
        if self.fault == "flat":
            return F.cross_entropy(logits.flatten(0, 1), target)  # crash: gpt-flat
        return F.cross_entropy(logits.transpose(1, 2), target)  # crash: gpt-class, gpt-target


class Tagger(nn.Module):
    """A recurrent network over embedded words."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.words = nn.Embedding(30, 10)
        self.rnn = nn.LSTM(
            8 if fault == "width" else 10, 6, batch_first=fault != "first", bidirectional=True
        )
        self.tags = nn.Linear(6 if fault == "both" else 12, 4)
        self.fault = fault

    def forward(self, ids: Tensor) -> Tensor:
        states = torch.zeros(2, len(ids), 6), torch.zeros(2, len(ids), 6)
        out, _ = self.rnn(self.words(ids), states)  # crash: tagger-width, tagger-first
        return self.tags(out)  # crash: tagger-both


class Translator(nn.Module):
    """An encoder, a decoder and attention between them."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.encoder = nn.GRU(5, 7, batch_first=True)
        self.decoder = nn.GRU(5, 9 if fault == "state" else 7, batch_first=True)
        self.score = nn.Linear(7, 7, bias=False)
        self.join = nn.Linear(7 if fault == "join" else 14, 7)
        self.fault = fault

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(source)  # crash: translator-source
        out, _ = self.decoder(target, state)  # crash: translator-state
        if self.fault == "scores":
            weights = torch.bmm(self.score(out), memory)  # crash: translator-scores
        else:
            weights = torch.bmm(self.score(out), memory.transpose(1, 2))
        context = weights.softmax(-1) @ memory
        return self.join(torch.cat([context, out], dim=-1))  # crash: translator-join


class TextCnn(nn.Module):
    """Convolutions over words."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.words = nn.Embedding(30, 10)
        self.conv = nn.Conv1d(10, 6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.fault = fault

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.fault != "order":
            x = x.transpose(1, 2)
        h = self.conv(x)  # crash: text-order
        if self.fault == "norm":
            h = h.transpose(1, 2)
        return self.norm(h).amax(-1)  # crash: text-norm


class Encoder(nn.Module):
    """torch's own encoder, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # crash: encoder-width


def _ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


IDS = [[1, 2, 3, 4], [5, 6, 7, 8]]


def _gpt(fault: str = "", *inputs: Any) -> Callable[[], Any]:
    return lambda: run_of(Gpt(fault), *(inputs or (_ids(*IDS),)))


CRASHES = [
    Planted("attention-scores", "product", _gpt("scores"), "blocks.1.attention",
            ("q", "k"), ("[2,2,4,6]",), r"k\.transpose\(-2, -1\)"),
    Planted("attention-heads", "view size", _gpt("heads"), "blocks.1.attention",
            ("x",), ("[2,4,12]", "144", "96")),
    Planted("attention-merge", "view memory", _gpt("merge"), "blocks.1.attention",
            ("mixed.transpose(1, 2)",), ("[2,4,2,6]",), "reshape"),
    Planted("attention-out", "linear size", _gpt("out"), "blocks.1.attention.out",
            ("mixed", "blocks.1.attention.out.weight"), ("[2,4,12]", "in_features=16"),
            "in_features=12"),
    Planted("attention-mask", "broadcast", _gpt("mask", _ids([1, 2, 3, 4], [1, 2, 3, 4],
            [1, 2, 3, 4])), "blocks.0.attention", ("scores", "mask"), ("[3,2,4,4]", "[3,4]")),
    Planted("block-feed", "linear size", _gpt("feed"), "blocks.1.feed.2",
            ("self.norm(x)", "blocks.1.feed.2.weight"), ("[2,4,32]", "in_features=16"),
            "in_features=32"),
    Planted("block-half", "dtype", _gpt("half"), "blocks.0.attention.qkv",
            ("x",), ("f16[2,4,12]",), r"\.float\(\)"),
    Planted("gpt-word", "index", _gpt("", _ids([1, 2], [3, 55])), "words",
            ("ids", "words.weight"), ("55", "20 rows"), None),
    Planted("gpt-long", "index", _gpt("", _ids([1] * 12)), "places",
            ("places", "places.weight"), ("11", "8 rows"), None),
    Planted("gpt-float", "dtype", _gpt("", torch.ones(2, 4)), "words",
            ("ids", "words.weight"), ("f32[2,4]",), r"ids\.long\(\)"),
    Planted("gpt-loss", "loss size", _gpt("loss", _ids(*IDS), _ids(*IDS)), "",
            ("logits", "target"), ("[2,4,20]", "[2,4]"), r"logits\.transpose\(1, 2\)"),
    Planted("gpt-flat", "loss size", _gpt("flat", _ids(*IDS), _ids(*IDS)), "",
            ("logits.flatten(0, 1)", "target"), ("[8,20]", "[2,4]"), r"target\.flatten\(\)"),
    Planted("gpt-class", "index", _gpt("", _ids(*IDS), _ids([1, 2, 3, 4], [5, 6, 7, 20])), "",
            ("logits.transpose(1, 2)", "target"), ("20 classes", "[1, 3]"), None),
    Planted("gpt-target", "dtype", _gpt("", _ids(*IDS), torch.ones(2, 4)), "",
            ("logits.transpose(1, 2)", "target"), ("f32[2,4]",), r"target\.long\(\)"),
    Planted("tagger-width", "recurrent size", lambda: run_of(Tagger("width"), _ids(*IDS)), "rnn",
            ("self.words(ids)", "rnn.weight_ih_l0"), ("[2,4,10]", "input_size=8"),
            "input_size=10"),
    Planted("tagger-first", "recurrent size", lambda: run_of(Tagger("first"), _ids(*IDS)), "rnn",
            ("self.words(ids)",), ("[2,4,10]", "batch_first=False"), "batch_first=True"),
    Planted("tagger-both", "linear size", lambda: run_of(Tagger("both"), _ids(*IDS)), "tags",
            ("out", "tags.weight"), ("[2,4,12]", "in_features=6"), "in_features=12"),
    Planted("translator-state", "recurrent size",
            lambda: run_of(Translator("state"), torch.ones(2, 3, 5), torch.ones(2, 4, 5)),
            "decoder", ("target", "state"), ("[1,2,7]", "hidden_size=9"),
            "hidden_size=7"),
    Planted("translator-source", "recurrent size",
            lambda: run_of(Translator(), torch.ones(2, 3, 6), torch.ones(2, 4, 5)),
            "encoder", ("source", "encoder.weight_ih_l0"), ("[2,3,6]", "input_size=5")),
    Planted("translator-scores", "product",
            lambda: run_of(Translator("scores"), torch.ones(2, 3, 5), torch.ones(2, 4, 5)),
            "", ("self.score(out)", "memory"), ("[2,4,7]", "[2,3,7]"),
            r"memory\.transpose\(-2, -1\)"),
    Planted("translator-join", "linear size",
            lambda: run_of(Translator("join"), torch.ones(2, 3, 5), torch.ones(2, 4, 5)),
            "join", ("torch.cat([context, out], dim=-1)", "join.weight"),
            ("[2,4,14]", "in_features=7"), "in_features=14"),
    Planted("text-order", "transposed", lambda: run_of(TextCnn("order"), _ids(*IDS)), "conv",
            ("x", "conv.weight"), ("[2,4,10]", "in_channels=10"), r"x\.transpose\(1, 2\)"),
    Planted("text-norm", "transposed", lambda: run_of(TextCnn("norm"), _ids([1] * 9, [2] * 9)),
            "norm", ("h", "norm.weight"), ("[2,7,6]", "num_features=6"), r"h\.transpose\(1, 2\)"),
    Planted("encoder-width", "attention size", lambda: run_of(Encoder(), torch.ones(2, 5, 12)),
            "layers.layers.0.self_attn", ("x",), ("[2,5,12]", "embed_dim=16")),
]  # fmt: skip
