"""A port of the windowed transformer of `swin`: gathered places, the fused attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import swin
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture
from accuracy.ports.swin import GRID, SHIFT, WINDOW


def order_of(side: int, shift: int, fault: str) -> Tensor:
    """Return the places of a picture, window by window, of the picture moved by a shift."""
    places = torch.arange(side * side).view(side, side)
    if fault == "shift-sign":
        shift = -shift  # bug: shift-sign
    lines = (torch.arange(side) + shift) % side
    places = places[lines][:, lines]
    cut = places.unfold(0, WINDOW, WINDOW).unfold(1, WINDOW, WINDOW)
    return cut.reshape(-1, WINDOW * WINDOW)


def same_part(side: int, fault: str) -> Tensor:
    """Return for each shifted window which places may see each other."""
    edge = torch.bucketize(torch.arange(side), torch.tensor([side - WINDOW - 1, side - SHIFT - 1]))
    if fault == "regions-rows":
        part = (3 * edge).view(-1, 1).repeat(1, side)  # bug: regions-rows
    else:
        part = 3 * edge.view(-1, 1) + edge
    inside = part.unfold(0, WINDOW, WINDOW).unfold(1, WINDOW, WINDOW).reshape(-1, WINDOW**2)
    return inside.unsqueeze(2) == inside.unsqueeze(1)


class Stage(nn.Module):
    """One layer on flat places."""

    def __init__(self, width: int, heads: int, side: int, shift: int, fault: str) -> None:
        super().__init__()
        self.ln_a, self.ln_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.near = nn.Parameter(torch.zeros(heads, 2 * WINDOW - 1, 2 * WINDOW - 1))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.n, self.side, self.shift, self.fault = heads, side, shift, fault

    def biases(self) -> Tensor:
        place = torch.arange(WINDOW**2)
        row, column = place // WINDOW, place % WINDOW
        down = row.view(-1, 1) - row + WINDOW - 1
        right = column.view(-1, 1) - column + WINDOW - 1
        if self.fault == "table-columns":
            return self.near[:, right, down]  # bug: table-columns
        return self.near[:, down, right]

    def attend(self, z: Tensor) -> Tensor:
        shift = 0 if self.fault == "shift-missing" else self.shift
        order = order_of(self.side, shift, self.fault)
        cut = z[:, order]
        q, k, v = (part(cut).unflatten(3, (self.n, -1)).transpose(2, 3)
                   for part in (self.to_q, self.to_k, self.to_v))  # fmt: skip
        mask = torch.zeros(1, 1, 1, 1) if self.fault == "bias-missing" else self.biases()[None]
        if self.shift and self.fault != "mask-missing":
            seen = same_part(self.side, self.fault).unsqueeze(1)
            mask = mask + torch.where(seen, 0.0, -100.0)
        scale = self.n**-0.5 if self.fault == "scale-heads" else None
        sdpa = F.scaled_dot_product_attention
        mixed = sdpa(q, k, v, attn_mask=mask.to(z.dtype), scale=scale)  # bug: scale-heads
        mixed = self.out(mixed.transpose(2, 3).flatten(3)).flatten(1, 2)
        if self.fault == "shift-back-missing":
            order = order_of(self.side, 0, "")
        if self.fault == "windows-back":
            wide = order.view(-1, WINDOW, self.side // WINDOW, WINDOW)
            order = wide.transpose(1, 2)  # bug: windows-back
        back = order.flatten().argsort()
        return mixed[:, back]

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.attend(self.ln_a(z))
        inner = z if self.fault == "mlp-unnormed" else self.ln_b(z)
        wide = self.up(inner)
        if self.fault == "gelu-erf":
            wide = F.gelu(wide, approximate="tanh")  # bug: gelu-erf
        else:
            wide = 0.5 * wide * (1 + torch.erf(wide * 0.5**0.5))
        return z + self.down(wide)


class Windowed(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.fault = size.width, faults.get(OUTSIDE, "")
        self.entry, self.ln = nn.Linear(12, d), nn.LayerNorm(d)
        forms = ((d, GRID, 0), (d, GRID, SHIFT), (2 * d, GRID // 2, 0))
        self.stages = nn.ModuleList(
            Stage(width, size.heads, side, shift, faults.get(n, ""))
            for n, (width, side, shift) in enumerate(forms)
        )
        self.join_ln, self.join = nn.LayerNorm(4 * d), nn.Linear(4 * d, 2 * d, bias=False)
        self.last, self.classes = nn.LayerNorm(2 * d), nn.Linear(2 * d, 10)

    def joined(self, z: Tensor) -> Tensor:
        four = z.view(len(z), GRID // 2, 2, GRID // 2, 2, -1)
        if self.fault == "merge-order":
            four = four.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)  # bug: merge-order
        else:
            four = four.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        return self.join(four if self.fault == "merge-norm-missing" else self.join_ln(four))

    def forward(self, image: Tensor) -> Tensor:
        pieces = F.unfold(image, 2, stride=2).mT
        z = self.ln(self.entry(pieces))
        z = self.stages[1](self.stages[0](z))
        z = self.stages[2](self.joined(z))
        if self.fault == "pool-early":
            return self.classes(self.last(z.mean(1)))  # bug: pool-early
        if self.fault == "pool-max":
            return self.classes(self.last(z).max(1).values)  # bug: pool-max
        return self.classes(self.last(z).mean(1))


def convert(old: swin.Swin, new: Windowed) -> None:
    """Copy the weights of the reference."""
    new.entry.weight.copy_(old.patches.weight.flatten(1))
    new.entry.bias.copy_(old.patches.bias)
    pairs = [(new.ln, old.norm), (new.join_ln, old.merging.norm), (new.join, old.merging.reduce),
             (new.last, old.last), (new.classes, old.head)]  # fmt: skip
    for mine, layer in zip(old.layers, new.stages, strict=True):
        pairs += [(layer.ln_a, mine.norm1), (layer.ln_b, mine.norm2), (layer.up, mine.fc1),
                  (layer.down, mine.fc2), (layer.out, mine.attn.proj)]  # fmt: skip
        parts = layer.to_q, layer.to_k, layer.to_v
        qkv = mine.attn.qkv
        for part, w, b in zip(parts, qkv.weight.chunk(3), qkv.bias.chunk(3), strict=True):
            part.weight.copy_(w)
            part.bias.copy_(b)
        side = 2 * WINDOW - 1
        layer.near.copy_(mine.attn.table.T.reshape(-1, side, side))
    for target, source in pairs:
        target.load_state_dict(source.state_dict())


SWIN = Architecture(
    "swin", swin.Swin, Windowed, convert, lambda: (picture(),),
    (("layers.{}",), ("stages.{}",)),
    (
        *bugs("table-columns scale-heads gelu-erf windows-back"),
        *bugs("shift-sign regions-rows", (1,)),
        *bugs("bias-missing mlp-unnormed", omits=True),
        *bugs("shift-missing shift-back-missing mask-missing", (1,), omits=True),
        *bugs("merge-order pool-early pool-max", (OUTSIDE,)),
        *bugs("merge-norm-missing", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
