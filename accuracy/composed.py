"""Crashes planted in models made of models: encoder and decoder, experts, pyramids, agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.planted import Planted, run_of


class Translator(nn.Module):
    """A recurrent encoder, attention, and a recurrent decoder."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.places = nn.Embedding(9, 6)
        self.encoder = nn.LSTM(6, 8, batch_first=True)
        self.decoder = nn.LSTM(6, 8, batch_first=True)
        self.score = nn.Linear(8, 8)
        self.out = nn.Linear(8, 20)
        self.fault = fault

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.words(source) + self.places(torch.arange(source.shape[1]) + 4)  # crash: seq-place
        if self.fault == "unpack":
            memory, hidden, cell = self.encoder(x)  # crash: seq-unpack
            return self.score(memory + hidden + cell)
        memory, state = self.encoder(x)
        if self.fault == "state":
            query = self.score(state)  # crash: seq-state
        if self.fault == "order":
            state = tuple(one.transpose(0, 1) for one in state)
        y, _ = self.decoder(self.words(target), state)  # crash: seq-order
        if self.fault == "result":
            decoded = self.decoder(self.words(target), state)
            return self.out(decoded)  # crash: seq-result
        query = self.score(y)
        weights = torch.einsum("btd,bdt->bts", query, memory)  # crash: seq-letters
        return weights


class Experts(nn.Module):
    """A gate that sends each row to some of several experts."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 4 + (at == 2)) for at in range(3)])
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "attention":
            x = x + self.attention(x, x, x)  # crash: experts-attention
        scores = self.gate(x)
        if self.fault == "many":
            return scores.topk(k=4, dim=-1).values  # crash: experts-many
        every = [expert(x) for expert in self.experts]
        if self.fault == "rows":
            b, t, d = scores.shape  # crash: experts-rows
            return scores.view(b * t, d)
        return torch.stack(every)  # crash: experts-stack


class Pyramid(nn.Module):
    """Features of several sizes, added from coarse to fine."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(3, 3, 3, stride=2) for _ in range(2)])
        self.fault = fault

    def forward(self, image: Tensor) -> Tensor:
        features = [image]
        for level in self.levels:
            features.append(level(features[-1]))
        if self.fault == "list":
            return torch.relu(features)  # type: ignore[arg-type]  # crash: pyramid-list
        coarse = F.interpolate(features[2], scale_factor=2)
        return features[1] + coarse  # crash: pyramid-add


class Agent(nn.Module):
    """A policy, and the memory of what it saw."""

    memory: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Linear(4, 6)
        self.act = nn.Linear(6, 3)
        self.register_buffer("memory", torch.zeros(10, 6))

    def forward(self, seen: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen = self.see(seen)
        self.memory[torch.arange(len(seen))] = seen  # crash: agent-memory
        return self.act(seen)


def _imitate() -> tuple[nn.Module, Callable[[], Any]]:
    model = nn.Linear(4, 3)

    def run() -> None:
        scores = model(torch.ones(5, 4))
        shown = F.one_hot(torch.tensor([0, 1, 2, 0, 1]), 3)
        F.cross_entropy(scores, shown)  # crash: agent-imitate

    return model, run


def _wrapped() -> tuple[nn.Module, Callable[[], Any]]:
    model = Experts()

    def run() -> None:
        rows = torch.ones(2, 5)
        try:
            model.gate(rows)  # crash: agent-wrapped
        except RuntimeError as wrong:
            raise ValueError("batch 7 of epoch 1") from wrong

    return model, run


_WORDS = torch.zeros(2, 5, dtype=torch.long)

CRASHES = [
    Planted("seq-place", "index", lambda: run_of(Translator(), torch.zeros(2, 6).long(), _WORDS),
            "places", ("torch.arange(source.shape[1]) + 4",), ("9 rows", "holds 9 at [5]"), None),
    Planted("seq-unpack", "unpacking", lambda: run_of(Translator("unpack"), _WORDS, _WORDS), "",
            ("self.encoder(x)[0]", "hidden"), ("gives 2", "3 names"),
            r"memory, \(hidden, cell\) = self\.encoder\(x\)"),
    Planted("seq-state", "container", lambda: run_of(Translator("state"), _WORDS, _WORDS), "score",
            ("state",), ("tuple of 2", "[1,2,8]"), r"state\[0\]"),
    Planted("seq-order", "state", lambda: run_of(Translator("order"), _WORDS, _WORDS), "decoder",
            ("state[0]",), ("[1, 2, 8]", "[2, 1, 8]"), None),
    Planted("seq-result", "container", lambda: run_of(Translator("result"), _WORDS, _WORDS), "out",
            ("decoded",), ("tuple of 2", "[2,5,8]"), r"decoded\[0\]"),
    Planted("seq-letters", "einsum", lambda: run_of(Translator(), _WORDS, _WORDS), "",
            ("query", "memory"), ("'d' is 8", "5 in dimension 1"), None),
    Planted("experts-attention", "container",
            lambda: run_of(Experts("attention"), torch.ones(2, 5, 6)), "",
            ("x", "self.attention(x, x, x)[0]"), ("tuple of 2",),
            r"self\.attention\(x, x, x\)\[0\]"),
    Planted("experts-many", "top k", lambda: run_of(Experts("many"), torch.ones(2, 6)), "",
            ("scores",), ("k is 4", "has 3"), r"k=min\(4, scores\.size\(-1\)\)"),
    Planted("experts-rows", "unpacking", lambda: run_of(Experts("rows"), torch.ones(2, 6)), "",
            ("scores", "b, t, d"), ("2 sizes", "3 names"), None),
    Planted("experts-stack", "stack", lambda: run_of(Experts(), torch.ones(2, 6)), "",
            ("every[2]", "every[0]"), ("[2,5]", "[2,4]", "out_features"), None),
    Planted("pyramid-list", "container", lambda: run_of(Pyramid("list"), torch.ones(1, 3, 14, 14)),
            "", ("features",), ("list of 3",), None),
    Planted("pyramid-add", "broadcast", lambda: run_of(Pyramid(), torch.ones(1, 3, 14, 14)), "",
            ("features[1]", "coarse"), ("6", "4"), None),
    Planted("agent-memory", "dtype", lambda: run_of(Agent(), torch.ones(3, 4)), "",
            ("self.memory", "seen"), ("f32[10,6]", "bf16[3,6]"), r"seen\.float\(\)"),
    Planted("agent-imitate", "dtype", _imitate, None, ("scores", "shown"), ("[5,3]", "int64"),
            r"shown\.float\(\)"),
    Planted("agent-wrapped", "raised from", _wrapped, None, ("rows",), ("[2,5]", "[..., 6]"), None),
]  # fmt: skip
