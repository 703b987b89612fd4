"""Fingerprints in `clew.diff`: another order is noticed where it arises, another layout is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.analysis.diff.orders import Order, Orders, order_of, orders_of

VALUES = ("fingerprint", "full")


def order(one: Tensor, other: Tensor, values: str = "fingerprint", in_place: bool = False) -> Order:
    """How two tensors are ordered, by what a trace has of them."""
    found = []
    for tensor in (one, other):
        with clew.trace(values=values) as t:
            tensor.clone()
        found += [Orders(t._current_run()), t.ops[0].inputs["0"].number]
    return order_of(*found, in_place=in_place)


def numbers(*shape: int) -> Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape) + torch.rand(shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "the same": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "heads split": lambda x: x.view(2, 10, 4, 16).transpose(1, 2),
    "heads split, contiguous": lambda x: x.view(2, 10, 4, 16).transpose(1, 2).contiguous(),
    "batch and length merged": lambda x: x.reshape(20, 64),
    "channels first": lambda x: x.permute(0, 2, 1).contiguous(),
    "an axis of one": lambda x: x[:, None],
    "rounded otherwise": lambda x: x * (1 + 1e-6 * torch.randn(x.shape)),
}
ORDERS: dict[str, tuple[Callable[[Tensor], Tensor], Order]] = {
    "rows swapped": (lambda x: x.flip(1), Order.PERMUTED),
    "features interleaved": (
        lambda x: x.view(2, 10, 2, 32).transpose(2, 3).reshape(2, 10, 64), Order.PERMUTED,
    ),
    "heads merged without a transpose": (
        lambda x: x.view(2, 10, 4, 16).transpose(1, 2).reshape(2, 10, 64), Order.SCRAMBLED,
    ),
    "any order": (
        lambda x: x.flatten()[torch.randperm(x.numel())].view(x.shape), Order.SCRAMBLED,
    ),
    "heads in another order": (
        lambda x: x.view(2, 10, 4, 16).flip(2).transpose(1, 2), Order.PERMUTED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_layouts_keep_the_order(name: str, values: str) -> None:
    x = numbers(2, 10, 64)
    assert order(x, LAYOUTS[name](x), values) is Order.SAME
    assert order(LAYOUTS[name](x), x, values) is Order.SAME


@pytest.mark.parametrize("name", list(ORDERS))
def test_other_orders_are_told(name: str) -> None:
    x = numbers(2, 10, 64)
    change, expected = ORDERS[name]
    assert order(x, change(x)) is expected
    assert order(change(x), x) is expected


def test_a_square_transposed_is_the_same_layout_but_not_at_the_same_place() -> None:
    x = numbers(20, 20)
    assert order(x, x.t()) is Order.SAME
    assert order(x, x.t(), in_place=True) is Order.SCRAMBLED


def test_without_fingerprints_nothing_is_known() -> None:
    x = numbers(2, 10, 64)
    assert order(x, x.flip(1), "stats") is Order.UNKNOWN
    assert order(x, numbers(2, 10, 60)) is Order.UNKNOWN


def test_groups_that_cannot_be_compared_are_not_known() -> None:
    x = numbers(6, 10)
    assert order(x, x.reshape(4, 15)) is Order.UNKNOWN


class Mixer(nn.Module):
    """Heads that are split and merged again, in the right order or not."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.up, self.down = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.up(x).view(2, 5, 3, 8)
        if self.wrong:
            heads = heads.flip(2)  # the wrong line
        mixed = heads.tanh()
        return self.down(mixed.flatten(2))


def pair(values: str) -> clew.Diff:
    traces = []
    for wrong in (False, True):
        torch.manual_seed(0)
        model = Mixer(wrong)
        with clew.trace(model, values=values) as t, torch.no_grad():
            model(torch.linspace(-1, 1, 240).view(2, 5, 24))
        traces.append(t)
    return clew.diff(*traces)


@pytest.mark.parametrize("values", VALUES)
def test_a_permutation_is_named_where_it_arises(values: str) -> None:
    first = pair(values).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text.endswith("# the wrong line")


def test_notes_say_what_the_comparison_had() -> None:
    (note,) = [note for note in pair("stats").notes if "order" in note]
    assert note == (
        "a has statistics, which forgive any order of elements; values='fingerprint' tells orders "
        "apart"
    )
    assert not any("fingerprint" in note for note in pair("fingerprint").notes)


class Shifted(nn.Module):
    """Positions that are moved by some places, before what treats each alone."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.roll(self.up(x), self.by, 1))


@pytest.mark.parametrize("values", VALUES)
def test_results_in_another_order_differ(values: str) -> None:
    traces = []
    for by in (2, 3):
        torch.manual_seed(0)
        model, x = Shifted(by), torch.randn(4, 7, 16)
        with clew.trace(model, values=values) as t, torch.no_grad():
            model(x)
        traces.append(t)
    found = clew.diff(*traces)
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.name == "aten.roll.default"
    seems = "is" if values == "full" else "seems to be"
    assert f"b {seems} a shifted by one along dimension 1" in found.first.evidence
    assert "argument 1: [2] in a, [3] in b" in found.first.evidence


@pytest.mark.parametrize("values", VALUES)
def test_a_bias_that_is_left_out_shows_in_the_values(values: str) -> None:
    layer, x = nn.Linear(16, 12), numbers(2, 7, 16)
    with clew.trace(values=values) as a, torch.no_grad():
        torch.nn.functional.linear(x, layer.weight, layer.bias).relu()
    with clew.trace(values=values) as b, torch.no_grad():
        torch.nn.functional.linear(x, layer.weight).relu()
    first = clew.diff(a, b).first
    assert first is not None
    seems = "is" if values == "full" else "seems to be"
    assert f"b {seems} a + a vector along dimension 1, as of a bias" in first.evidence


def test_many_pairs_at_once_are_ordered_as_each_alone() -> None:
    x = numbers(2, 10, 64)
    others = [change(x) for change in LAYOUTS.values()]
    others += [change(x) for change, _ in ORDERS.values()] + [numbers(7), numbers(40, 32)]
    with clew.trace(values="fingerprint") as t:
        for tensor in (x, *others):
            tensor.clone()
    orders, taken = Orders(t._current_run()), [op.inputs["0"].number for op in t.ops]
    ones = np.full(len(others), taken[0])
    together = orders_of(orders, ones, orders, np.array(taken[1:]), np.zeros(len(others)))
    alone = [order(x, other) for other in others]
    assert together.tolist() == alone
    assert set(alone) == set(Order)
