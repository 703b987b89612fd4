"""A translator of old: a recurrent encoder with lengths, a decoder that attends to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Cell(nn.Module):
    """One step of long short-term memory."""

    def __init__(self, taken: int, width: int, bug: str) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(taken, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.bug = bug

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, dim=1)
        if self.bug == "gates-order":
            i, f = f, i  # bug: gates-order
        g = torch.sigmoid(g) if self.bug == "cell-sigmoid" else torch.tanh(g)  # bug: cell-sigmoid
        if self.bug != "forget-bias":
            f = f + 1.0  # bug: forget-bias
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * g  # bug: gates-order
        if self.bug == "out-linear":
            return torch.sigmoid(o) * c, c
        return torch.sigmoid(o) * torch.tanh(c), c  # bug: out-linear


class Encoder(nn.Module):
    """A cell over time that stops where a row ends."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.cell, self.bug = Cell(size.width, size.width, bug), bug

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        state = x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], x.shape[2])
        rows = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], state)
            if self.bug != "run-on":
                late = 1 if self.bug == "stop-late" else 0
                goes = (t < lengths + late).unsqueeze(1)  # bug: stop-late
                h = torch.where(goes, h, state[0])  # bug: run-on, stop-late
                c = torch.where(goes, c, state[1])  # bug: run-on, stop-late
            state = h, c
            rows.append(h)
        y = torch.stack(rows, 1)
        return (y if self.bug == "short-missing" else x + y), state  # bug: short-missing


class Translator(nn.Module):
    """Words, their lengths and words of the other language in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.bug = size.width, faults.get(OUTSIDE, "")
        self.source, self.target = nn.Embedding(60, d), nn.Embedding(60, d)
        self.layers = nn.ModuleList(Encoder(size, faults.get(n, "")) for n in range(size.layers))
        self.cell = Cell(2 * d, d, "")
        self.match, self.join = nn.Linear(d, d, bias=False), nn.Linear(2 * d, d)
        self.words = nn.Linear(d, 60)

    def attend(self, h: Tensor, seen: Tensor, lengths: Tensor) -> Tensor:
        scores = torch.bmm(seen, self.match(h).unsqueeze(2)).squeeze(2)
        if self.bug != "mask-missing":
            outside = torch.arange(seen.shape[1]) >= lengths[:, None]
            scores = scores.masked_fill(outside, float("-inf"))  # bug: mask-missing
        if self.bug == "scores-scaled":
            scores = scores / 8  # bug: scores-scaled
        weights = F.softmax(scores, 1)
        return torch.bmm(weights.unsqueeze(1), seen).squeeze(1)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        x = self.source(source)
        for layer in self.layers:
            x, state = layer(x, lengths)
        if self.bug == "state-fresh":
            state = torch.zeros_like(state[0]), torch.zeros_like(state[1])  # bug: state-fresh
        fed, logits = torch.zeros_like(state[0]), []
        for word in self.target(target).unbind(1):
            both = [fed, word] if self.bug == "fed-first" else [word, fed]
            state = self.cell(torch.cat(both, 1), state)  # bug: fed-first, state-fresh
            context = self.attend(state[0], x, lengths)
            joined = self.join(torch.cat([context, state[0]], 1))
            fed = joined if self.bug == "join-linear" else joined.tanh()  # bug: join-linear
            logits.append(self.words(fed))
        return torch.stack(logits, 1)
