"""A decoder whose networks are experts, chosen per word; norms of queries and keys, soft cap."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size

EXPERTS, CHOSEN = 4, 2


class Expert(nn.Module):
    """A gated network."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        gate = F.relu(gate) if self.bug == "expert-relu" else F.silu(gate)  # bug: expert-relu
        return self.down(gate * self.up(x))  # bug: experts-swapped


class SparseNetwork(nn.Module):
    """Send each word to some experts and add what they return."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.correction = nn.Parameter(torch.zeros(EXPERTS))
        self.experts = nn.ModuleList(Expert(width, bug) for _ in range(EXPERTS))
        self.shared = Expert(width, "")
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "experts-swapped":
            first, second = self.experts[0].down.weight, self.experts[1].down.weight
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        logits = self.router(flat)
        if self.bug == "router-sigmoid":
            scores = torch.sigmoid(logits)  # bug: router-sigmoid
        else:
            scores = F.softmax(logits, dim=-1)
        choice = scores
        if self.bug != "correction-missing":
            choice = scores + self.correction  # bug: correction-missing
        _, chosen = torch.topk(choice, CHOSEN, dim=-1)
        if self.bug == "correction-leaks":
            weights = choice.gather(1, chosen)  # bug: correction-leaks
        else:
            weights = scores.gather(1, chosen)
        if self.bug != "renormal-missing":
            weights = weights / weights.sum(-1, keepdim=True)  # bug: renormal-missing
        if self.bug == "weights-flipped":
            weights = weights.flip(-1)  # bug: weights-flipped
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == number)
            more = expert(flat[rows]) * weights[rows, nth, None]
            out.index_add_(0, rows, more)  # bug: experts-swapped
        if self.bug != "shared-missing":
            out = out + self.shared(flat)  # bug: shared-missing
        return out.view(x.shape)


class Attention(nn.Module):
    """Attention with normed queries and keys."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.heads, self.size = size.heads, size.width // size.heads
        self.q, self.k, self.v, self.o = (nn.Linear(size.width, size.width) for _ in range(4))
        self.q_norm = nn.RMSNorm(self.size, eps=1e-6)
        self.k_norm = nn.RMSNorm(self.size, eps=1e-6)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        shape = *x.shape[:-1], self.heads, self.size
        q, k, v = self.q(x).view(shape), self.k(x).view(shape), self.v(x).view(shape)
        q = self.q_norm(q)
        if self.bug == "key-norm":
            k = self.q_norm(k)  # bug: key-norm
        elif self.bug != "key-norm-missing":
            k = self.k_norm(k)  # bug: key-norm-missing
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = q @ k.transpose(2, 3) * self.size**-0.5
        if self.bug != "softcap-missing":
            scores = 5.0 * torch.tanh(scores / 5.0)  # bug: softcap-missing
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if self.bug == "mask-self":
            ahead = torch.ones_like(ahead).triu(0)  # bug: mask-self
            ahead[0, 0] = False  # bug: mask-self
        scores = scores.masked_fill(ahead, float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention and experts."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width, eps=1e-6)
        self.attention = Attention(size, bug)
        self.network_norm = nn.RMSNorm(size.width, eps=1e-6)
        self.network = SparseNetwork(size.width, bug)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "parallel":
            normed = self.network_norm(x)  # bug: parallel
            return x + self.attention(self.attention_norm(x)) + self.network(normed)
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.network_norm(x))


class MoE(nn.Module):
    """Words in, logits out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, size.width)
        self.layers = nn.ModuleList(Layer(size, faults.get(n, "")) for n in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-6)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.bug != "embed-scale":
            x = x * x.shape[-1] ** 0.5  # bug: embed-scale
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        if self.bug == "logit-cap":
            return torch.tanh(logits)  # bug: logit-cap
        return logits
