"""Results mixed up after the op that gave them, and what a program returns turned round."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew


class Steered(nn.Module):
    """A norm with a shift and a scale, of which one may stand for the other."""

    def __init__(self, swapped: str = "") -> None:
        super().__init__()
        self.steer, self.last, self.swapped = nn.Linear(8, 32), nn.Linear(16, 16), swapped
        for name, weight in self.named_parameters():
            generator = torch.Generator().manual_seed(sum(name.encode()))
            with torch.no_grad():
                weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        if self.swapped == "where it is cut":
            scale, shift = self.steer(c).chunk(2, dim=-1)
        else:
            shift, scale = self.steer(c).chunk(2, dim=-1)
        if self.swapped == "later":
            shift, scale = scale, shift
        x = F.layer_norm(x, (16,))
        x = x * scale
        x = x + shift
        return torch.tanh(self.last(x))


def steered(swapped: str) -> clew.Trace:
    given = torch.Generator().manual_seed(3)
    x, c = torch.randn(4, 16, generator=given), torch.randn(4, 8, generator=given)
    model = Steered(swapped)
    with torch.no_grad(), clew.trace(model, values="fingerprint") as t:
        model(x, c)
    return t


def test_results_mixed_up_later_are_named_where_they_are_used() -> None:
    first = clew.diff(steered(""), steered("later")).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text == "x = x * scale"


def test_results_mixed_up_where_they_are_cut_are_named_there() -> None:
    first = clew.diff(steered(""), steered("where it is cut")).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text == "scale, shift = self.steer(c).chunk(2, dim=-1)"


class Picture(nn.Module):
    """Patches of three by three numbers, put together to a square."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(8, 9, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight.T).view(2, 4, 4, 3, 3)
        return y.transpose(2, 3).reshape(2, 12, 12)


class Port(Picture):
    """The same in other words, or with rows for columns."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        tiles = torch.einsum("brci,ij->brcj", x, self.weight)
        parts = tiles.unflatten(3, (3, 3)).permute(0, 1, 3, 2, 4)
        whole = parts.flatten(3, 4).flatten(1, 2)
        if self.order == "turned":
            whole = whole.mT
        return whole.contiguous()


def drawn(model: nn.Module) -> clew.Trace:
    x = torch.randn(2, 4, 4, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad(), clew.trace(model, values="fingerprint") as t:
        model(x)
    return t


def test_what_a_port_returns_turned_round_is_a_difference() -> None:
    reference = drawn(Picture())
    assert clew.diff(reference, drawn(Port(""))).equal
    found = clew.diff(reference, drawn(Port("turned")))
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.source is not None
    assert found.first.b.source.text in ("whole = whole.mT", "return whole.contiguous()")


class Masked(nn.Module):
    """A projection of what a mask lets through, with or without the mask."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(8, 8, generator=generator))
        self.masked = masked

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = torch.tanh(x)
        if self.masked:
            x = x * mask[:, None]
        x = x @ self.weight
        return torch.sigmoid(x)


def test_what_is_said_of_a_missing_op_is_said_of_that_op() -> None:
    x, mask = torch.randn(4, 8, generator=torch.Generator().manual_seed(5)), torch.ones(4)
    mask[1] = 0
    traces = []
    for masked in (True, False):
        with torch.no_grad(), clew.trace(values="fingerprint") as t:
            Masked(masked)(x, mask)
        traces.append(t)
    first = clew.diff(*traces).first
    assert first is not None
    assert first.a is not None
    assert first.a.name in ("aten.mul.Tensor", "aten.unsqueeze.default")
    assert first.kind == "missing"
    assert first.evidence[0] == "b has its inputs bit for bit, but not its result"
