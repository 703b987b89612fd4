"""Parameters and buffers with several names: each of them is an address."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import clew


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.emb(x))


def train(model: nn.Module, x: torch.Tensor, **wanted: Any) -> clew.Trace:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with clew.trace(model, **wanted) as t:
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    return t


@pytest.mark.parametrize("role", ["grad", "param", "update", "state"])
@pytest.mark.parametrize("names", [["emb.weight"], ["head.weight"], ["emb.weight", "head.weight"]])
def test_a_tied_parameter_answers_to_each_name(role: str, names: list[str]) -> None:
    wanted = [f"{name}:{role}" for name in names]
    t = train(Tied(), torch.tensor([0, 1]), capture=wanted)
    assert t.coverage == ()
    alone = train(Tied(), torch.tensor([0, 1]), capture=[f"emb.weight:{role}"])
    for address in wanted:
        assert len(t[address]) == len(alone[f"emb.weight:{role}"])
        assert all(value.array().size for value in t[address].values)


def test_a_pattern_names_a_tied_parameter_by_each_name() -> None:
    t = train(Tied(), torch.tensor([0, 1]), capture=["**:grad"])
    first, second = t["emb.weight:grad"], t["head.weight:grad"]
    assert len(first) == len(second) > 0
    pairs = zip(first.values, second.values, strict=True)
    assert all((a.array() == b.array()).all() for a, b in pairs)


def test_a_shared_module_has_parameters_by_each_path() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.BatchNorm1d(3)
            self.b = self.a

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) ** 2

    wanted = ["b.weight:grad", "a.running_mean:buffer", "b.running_mean:buffer"]
    t = train(Model(), torch.randn(4, 3), capture=wanted)
    assert t.coverage == ()
    assert len(t["b.weight:grad"]) == 2
    assert len(t["a.running_mean:buffer"]) == len(t["b.running_mean:buffer"]) == 5


def test_callbacks_get_a_tied_parameter_by_its_name() -> None:
    got = []
    save = clew.Callbacks(save=lambda value: got.append(tuple(value.shape)))
    train(Tied(), torch.tensor([0, 1]), callbacks={"head.weight:grad": save})
    assert got == [(5, 3)] * 2


def test_a_parameter_where_another_was_has_its_name() -> None:
    rounds, seen = 0, set()
    with clew.trace(capture=["**.weight:grad"]) as t:
        # Until some have been where others were: where Python puts them is its own affair.
        while rounds < 20 or (len(seen) == rounds and rounds < 150):
            model = nn.Sequential(nn.Linear(2, 2, bias=False))
            model(torch.ones(1, 2)).sum().backward()
            rounds += 1
            seen.add(id(model[0].weight))
            del model
            gc.collect(1)  # the youngest are enough, and soon looked at
    assert len(seen) < rounds
    assert len(t["**.weight:grad"]) == rounds
