"""A port of the network of `graph`: all pairs of nodes at once, pairs without an edge masked."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import graph
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs


class Dense(nn.Module):
    """One layer; rows are targets, columns are sources."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d, self.heads, self.fault = size.width, size.heads, fault
        self.both = nn.Linear(d, 2 * d)
        self.weigh_edge, self.ask = nn.Linear(5, d, bias=False), nn.Parameter(torch.zeros(d))
        self.mix, self.ln = nn.Linear(d, d), nn.LayerNorm(d)

    def weights(self, given: Tensor, asked: Tensor, there: Tensor, far: Tensor) -> Tensor:
        pair = asked.unsqueeze(1) + given.unsqueeze(0)
        if self.fault != "edge-missing":
            pair = pair + self.weigh_edge(far)
        low = 0.02 if self.fault == "slope" else 0.2
        pair = torch.where(pair > 0, pair, low * pair)  # bug: slope
        scores = (pair * self.ask).unflatten(-1, (self.heads, -1)).sum(-1)
        scores = scores.masked_fill(~there.unsqueeze(-1), float("-inf"))
        if self.fault == "share-all":
            return scores.flatten(0, 1).softmax(0).view_as(scores)  # bug: share-all
        return scores.softmax(1)

    def forward(self, z: Tensor, there: Tensor, far: Tensor) -> Tensor:
        if self.fault == "ends-swapped":
            there, far = there.T, far.transpose(0, 1)  # bug: ends-swapped
        given, asked = self.both(z).chunk(2, -1)
        weights = self.weights(given, asked, there, far)  # bug: ends-swapped
        if self.fault == "message-asked":
            given = asked  # bug: message-asked
        parts = given.unflatten(-1, (self.heads, -1))
        mixed = torch.einsum("tsh,shd->thd", weights, parts).flatten(1)  # bug: message-asked
        if self.fault == "gather-mean":
            mixed = mixed / there.sum(1, keepdim=True)  # bug: gather-mean
        y = self.mix(mixed)
        if self.fault == "norm-after":
            return self.ln(z + F.elu(y))  # bug: norm-after
        y = self.ln(y)
        if self.fault == "relu":
            y = y.clamp(min=0)  # bug: relu
        else:
            y = torch.where(y > 0, y, torch.expm1(y))
        return y if self.fault == "short-missing" else z + y


class Molecules(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.atoms = nn.Parameter(torch.zeros(9, size.width))
        self.parts = nn.ModuleList(Dense(size, faults.get(n, "")) for n in range(size.layers))
        self.answer, self.fault = nn.Linear(size.width, 6), faults.get(OUTSIDE, "")

    def forward(self, kinds: Tensor, edges: Tensor, features: Tensor, owner: Tensor) -> Tensor:
        n = kinds.shape[0]
        there = torch.zeros(n, n, dtype=torch.bool)
        there[edges[1], edges[0]] = True
        if self.fault == "features-scaled":
            features = 0.1 * features  # bug: features-scaled
        far = features.new_zeros(n, n, features.shape[1])
        far[edges[1], edges[0]] = features
        z = F.one_hot(kinds, 9).to(self.atoms.dtype) @ self.atoms
        for part in self.parts:
            z = part(z, there, far)
        member = F.one_hot(owner, 2).to(z.dtype).T
        if self.fault != "read-sum":
            member = member / member.sum(1, keepdim=True)
        pooled = member @ z
        return self.answer(pooled if self.fault == "read-tanh" else pooled.tanh())


def convert(old: graph.GraphNet, new: Molecules) -> None:
    """Copy the weights of the reference."""
    new.atoms.copy_(old.kinds.weight)
    new.answer.load_state_dict(old.read.state_dict())
    for mine, part in zip(old.layers, new.parts, strict=True):
        part.both.weight.copy_(torch.cat([mine.source.weight, mine.target.weight]))
        part.both.bias.copy_(torch.cat([mine.source.bias, mine.target.bias]))
        part.weigh_edge.weight.copy_(mine.edge.weight)
        part.ask.copy_(mine.score.flatten())
        part.mix.load_state_dict(mine.out.state_dict())
        part.ln.load_state_dict(mine.norm.state_dict())


GRAPH = Architecture(
    "graph", graph.GraphNet, Molecules, convert, graph.inputs,
    (("layers.{}",), ("parts.{}",)),
    (
        *bugs("ends-swapped slope share-all message-asked gather-mean norm-after relu"),
        *bugs("edge-missing short-missing", omits=True),
        *bugs("features-scaled", (OUTSIDE,)),
        *bugs("read-sum read-tanh", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
