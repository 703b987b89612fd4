"""A port of the experts of `moe`: every expert computes every word, stacked weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import moe
from accuracy.ports.moe import CHOSEN, EXPERTS
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Root(nn.Module):
    """RMSNorm written out."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, h: Tensor) -> Tensor:
        return h / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


class DenseExperts(nn.Module):
    """All experts at once, weighted by a dense matrix with zeros."""

    def __init__(self, d: int, fault: str) -> None:
        super().__init__()
        self.choose = nn.Linear(d, EXPERTS, bias=False)
        self.offset = nn.Parameter(torch.zeros(EXPERTS))
        self.first = nn.Parameter(torch.zeros(EXPERTS + 1, d, 2 * d))
        self.second = nn.Parameter(torch.zeros(EXPERTS + 1, d, d))
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "experts-swapped":
            self.second[:2].copy_(self.second[:2].flip(0))

    def parts(self, h: Tensor) -> Tensor:
        logits = self.choose(h)
        if self.fault == "router-sigmoid":
            chance = logits.sigmoid()  # bug: router-sigmoid
        else:
            chance = logits.softmax(-1)
        biased = chance if self.fault == "correction-missing" else chance + self.offset
        top = biased.topk(CHOSEN, -1).indices
        if self.fault == "correction-leaks":
            picked = torch.gather(biased, -1, top)  # bug: correction-leaks
        else:
            picked = torch.gather(chance, -1, top)
        if self.fault != "renormal-missing":
            picked = picked / picked.sum(-1, True)
        if self.fault == "weights-flipped":
            picked = picked.flip(-1)  # bug: weights-flipped
        return torch.zeros_like(chance).scatter(-1, top, picked)

    def forward(self, h: Tensor) -> Tensor:
        shares = self.parts(h)
        gate, up = torch.einsum("btd,edf->btef", h, self.first).chunk(2, -1)
        if self.fault == "expert-relu":
            chosen, shared = gate[:, :, :-1], gate[:, :, -1:]
            open_ = torch.cat([F.relu(chosen), F.silu(shared)], 2)  # bug: expert-relu
        else:
            open_ = F.silu(gate)
        each = torch.einsum("btef,efd->bted", open_ * up, self.second)  # bug: experts-swapped
        chosen = (each[:, :, :-1] * shares[..., None]).sum(2)
        return chosen if self.fault == "shared-missing" else chosen + each[:, :, -1]


class Heads(nn.Module):
    """Attention over heads, packed projections."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.n = size.heads
        self.packed = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.for_q, self.for_k = Root(size.width // size.heads), Root(size.width // size.heads)
        self.fault = fault

    def forward(self, h: Tensor) -> Tensor:
        t = h.shape[1]
        q, k, v = self.packed(h).unflatten(-1, (3, self.n, -1)).unbind(2)
        q = self.for_q(q)
        if self.fault == "key-norm":
            k = self.for_q(k)  # bug: key-norm
        elif self.fault != "key-norm-missing":
            k = self.for_k(k)
        logits = torch.einsum("bqnd,bknd->bnqk", q, k) / k.shape[-1] ** 0.5
        if self.fault != "softcap-missing":
            logits = torch.tanh(logits / 5) * 5
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if self.fault == "mask-self":
            seen = seen.tril(-1)  # bug: mask-self
            seen[0, 0] = True  # bug: mask-self
        weights = torch.where(seen, logits, float("-inf")).softmax(-1)
        return self.out(torch.einsum("bnqk,bknd->bqnd", weights, v).flatten(2))


class Step(nn.Module):
    """One layer."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.pre, self.heads = Root(size.width), Heads(size, fault)
        self.mid, self.experts = Root(size.width), DenseExperts(size.width, fault)
        self.fault = fault

    def forward(self, h: Tensor) -> Tensor:
        mixed = h + self.heads(self.pre(h))
        if self.fault == "parallel":
            return mixed + self.experts(self.mid(h))  # bug: parallel
        return mixed + self.experts(self.mid(mixed))


class SparseModel(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(60, size.width))
        self.steps = nn.ModuleList(Step(size, faults.get(n, "")) for n in range(size.layers))
        self.end = Root(size.width)
        self.fault = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table[ids]
        if self.fault != "embed-scale":
            h = h * h.shape[-1] ** 0.5
        for step in self.steps:
            h = step(h)
        logits = self.end(h) @ self.table.T
        return logits.tanh() if self.fault == "logit-cap" else logits  # bug: logit-cap


def convert(old: moe.MoE, new: SparseModel) -> None:
    """Copy the weights of the reference."""
    new.table.copy_(old.embed.weight)
    new.end.gain.copy_(old.norm.weight)
    for mine, step in zip(old.layers, new.steps, strict=True):
        step.pre.gain.copy_(mine.attention_norm.weight)
        step.mid.gain.copy_(mine.network_norm.weight)
        attn, heads = mine.attention, step.heads
        parts = attn.q, attn.k, attn.v
        heads.packed.weight.copy_(torch.cat([part.weight for part in parts]))
        heads.packed.bias.copy_(torch.cat([part.bias for part in parts]))
        heads.out.load_state_dict(attn.o.state_dict())
        heads.for_q.gain.copy_(attn.q_norm.weight)
        heads.for_k.gain.copy_(attn.k_norm.weight)
        network, experts = mine.network, step.experts
        experts.choose.weight.copy_(network.router.weight)
        experts.offset.copy_(network.correction)
        for number, one in enumerate([*network.experts, network.shared]):
            experts.first[number].copy_(torch.cat([one.gate.weight, one.up.weight]).T)
            experts.second[number].copy_(one.down.weight.T)


MOE = Architecture(
    "moe", moe.MoE, SparseModel, convert, lambda: (tokens(),), (("layers.{}",), ("steps.{}",)),
    (
        *bugs("expert-relu experts-swapped router-sigmoid correction-leaks weights-flipped"),
        *bugs("key-norm mask-self parallel"),
        *bugs("correction-missing renormal-missing shared-missing key-norm-missing", omits=True),
        *bugs("softcap-missing", omits=True),
        *bugs("logit-cap", (OUTSIDE,)),
        *bugs("embed-scale", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
