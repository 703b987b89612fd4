"""A network over a graph: messages along edges, weighed and gathered at each node."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


def share(scores: Tensor, target: Tensor, nodes: int) -> Tensor:
    """Return a softmax over the edges that end at the same node."""
    top = scores.new_full((nodes, scores.shape[1]), -1e9)
    top = top.scatter_reduce(0, target[:, None].expand_as(scores), scores, "amax")
    grown = (scores - top[target]).exp()
    total = torch.zeros_like(top).index_add(0, target, grown)
    return grown / total[target]


class Layer(nn.Module):
    """Attention over neighbours, with features of edges."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.source, self.target = (nn.Linear(size.width, size.width) for _ in range(2))
        self.edge = nn.Linear(5, size.width, bias=False)
        self.score = nn.Parameter(torch.zeros(size.heads, size.width // size.heads))
        self.norm, self.out = nn.LayerNorm(size.width), nn.Linear(size.width, size.width)
        self.slope = 0.02 if bug == "slope" else 0.2
        self.heads, self.bug = size.heads, bug

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        start, end = edges
        if self.bug == "ends-swapped":
            start, end = end, start  # bug: ends-swapped
        nodes = x.shape[0]
        given, asked = self.source(x), self.target(x)
        joint = given[start] + asked[end]  # bug: ends-swapped
        if self.bug != "edge-missing":
            joint = joint + self.edge(features)  # bug: edge-missing
        joint = F.leaky_relu(joint, self.slope)  # bug: slope
        joint = joint.view(-1, self.heads, self.score.shape[1])
        scores = (joint * self.score).sum(-1)
        if self.bug == "share-all":
            weights = scores.softmax(0)  # bug: share-all
        else:
            weights = share(scores, end, nodes)
        taken = asked[start] if self.bug == "message-asked" else given[start]  # bug: message-asked
        messages = taken.view(-1, self.heads, self.score.shape[1]) * weights[:, :, None]
        gathered = torch.zeros_like(x).index_add(0, end, messages.flatten(1))
        if self.bug == "gather-mean":
            count = torch.bincount(end, minlength=nodes).clamp(min=1)
            gathered = gathered / count[:, None]  # bug: gather-mean
        y = self.out(gathered)
        if self.bug == "norm-after":
            return self.norm(x + F.elu(y))  # bug: norm-after
        y = F.relu(self.norm(y)) if self.bug == "relu" else F.elu(self.norm(y))  # bug: relu
        return y if self.bug == "short-missing" else x + y  # bug: short-missing


class GraphNet(nn.Module):
    """Kinds of nodes, edges and their features in, one vector per graph out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.kinds = nn.Embedding(9, size.width)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.read = nn.Linear(size.width, 6)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, kinds: Tensor, edges: Tensor, features: Tensor, graph: Tensor) -> Tensor:
        x = self.kinds(kinds)
        if self.bug == "features-scaled":
            features = features * 0.1  # bug: features-scaled
        for layer in self.layers:
            x = layer(x, edges, features)
        pooled = x.new_zeros(2, x.shape[1]).index_add(0, graph, x)
        if self.bug != "read-sum":
            pooled = pooled / torch.bincount(graph)[:, None]  # bug: read-sum
        pooled = pooled if self.bug == "read-tanh" else pooled.tanh()  # bug: read-tanh
        return self.read(pooled)


def inputs() -> tuple[Tensor, ...]:
    """Return two graphs of seven and six nodes as one, every node with an edge to itself."""
    draw = torch.Generator().manual_seed(11)
    pairs = torch.rand(13, 13, generator=draw) < 0.35
    graph = torch.tensor([0] * 7 + [1] * 6)
    pairs = (pairs & (graph[:, None] == graph)) | torch.eye(13, dtype=torch.bool)
    edges = pairs.nonzero().T.contiguous()
    kinds = torch.randint(0, 9, (13,), generator=draw)
    return kinds, edges, torch.randn(edges.shape[1], 5, generator=draw), graph
