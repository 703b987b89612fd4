"""Module calls that are heard and not recorded: who is told, for how long, and by which name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.capture.calls import CalledNames, listen


class Pair(nn.Module):
    """Takes and gives more than one tensor, by name and in containers."""

    def forward(self, x: Tensor, *, more: dict[str, Any]) -> dict[str, Any]:
        return {"note": "pair", "out": [x + 1, more["y"]]}


def test_each_listener_is_told_until_it_ends() -> None:
    model, first, second = nn.Sequential(nn.ReLU()), [], []
    end_first = listen({}, first.append)
    end_second = listen({}, second.append)
    model(torch.ones(1))
    end_first()
    model(torch.ones(1))
    end_second()
    model(torch.ones(1))
    assert first == [model[0], model]
    assert second == [model[0], model] * 2
    assert not nn.modules.module._global_forward_hooks


def test_ending_twice_leaves_others_alone() -> None:
    torch._dynamo.reset()
    model, told = nn.ReLU(), []
    end_first = listen({}, lambda module: None)
    end_first()
    end_second = listen({id(model): "relu"}, told.append)
    end_first()
    # torch would warn of the hook, and a warning is an error here.
    torch.compile(model, backend="eager")(torch.ones(1))
    end_second()
    assert told[0] == "relu"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_calls_inside_compiled_code_are_told_by_path(backend: str) -> None:
    torch._dynamo.reset()
    model, told = Pair(), []
    end = listen({id(model): "pair"}, told.append)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(1), more={"y": torch.zeros(1)})
    end()
    compiled(torch.ones(1), more={"y": torch.zeros(1)})
    assert [who for who in told if isinstance(who, str)] == ["pair", "pair"]


def test_a_name_outside_any_call_is_the_shortest() -> None:
    shared = nn.ReLU()
    names = CalledNames()
    model = nn.Sequential(nn.Sequential(shared), shared)
    assert [name for name, _ in names.add(model)] == ["", "0", "0.0", "1"]
    assert names.of(shared) == "1"
    assert names.shared == {id(shared)}
    assert names.original(nn.ReLU()) is None
