"""A port of the recurrent tagger of `gru`: gates fused, inputs projected before the loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accuracy.ports import gru
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class Recurrent(nn.Module):
    """One layer."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        self.ln = nn.LayerNorm(d, eps=1e-2 if fault == "norm-eps" else 1e-5)
        self.given, self.carried = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d)
        self.fault = fault

    def step(self, given: Tensor, state: Tensor) -> Tensor:
        d = state.shape[1]
        carried = self.carried(state)
        both = (given[:, : 2 * d] + carried[:, : 2 * d]).sigmoid()
        reset, update = both.chunk(2, 1)
        if self.fault == "gates-swapped":
            reset, update = update, reset  # bug: gates-swapped
        inner = carried[:, 2 * d :]
        if self.fault == "reset-early":
            weight, bias = self.carried.weight[2 * d :], self.carried.bias[2 * d :]
            inner = (reset * state) @ weight.T + bias  # bug: reset-early
        elif self.fault != "reset-missing":
            inner = reset * inner  # bug: gates-swapped
        new = given[:, 2 * d :] + inner
        if self.fault == "candidate-sigmoid":
            new = new.sigmoid()  # bug: candidate-sigmoid
        else:
            new = new.tanh()
        if self.fault == "update-flipped":
            return torch.lerp(state, new, update)  # bug: update-flipped
        return torch.lerp(new, state, update)  # bug: gates-swapped

    def forward(self, z: Tensor) -> Tensor:
        given = self.given(self.ln(z))  # bug: norm-eps
        state = z.new_zeros(z.shape[0], z.shape[2])
        found = []
        for t, row in enumerate(given.unbind(1)):
            if self.fault == "state-lost" and t:
                state = torch.zeros_like(state)  # bug: state-lost
            state = self.step(row, state)  # bug: state-lost
            found.append(state[:, None])
        out = torch.cat(found, 1)
        return out if self.fault == "residual-missing" else out + z


class Labels(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault = size.width, faults.get(OUTSIDE, "")
        self.words = nn.Embedding(60, d)
        self.steps = nn.ModuleList(Recurrent(size, faults.get(n, "")) for n in range(size.layers))
        self.look, self.ask = nn.Linear(d, d), nn.Parameter(torch.zeros(d))
        self.ask_bias, self.classes = nn.Parameter(torch.zeros(1)), nn.Linear(d, 10)

    def forward(self, ids: Tensor) -> Tensor:
        z = self.words(ids)
        z = z if self.fault == "embed-scale" else z / 2
        for step in self.steps:
            z = step(z)
        seen = self.look(z)
        seen = seen.clamp(min=0) if self.fault == "key-relu" else seen.tanh()  # bug: key-relu
        scores = seen @ self.ask + self.ask_bias
        shares = scores.softmax(0 if self.fault == "pool-rows" else 1)  # bug: pool-rows
        if self.fault == "pool-last":
            return self.classes(z[:, -1])  # bug: pool-last
        return self.classes(torch.einsum("bt,btd->bd", shares, z))


def convert(old: gru.Tagger, new: Labels) -> None:
    """Copy the weights of the reference."""
    new.words.weight.copy_(old.embed.weight)
    for mine, step in zip(old.layers, new.steps, strict=True):
        step.ln.weight.copy_(mine.norm.weight)
        step.ln.bias.copy_(mine.norm.bias)
        cell = mine.cell
        for target, parts in (
            (step.given, (cell.w_r, cell.w_z, cell.w_n)),
            (step.carried, (cell.u_r, cell.u_z, cell.u_n)),
        ):
            target.weight.copy_(torch.cat([part.weight for part in parts]))
            target.bias.copy_(torch.cat([part.bias for part in parts]))
    new.look.load_state_dict(old.key.state_dict())
    new.ask.copy_(old.query.weight[0])
    new.ask_bias.copy_(old.query.bias)
    new.classes.load_state_dict(old.out.state_dict())


GRU = Architecture(
    "gru", gru.Tagger, Labels, convert, lambda: (tokens(length=7),),
    (("layers.{}",), ("steps.{}",)),
    (
        *bugs("gates-swapped reset-early candidate-sigmoid update-flipped state-lost norm-eps"),
        *bugs("reset-missing residual-missing", omits=True),
        *bugs("key-relu pool-rows pool-last", (OUTSIDE,)),
        *bugs("embed-scale", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
