"""Ops folded into what people wrote, in the tree and in the code view."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import clew
from tests.native.engine import needs_engine

ENGINES = ["python", pytest.param("native", marks=needs_engine)]


class Linear(nn.Module):
    """Named as the one of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ours, self.theirs = Linear(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.theirs(self.ours(x))


X = torch.ones(2, 4)


def traced(engine: str, model: nn.Module | None = None, **settings: Any) -> clew.Trace:
    model = Net() if model is None else model
    with clew.trace(model, engine=engine, **settings) as t:
        model(X).sum().backward()
    return t


def lines(text: object) -> list[str]:
    return [line.lstrip("│ ") for line in str(text).splitlines()]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_leaf_module_of_torch_stands_for_its_ops(engine: str) -> None:
    code = lines(traced(engine).code())
    at = code.index("[theirs] Linear(f32[2,4]) -> f32[2,3]")
    # What ran for it later is still told.
    assert code[at + 1].startswith("# ↩ backward: ")
    assert "mm ×2" in code[at + 1] or "mm" in code[at + 1]
    assert not any("addmm" in line for line in code)


def test_nothing_else_is_guessed_without_composites() -> None:
    code = lines(traced("python").code())
    assert any("[ours]" in line for line in code)
    assert "# mm(f32[2,4], f32[4,4]) -> f32[2,4]" in code


@needs_engine
def test_a_composite_stands_for_its_ops() -> None:
    t = traced("native")
    code = lines(t.code())
    assert "# linear(f32[2,4], f32[4,4]) -> f32[2,4]" in code
    assert not any("# mm(" in line or "# t(" in line for line in code)
    backward = code[code.index("# linear(f32[2,4], f32[4,4]) -> f32[2,4]") + 1]
    assert backward == "# ↩ backward: t ×4, mm ×2" or backward.startswith("# ↩ backward: t")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("settings", [{"ops": "aten"}, {"succinct": False}])
def test_all_ops_can_be_shown(engine: str, settings: dict[str, Any]) -> None:
    code = lines(traced(engine).code(**settings))
    assert "# addmm(f32[3], f32[2,4], f32[4,3]) -> f32[2,3]" in code
    assert "# mm(f32[2,4], f32[4,4]) -> f32[2,4]" in code
    assert not any(line.startswith("# linear(") for line in code)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tree_names_ops_by_what_ran_them_and_counts_all(engine: str) -> None:
    t = traced(engine, nn.Sequential(Net(), nn.Flatten()))
    folded, whole = t.tree(), t.tree(ops="aten")
    assert "addmm" not in str(folded).split("backward")[0]
    assert "t, addmm" in str(whole)
    for view in (folded, whole):
        tree = view.to_dict()
        assert tree["ops"] == len(t.ops) == sum(root["ops"] for root in tree["children"])
        for node in every_node(tree["children"]):
            if node["children"]:
                assert node["ops"] == sum(child["ops"] for child in node["children"])
            if node["op_counts"]:
                assert node["ops"] == sum(node["op_counts"].values())
    json.dumps(folded.to_dict())


@needs_engine
def test_the_tree_of_composites_has_both_names() -> None:
    def run(x: Tensor) -> Tensor:
        return functional.linear(x, torch.ones(3, 4), torch.ones(3)).softmax(-1)

    with clew.trace(engine="native") as t:
        run(X)
    assert "· ones ×2, linear, softmax" in str(t)
    (node,) = t.tree().to_dict()["children"]
    assert node["folded_counts"] == {
        "aten.ones.default": 2,
        "aten.linear.default": 1,
        "aten.softmax.int": 1,
    }
    assert node["op_counts"]["aten.addmm.default"] == 1


def every_node(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [found for node in nodes for found in (node, *every_node(node["children"]))]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_failed_is_not_folded(engine: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(RuntimeError), clew.trace(model, engine=engine) as t:
        model(torch.ones(2, 5))
    assert any("# ✗ addmm(f32[3], f32[2,5], f32[4,3])" in line for line in lines(t.code()))
    assert "addmm" in str(t)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_not_finite_is_not_folded(engine: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight[0, 0] = torch.inf
        with clew.trace(model, engine=engine, values="stats") as t:
            model(X)
    assert any("addmm(" in line and "Inf" in line for line in lines(t.code()))


@needs_engine
def test_ops_that_were_asked_for_are_shown_without_what_ran_them() -> None:
    t = traced("native")
    assert "# mm(f32[2,4], f32[4,4]) -> f32[2,4]" in lines(t.code("op:aten.mm*"))
    asked = lines(t.code("op:aten.linear*"))
    assert "# linear(f32[2,4], f32[4,4]) -> f32[2,4]" in asked
    assert not any("# mm(" in line for line in asked)


@needs_engine
def test_code_as_data_says_what_a_composite_is() -> None:
    def walk(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [found for node in nodes for found in (node, *walk(node.get("children", [])))]

    t = traced("native")
    nodes = walk(t.code().to_dict()["nodes"])
    linear = next(node for node in nodes if node.get("op") == "aten.linear.default")
    assert linear["kind"] == "composite"
    assert linear["outputs"] == "f32[2,4]"


@pytest.mark.parametrize("view", ["tree", "code"])
def test_other_settings_are_refused(view: str) -> None:
    t = traced("python")
    with pytest.raises(clew.ClewError, match=r"ops='all': it is None, .* or 'aten'"):
        getattr(t, view)(ops="all")
