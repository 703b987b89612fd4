"""Module calls that are heard and not recorded: who is told, for how long, and by which name."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.compat.engine.calls import CallHooks, KnownModules, is_wanted, listen


class Pair(nn.Module):
    """Takes and gives more than one tensor, by name and in containers."""

    def forward(self, x: Tensor, *, more: dict[str, Any]) -> dict[str, Any]:
        return {"note": "pair", "out": [x + 1, more["y"]]}


def known(model: nn.Module) -> KnownModules:
    modules = KnownModules(root="root")
    modules.add(model)
    return modules


def test_each_listener_is_told_until_it_ends() -> None:
    model, first, second = nn.Sequential(nn.ReLU()), [], []
    end_first = listen(known(model), first.append)
    end_second = listen(known(model), second.append)
    model(torch.ones(1))
    nn.Tanh()(torch.ones(1))  # which nobody knows
    end_first()
    model(torch.ones(1))
    end_second()
    model(torch.ones(1))
    assert first == ["0", "root"]
    assert second == ["0", "root"] * 2
    assert not nn.modules.module._global_forward_hooks


def test_a_listener_that_is_gone_hears_no_more() -> None:
    class Ear:
        def hear(self, path: str) -> None:
            told.append(path)

    model, told, ear = nn.ReLU(), [], Ear()
    end = listen(known(model), ear.hear)
    model(torch.ones(1))
    del ear
    gc.collect()
    assert not nn.modules.module._global_forward_hooks
    model(torch.ones(1))
    end()
    assert told == ["root"]


def test_ending_twice_leaves_others_alone() -> None:
    torch._dynamo.reset()
    model, told = nn.ReLU(), []
    end_first = listen(KnownModules(), lambda path: None)
    end_first()
    end_second = listen(known(model), told.append)
    end_first()
    # torch would warn of the hook, and a warning is an error here.
    torch.compile(model, backend="eager")(torch.ones(1))
    end_second()
    assert told[0] == "root"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_calls_inside_compiled_code_are_told_by_path(backend: str) -> None:
    torch._dynamo.reset()
    model, told = Pair(), []
    end = listen(known(model), told.append)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(1), more={"y": torch.zeros(1)})
    end()
    compiled(torch.ones(1), more={"y": torch.zeros(1)})
    assert told == ["root", "root"]


def test_a_path_outside_any_call_is_the_shortest() -> None:
    shared = nn.ReLU()
    modules = KnownModules(root="root")
    model = nn.Sequential(nn.Sequential(shared), shared)
    assert [path for path, _ in modules.add(model)] == ["root", "0", "0.0"]
    assert modules.paths[id(shared)] == "0.0"
    assert modules.path_of(shared) == "1"
    assert modules.path_of(model) == "root"
    assert modules.path_of(nn.ReLU()) is None


def test_modules_are_known_by_class_and_by_names_in_their_paths() -> None:
    model = nn.ModuleDict({"a1": nn.ReLU(), "a10": nn.ReLU(), "b": nn.ReLU(), "c": nn.Tanh()})
    modules = KnownModules()
    found = modules.add(model, is_wanted, (nn.ReLU, nn.Tanh), ["a1", "c"], ["10"])
    assert [path for path, _ in found] == ["a1", "c"]
    assert modules.path_of(model["b"]) is None
    assert modules.path_of("a1") is None
    assert [path for path, _ in KnownModules().add(model, is_wanted, nn.Tanh)] == ["c"]
    del model, found
    gc.collect()
    assert modules.paths == {}


def test_a_module_has_the_path_that_it_was_last_made_known_by() -> None:
    shared = nn.ReLU()
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.Tanh()), "b": shared})
    modules = KnownModules(root="root")
    modules.add(model)
    modules.add(model["a"], is_wanted, nn.ReLU)
    assert modules.path_of(shared) == "0"
    # Those that were not wanted again keep theirs.
    assert modules.path_of(model["a"]) == "a"
    assert modules.path_of(model["a"][1]) == "a.1"
    modules.add(model)
    assert modules.path_of(shared) == "b"
    assert sorted(modules.paths.values()) == ["a", "a.0", "a.1", "root"]


def test_hooks_are_removed_one_by_one_and_all_together() -> None:
    class Ear:
        def __init__(self) -> None:
            self.told: list[str] = []

        def hear(self, path: str) -> None:
            self.told.append(path)

    model, ear = nn.Sequential(nn.ReLU(), nn.Tanh()), Ear()
    everything = KnownModules("root").add(model)
    hooks = CallHooks(root="root")
    hooks.hear(model, everything[1:2], ear.hear)
    hooks.hear(model, everything, ear.hear)
    assert len(hooks) == 3
    hooks[0].remove()
    hooks[0].remove()
    model(torch.ones(1))
    assert ear.told == ["1", "root"]
    hooks.end()
    assert hooks == []
    assert not nn.modules.module._global_forward_hooks
    model(torch.ones(1))
    hooks.hear(model, everything[2:], ear.hear)
    model(torch.ones(1))
    hooks.end()
    assert ear.told == ["1", "root", "1"]
