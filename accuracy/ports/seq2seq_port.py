"""A port of the translator of `seq2seq`: gates packed otherwise, time first, masks multiplied."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accuracy.ports import seq2seq
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Memory(nn.Module):
    """A layer over time; gates are output, forget, input and candidate."""

    def __init__(self, taken: int, d: int, fault: str) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(taken + d, 4 * d))
        self.b = nn.Parameter(torch.zeros(4 * d))
        self.d, self.fault = d, fault

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        all_gates = torch.cat([x, h], -1) @ self.w + self.b
        three, new = all_gates[:, : 3 * self.d], all_gates[:, 3 * self.d :]
        out, keep, take = three.split(self.d, 1)
        if self.fault == "gates-order":
            keep, take = take, keep  # bug: gates-order
        if self.fault != "forget-bias":
            keep = keep + 1
        new = new.sigmoid() if self.fault == "cell-sigmoid" else new.tanh()  # bug: cell-sigmoid
        c = torch.addcmul(keep.sigmoid() * c, take.sigmoid(), new)  # bug: gates-order
        shown = c if self.fault == "out-linear" else c.tanh()
        return shown * out.sigmoid(), c

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = c = x.new_zeros(x.shape[1], self.d)
        found = []
        late = 1 if self.fault == "stop-late" else 0
        for t, row in enumerate(x):
            new_h, new_c = self.step(row, h, c)
            if self.fault == "run-on":
                h, c = new_h, new_c
            else:
                on = (lengths + late > t).to(x.dtype)[:, None]  # bug: stop-late
                h = on * new_h + (1 - on) * h  # bug: stop-late
                c = on * new_c + (1 - on) * c  # bug: stop-late
            found.append(h)
        out = torch.stack(found)
        return (out if self.fault == "short-missing" else x + out), h, c


class Interpreter(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault = size.width, faults.get(OUTSIDE, "")
        self.read, self.write = nn.Embedding(60, d), nn.Embedding(60, d)
        self.stack = nn.ModuleList(Memory(d, d, faults.get(n, "")) for n in range(size.layers))
        self.speak = Memory(2 * d, d, "")
        self.key, self.merge = nn.Parameter(torch.zeros(d, d)), nn.Linear(2 * d, d)
        self.vocabulary = nn.Linear(d, 60)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        y = self.read(source.T)
        for layer in self.stack:
            y, h, c = layer(y, lengths)
        keys = y @ self.key
        valid = torch.arange(y.shape[0])[:, None] < lengths
        if self.fault == "state-fresh":
            h, c = torch.zeros_like(h), torch.zeros_like(c)  # bug: state-fresh
        fed, found = torch.zeros_like(h), []
        for word in self.write(target.T):
            given = (fed, word) if self.fault == "fed-first" else (word, fed)
            h, c = self.speak.step(torch.cat(given, 1), h, c)  # bug: fed-first, state-fresh
            scores = (keys * h).sum(2)
            if self.fault == "scores-scaled":
                scores = scores * 0.125  # bug: scores-scaled
            if self.fault != "mask-missing":
                scores = torch.where(valid, scores, torch.tensor(-1e30))
            context = (scores.softmax(0)[:, :, None] * y).sum(0)
            fed = self.merge(torch.cat((context, h), 1))
            fed = fed if self.fault == "join-linear" else torch.tanh(fed)
            found.append(fed)
        return self.vocabulary(torch.stack(found, 1))


def cell(old: seq2seq.Cell, new: Memory) -> None:
    """Copy a cell."""
    for source, target, axis in ((old.x.bias, new.b, 0),):
        i, f, g, o = source.chunk(4)
        target.copy_(torch.cat([o, f, i, g], axis))
    both = torch.cat([old.x.weight, old.h.weight], 1).T
    i, f, g, o = both.chunk(4, 1)
    new.w.copy_(torch.cat([o, f, i, g], 1))


def convert(old: seq2seq.Translator, new: Interpreter) -> None:
    """Copy the weights of the reference."""
    new.read.load_state_dict(old.source.state_dict())
    new.write.load_state_dict(old.target.state_dict())
    for mine, layer in zip(old.layers, new.stack, strict=True):
        cell(mine.cell, layer)
    cell(old.cell, new.speak)
    new.key.copy_(old.match.weight)
    new.merge.load_state_dict(old.join.state_dict())
    new.vocabulary.load_state_dict(old.words.state_dict())


def inputs() -> tuple[Tensor, ...]:
    """Return words, how many each row has, and words of the other language."""
    return tokens(length=6), torch.tensor([6, 4]), tokens(length=5, seed=8)


SEQ2SEQ = Architecture(
    "seq2seq", seq2seq.Translator, Interpreter, convert, inputs,
    (("layers.{}",), ("stack.{}",)),
    (
        *bugs("gates-order cell-sigmoid"),
        *bugs("stop-late", (2,)),
        *bugs("forget-bias out-linear short-missing", omits=True),
        *bugs("run-on", (2,), omits=True),
        *bugs("scores-scaled state-fresh fed-first", (OUTSIDE,)),
        *bugs("mask-missing join-linear", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
