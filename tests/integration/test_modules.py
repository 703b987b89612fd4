"""Module calls: which, in what order, under which names, with what going in and out."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutput

import clew
from clew.record.module_registry import ModuleTable
from tests import models
from tests.models import Call
from tests.outcomes import call_around, faults
from tests.processes import HANG_GUARD

ONE = torch.ones(1, 2)


def calls(trace: clew.Trace) -> list[str]:
    """The addresses of all module calls, indented by depth."""
    depth: dict[int | None, int] = {None: -1}
    lines = []
    for event in trace.modules:
        depth[event.id] = depth[event.parent_id] + 1
        lines.append("  " * depth[event.id] + event.address)
    return lines


# Order, nesting, counting


def test_calls_nest_as_they_happened() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(block, nn.Linear(2, 1))
    with clew.trace(model) as t:
        model(ONE)
    assert calls(t) == ["#0", "  0#0", "    0.0#0", "    0.1#0", "  1#0"]
    assert [event.name for event in t.modules] == [
        "Sequential", "Sequential", "Linear", "ReLU", "Linear",
    ]  # fmt: skip
    assert [event.module for event in t.modules] == ["", "0", "0.0", "0.1", "1"]
    assert {event.kind for event in t.modules} == {"module"}


def test_times_nest_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    root, first, second = t.modules
    assert 0 <= root.start <= first.start
    assert first.start + first.duration <= second.start
    assert second.start + second.duration <= root.start + root.duration
    for op in t.ops:
        if op.parent is not None:
            call = call_around(op)
            assert call in t.modules
            assert call.start <= op.start
            assert op.start + op.duration <= call.start + call.duration


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_a_module_called_often_is_counted(level: str) -> None:
    model = Call(lambda self, x: self.fc(self.fc(self.fc(x))), fc=nn.Linear(2, 2))
    with clew.trace(model, level=level) as t:
        model(ONE)
        model(ONE)
    assert [event.call for event in t["fc"]] == [0, 1, 2, 3, 4, 5]
    assert t["fc#4"].one.call == 4
    assert t["fc#4"].one.parent_id == t["#1"].one.id
    assert [event.call for event in t[""]] == [0, 1]


def test_each_call_has_its_own_values() -> None:
    model = Call(lambda self, x: self.twice(self.twice(x)), twice=Call(lambda self, x: x * 2))
    with clew.trace(model, values="full") as t:
        model(torch.tensor([1.0]))
    assert [v.array().tolist() for v in t["twice"].values] == [[2.0], [4.0]]
    assert [v.array().tolist() for v in t["twice:in"].values] == [[1.0], [2.0]]


def shared_model() -> nn.Module:
    layer = nn.Linear(2, 2)
    return Call(
        lambda self, x: self.tail(self.second(self.first(x))),
        first=layer,
        second=layer,
        tail=nn.Sequential(layer, nn.ReLU()),
    )


@pytest.mark.parametrize("name", ["first", "second", "tail.0"])
def test_every_name_of_a_shared_module_stands_for_all_its_calls(name: str) -> None:
    model = shared_model()
    with clew.trace(model) as t:
        model(ONE)
    assert [event.call for event in t[name]] == [0, 1, 2]
    assert len({event.id for event in t["first"]} & {event.id for event in t[name]}) == 3


def test_a_shared_module_goes_by_the_name_its_caller_has_for_it() -> None:
    model = shared_model()
    with clew.trace(model) as t:
        model(ONE)
    assert t["tail.0"][2].module == "tail.0"
    assert t["tail.0"][2].parent_id == t["tail"].one.id


def test_a_shared_module_is_matched_once_by_a_pattern() -> None:
    model = shared_model()
    with clew.trace(model) as t:
        model(ONE)
    assert [event.call for event in t["**"] if event.name == "Linear"] == [0, 1, 2]


def test_recursion() -> None:
    def forward(self: nn.Module, x: Tensor, depth: int) -> Tensor:
        return self(self.fc(x), depth - 1) if depth else x

    model = Call(forward, fc=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE, 2)
    assert calls(t) == ["#0", "  fc#0", "  #1", "    fc#1", "    #2"]
    assert [event.arguments["1"] for event in t[""]] == [2, 1, 0]


def test_a_module_that_contains_itself() -> None:
    model = Call(lambda self, x: self.fc(x), fc=nn.Linear(2, 2))
    object.__setattr__(model, "_modules", OrderedDict(model._modules, me=model))
    with clew.trace(model) as t:
        model(ONE)
    assert calls(t) == ["#0", "  fc#0"]


# Calls of `forward` that go past the hooks


def test_forward_called_directly_is_reconstructed() -> None:
    model = Call(lambda self, x: self.fc.forward(self.fc(x)) * 2, fc=nn.Linear(2, 2))
    with clew.trace(model, values="full") as t:
        y = model(ONE)
    assert calls(t) == ["#0", "  fc#0", "  fc#1"]
    hooked, direct = t["fc"]
    assert (hooked.reconstructed, direct.reconstructed) == (False, True)
    assert direct.inputs["input"].number == hooked.outputs[""].number
    assert (direct.outputs[""].array() * 2).tolist() == y.tolist()
    assert direct.duration > 0
    assert direct.source.line == hooked.source.line
    assert direct.error is None


def test_its_ops_belong_to_it() -> None:
    model = Call(lambda self, x: self.fc.forward(x) * 2, fc=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    assert [(op.name, op.module) for op in t.ops] == [
        ("aten.t.default", "fc"),
        ("aten.addmm.default", "fc"),
        ("aten.mul.Tensor", ""),
    ]


def test_direct_calls_in_a_loop_are_told_apart() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.fc.forward(x)
        return x

    model = Call(forward, fc=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
        model(ONE)
    assert [event.call for event in t["fc"]] == [0, 1, 2, 3, 4, 5]
    assert [len([op for op in t.ops if call_around(op) == event]) for event in t["fc"]] == [2] * 6


def test_direct_calls_nest_with_hooked_ones() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    middle = Call(lambda self, x: self.inner.forward(x), inner=inner)
    model = Call(lambda self, x: self.middle.forward(x), middle=middle)
    with clew.trace(model) as t:
        model.forward(ONE)
    assert calls(t) == ["#0", "  middle#0", "    middle.inner#0", "      middle.inner.0#0",
                        "      middle.inner.1#0"]  # fmt: skip
    assert [event.reconstructed for event in t.modules] == [True, True, True, False, False]


def test_a_direct_call_with_two_results() -> None:
    split = Call(lambda self, x: (x + 1, x * 3))
    model = Call(lambda self, x: sum(self.split.forward(x)), split=split)
    with clew.trace(model, values="full") as t:
        model(ONE)
    assert [v.array()[0, 0] for v in t["split"].one.outputs.values()] == [2.0, 3.0]


def test_a_direct_call_that_fails() -> None:
    model = Call(lambda self, x: self.fc.forward(x), fc=nn.Linear(3, 2))
    with pytest.raises(RuntimeError), clew.trace(model) as t:
        model(ONE)
    assert calls(t) == ["#0", "  fc#0"]
    assert t.crash.event.module == "fc"
    assert t.crash.event.name == "aten.addmm.default"


def test_calling_the_forward_of_the_parent_class_is_the_same_call() -> None:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Derived(Base):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    model = Derived()
    with clew.trace(model) as t:
        model(ONE)
        model.forward(ONE)
    assert calls(t) == ["#0", "#1"]
    assert [op.module for op in t.ops] == ["", "", "", ""]


def test_a_function_called_forward_is_not_a_call() -> None:
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        return model(x + 1)

    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        forward(model, ONE)
    assert calls(t) == ["#0"]
    assert not t[""].one.reconstructed


def test_a_forward_of_something_else_is_not_a_call() -> None:
    class Pipeline:
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x) + 1

    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        Pipeline(model).forward(ONE)
    assert calls(t) == ["#0"]


def test_direct_calls_at_the_level_of_modules() -> None:
    """Seen as far as a module is called inside them."""
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = Call(lambda self, x: self.block.forward(x), block=block)
    with clew.trace(model, level="modules") as t:
        model(ONE)
    assert calls(t) == ["#0", "  block#0", "    block.0#0", "    block.1#0"]


# Modules that come and go


def test_a_module_made_during_the_run_gets_its_place() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Sequential(nn.Linear(2, 2))
        return self.late(x)

    model = Call(forward)
    with clew.trace(model) as t:
        model(ONE)
        model(ONE)
    assert calls(t) == ["#0", "  late#0", "    late.0#0", "#1", "  late#1", "    late.0#1"]
    assert t["op:aten.addmm.default"][0].inputs["0"].name == "late.0.bias"


def test_a_throw_away_module_is_named_by_its_class() -> None:
    model = Call(lambda self, x: nn.ReLU()(nn.Softmax(-1)(x)))
    with clew.trace(model) as t:
        for _ in range(2):
            model(ONE)
    assert [event.module for event in t.modules] == ["", "Softmax", "ReLU", "", "Softmax", "ReLU"]
    assert t["Softmax#1"].one.parent_id == t["#1"].one.id


def test_many_modules_that_die_do_not_get_mixed_up() -> None:
    """Addresses of dead modules are used again by Python."""
    with clew.trace() as t:
        for number in range(50):
            nn.Linear(2, number + 1)(ONE)
            nn.Identity()(ONE)
    linear = [event for event in t.modules if event.name == "Linear"]
    assert [event.outputs[""].shape[1] for event in linear] == list(range(1, 51))
    assert [event.address for event in linear] == [f"Linear#{n}" for n in range(50)]


def test_a_model_built_in_the_block_has_its_parameters_named() -> None:
    with clew.trace() as t:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model(torch.ones(3, 2)).sum().backward()
    names = {value.name for op in t.ops if op.module for value in op.inputs.values()} - {None}
    assert {"Sequential.0.weight", "Sequential.0.bias", "Sequential.1.running_var"} <= names


def test_replacing_a_child_during_the_run() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with clew.trace(model) as t:
        model(ONE)
        model[1] = nn.Tanh()
        model(ONE)
    assert [(event.module, event.name) for event in t.modules] == [
        ("", "Sequential"), ("0", "Linear"), ("1", "ReLU"),
        ("", "Sequential"), ("0", "Linear"), ("1", "Tanh"),
    ]  # fmt: skip
    assert [event.name for event in t["1"]] == ["ReLU", "Tanh"]


# Several models


def test_models_by_name() -> None:
    models_by_name = {
        "teacher": nn.Sequential(nn.Linear(2, 2)),
        "student": nn.Sequential(nn.Linear(2, 2)),
    }
    with clew.trace(models_by_name) as t:
        for model in models_by_name.values():
            model(ONE)
    assert calls(t) == ["teacher#0", "  teacher.0#0", "student#0", "  student.0#0"]
    assert len(t["*.0"]) == 2
    assert t["op:aten.addmm.default#1"].one.inputs["0"].name == "student.0.bias"


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("level", ["ops", "modules"])
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, ONE)])
def test_what_a_scripted_module_hides_is_said(make: Any, level: str) -> None:
    scripted, idle = (make(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) for _ in range(2))
    model = nn.Sequential(nn.Linear(2, 2), scripted)
    model.idle = idle
    model.forward = lambda x: model[1](model[0](x))  # type: ignore[method-assign]
    with clew.trace(model, level=level) as t:
        model(ONE)
        model(ONE)
    assert [call.module for call in t.modules] == ["", "0", "1"] * 2
    (gap,) = t.coverage
    assert (gap.what, gap.where) == ("a scripted module", "1")
    assert gap.remedy == "trace the module it was made from"


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, ONE)])
def test_a_scripted_model_and_one_that_holds_it(make: Any) -> None:
    part = make(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    whole = nn.Sequential(part)
    expected = part(ONE)
    for model, weight in ((part, "1.weight"), (whole, "0.1.weight")):
        with clew.trace(model) as t:
            assert torch.equal(model(ONE), expected)
        assert len(t[""]) == 1
        assert weight in {value.name for op in t.ops for value in op.inputs.values()}
        assert faults(t) == []


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
class Looking(nn.Module):
    """Asks for sizes, detaches and writes: what torch.jit.trace treats in ways of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.fc(x).reshape(x.shape[0], -1) * 2
        kept = y.detach()[0].clone()
        kept[0] = 3
        return y.sum() * int(x.shape[1]), kept


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("values", ["meta", "stats", "full"])
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_torch_jit_trace_makes_the_same_graph(level: str, values: str, tmp_path: Path) -> None:
    model, x = Looking(), torch.ones(2, 4)

    def made() -> tuple[list[str], list[Any]]:
        traced = torch.jit.trace(model, x)
        doubled = torch.jit.trace(lambda x: x.sin() * 2, x)
        graphs = [str(traced.graph), str(traced.fc.graph), str(doubled.graph)]
        unmangled = [re.sub(r"___torch_mangle_\d+\.", "", graph) for graph in graphs]
        return unmangled, [*traced(x), doubled(x)]

    expected, results = made()
    with clew.trace(model, level=level, values=values) as t:
        graphs, found = made()
    assert graphs == expected
    assert all(map(torch.equal, found, results))
    assert faults(t) == []
    for event in t["fc"]:
        assert list(event.inputs["0"].shape) == [2, 4]
    t.save(tmp_path / "run.clew")
    assert len(clew.load(tmp_path / "run.clew").events) == len(t.events)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_lazy_model_has_its_parameters_once_it_ran(streamed: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    with clew.trace(model, out=tmp_path / "run.clew" if streamed else None) as t:
        str(t)
        t.flush()
        model(torch.ones(4, 2))
    assert faults(t) == []
    read = clew.load(t.path) if streamed else t
    assert read.tree().to_dict()["parameters"] == (2 * 3 + 3) + (3 + 3)


def test_names_with_signs_of_the_address_language_in_them() -> None:
    names = ("op", "paper:cites", "w*", "[z]", "q#1", "a b", "x@1")
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    for event in t.modules:
        assert t[event.address].one == event
    assert t["['w*']"].one.module == "w*"
    with pytest.raises(clew.ClewError, match=r"nearest: .*\['w\*'\]"):
        t["wx"]


def test_models_without_names_go_by_their_class() -> None:
    first, second, third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    with clew.trace() as t:
        for model in (first, second, third, first):
            model(ONE)
    assert [event.module for event in t.modules] == [
        "Linear", "Linear#2", "Sequential", "Sequential.0", "Linear",
    ]  # fmt: skip
    assert [event.call for event in t.modules] == [0, 0, 0, 0, 1]
    assert t["Linear#2"].one.module == "Linear#2"
    assert [event.call for event in t["Linear"]] == [0, 1]


def test_a_model_beside_the_named_one_is_recorded_under_its_class() -> None:
    model, other = nn.Linear(2, 2), nn.Sequential(nn.ReLU())
    with clew.trace(model) as t:
        other(model(ONE))
    assert [event.module for event in t.modules] == ["", "Sequential", "Sequential.0"]


def test_two_models_that_share_a_part() -> None:
    part = nn.Linear(2, 2)
    a, b = nn.Sequential(part), nn.Sequential(part, nn.ReLU())
    with clew.trace({"a": a, "b": b}) as t:
        a(ONE)
        b(ONE)
    assert calls(t) == ["a#0", "  a.0#0", "b#0", "  b.0#1", "  b.1#0"]
    assert [e.id for e in t["a.0"]] == [e.id for e in t["b.0"]]


# What goes in and out


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclass
class Result:
    logits: Tensor
    more: Any = None
    label: str = "x"


@dataclass(frozen=True, slots=True)
class SlottedResult:
    logits: Tensor


def one_output(value: Any) -> clew.Trace:
    model = Call(lambda self, x: value)
    with clew.trace(model) as t:
        assert model(ONE) is value
    return t[""].one.outputs


A, B = torch.zeros(1), torch.zeros(2)


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (A, {"": (1,)}),
        ((A, B), {"0": (1,), "1": (2,)}),
        ([A, [B, None, "text"]], {"0": (1,), "1.0": (2,)}),
        ({"a": A, "b": {"c": B}}, {"a": (1,), "b.c": (2,)}),
        (OrderedDict(a=A), {"a": (1,)}),
        (UserDict(a=A), {"a": (1,)}),
        (Pair(A, (B, 3)), {"left": (1,), "right.0": (2,)}),
        (Result(A, {"h": [B]}), {"logits": (1,), "more.h.0": (2,)}),
        (SlottedResult(A), {"logits": (1,)}),
        (BaseModelOutput(last_hidden_state=A, hidden_states=(A, B)),
         {"last_hidden_state": (1,), "hidden_states.0": (1,), "hidden_states.1": (2,)}),
        (None, {}),
        ((), {}),
        ("text", {}),
        ((A, A), {"0": (1,), "1": (1,)}),
        (torch.return_types.max((A, B)), {"0": (1,), "1": (2,)}),
        (nn.utils.rnn.pack_sequence([B]), {"data": (2,), "batch_sizes": (2,)}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_nested_outputs(value: Any, paths: dict[str, tuple[int, ...]]) -> None:
    assert {path: v.shape for path, v in one_output(value).items()} == paths


@pytest.mark.parametrize(
    ("address", "shapes"),
    [
        (":out.*", [(1,), (2,), (3,)]),
        (":out.states.*", [(1,), (2,)]),
        (":out.stat?s.[1-9]", [(2,)]),
        (":out.log*", [(3,)]),
        (":in.m*", [(4,)]),
        ("fc:out.0", [(1, 2)]),
    ],
)
def test_patterns_name_paths_inside_inputs_and_results(
    address: str, shapes: list[tuple[int, ...]]
) -> None:
    def forward(self: Any, x: Tensor, mask: Tensor) -> Any:
        self.fc(x)
        return {"states": (torch.ones(1), torch.ones(2)), "logits": torch.ones(3)}

    model = Call(forward, fc=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE, mask=torch.ones(4))
    assert [value.shape for value in t[address].values] == shapes


def test_positional_and_keyword_inputs() -> None:
    model = Call(lambda self, x, *rest, mask=None, **more: x)
    with clew.trace(model) as t:
        model(A, 3, (B, "s"), mask=B, options={"deep": [A]}, flag=True, dtype=torch.float16)
    event = t[""].one
    assert {path: value.shape for path, value in event.inputs.items()} == {
        "0": (1,), "2.0": (2,), "mask": (2,), "options.deep.0": (1,),
    }  # fmt: skip
    assert event.arguments["1"] == 3
    assert event.arguments["2.1"] == "s"
    assert event.arguments["flag"] is True
    assert event.arguments["dtype"] == "torch.float16"


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_keyword_inputs_survive_other_peoples_hooks(level: str) -> None:
    model = nn.Sequential(Call(lambda self, x, scale: x * scale))
    model[0].register_forward_pre_hook(
        lambda m, args, kwargs: (args, kwargs | {"scale": kwargs["scale"] + 1}), with_kwargs=True
    )
    with clew.trace(model, level=level) as t:
        y = model[0](ONE, scale=B[:1])
    assert y.tolist() == [[1.0, 1.0]]
    assert set(t["0"].one.inputs) == {"0", "scale"}


def test_a_result_the_program_changes_later_keeps_its_value() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad(), clew.trace(model, level="modules", values="full") as t:
        y = model(ONE)
        expected = y.tolist()
        y.zero_()
    assert t[""].output.array().tolist() == expected


def test_a_generator_argument_is_not_consumed() -> None:
    model = Call(lambda self, xs: sum(xs))
    with clew.trace(model) as t:
        assert model(x for x in (A, B[:1])).shape == (1,)
    assert t[""].one.arguments["0"] == "generator"


def test_a_property_of_an_argument_is_not_called() -> None:
    class Trap:
        @property
        def shape(self) -> Any:
            raise AssertionError("looked at")

        def __len__(self) -> int:
            raise AssertionError("looked at")

        __iter__ = __getitem__ = __bool__ = __eq__ = __repr__ = __str__ = __len__

    model = Call(lambda self, x, trap: x)
    with clew.trace(model) as t:
        model(A, Trap())
    assert t[""].one.arguments["1"] == "Trap"
    assert faults(t) == []


def test_an_endlessly_nested_argument() -> None:
    endless: list[Any] = [A]
    endless.append(endless)
    model = Call(lambda self, x: x[0])
    with clew.trace(model) as t:
        model(endless)
    assert t[""].one.inputs["0.0"].shape == (1,)
    assert faults(t) == []


# Wrappers


def test_the_prefix_of_a_compiled_module_is_stripped() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    with clew.trace(compiled) as t:
        compiled(ONE)
    assert not any("_orig_mod" in event.address for event in t.events)
    assert t[""].one.name == "OptimizedModule"
    assert t["op:aten.addmm.default"].one.inputs["0"].name == "0.bias"


def test_a_compiled_module_opened_up_shows_its_parts() -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")
    with clew.trace(compiled, compiled="eager") as t:
        compiled(ONE)
    assert [event.module for event in t.modules] == ["", "", "0", "1"]
    assert t[""].one.name == "Sequential"


def test_the_prefix_of_a_checkpoint_wrapper_is_stripped() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.ReLU())
    with clew.trace(model) as t:
        model(ONE).sum().backward()
    assert {event.module for event in t.modules} == {"", "0", "1"}
    assert t["0"].one.name == "Linear"
    assert t["op:aten.addmm.default#0"].one.inputs["0"].name == "0.bias"


def test_a_module_that_is_called_module_keeps_its_name() -> None:
    model = Call(lambda self, x: self.module(x), module=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    assert calls(t) == ["#0", "  module#0"]


DATA_PARALLEL = """
import os, torch, torch.distributed as dist
import clew
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
with clew.trace(model) as t:
    model(torch.ones(1, 2)).sum().backward()
print(sorted({e.module for e in t.modules}), t[""].one.name, t.ranks)
print(t["op:aten.addmm.default#0"].one.inputs["0"].name)
print([str(g) for g in t.coverage])
dist.destroy_process_group()
"""


def test_the_prefix_of_data_parallel_is_stripped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DATA_PARALLEL],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['', '0', '1'] Sequential [0]", "0.bias", "[]"]


# Calls that end badly


def test_an_interrupt_leaves_later_events_right() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    block = nn.Sequential(nn.Identity(), Call(forward))
    model = nn.Sequential(nn.Linear(2, 2), block)
    with clew.trace(model) as t:
        with pytest.raises(KeyboardInterrupt):
            model(ONE)
        outside = ONE + 1
        model[0](outside)
    assert calls(t) == ["#0", "  0#0", "  1#0", "    1.0#0", "    1.1#0", "0#1"]
    assert t["0#1"].one.parent is None
    (plus,) = (op for op in t.ops if op.name == "aten.add.Tensor")
    assert (plus.module, plus.parent) == (None, None)
    assert all(event.duration is None for event in (t["#0"].one, t["1"].one, t["1.1"].one))


def test_an_interrupt_in_the_middle_of_a_module_that_goes_on() -> None:
    def interrupting(self: nn.Module, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        with contextlib.suppress(KeyboardInterrupt):
            self.inner(x)
        return self.fc(x + 1)

    model = Call(forward, inner=nn.Sequential(Call(interrupting)), fc=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    assert calls(t) == ["#0", "  inner#0", "    inner.0#0", "  fc#0"]
    assert [op.module for op in t.ops] == ["", "fc", "fc"]


def test_an_exception_the_model_handles_leaves_later_events_right() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            self.wrong(x)
        return self.right(x) + 1

    model = Call(forward, wrong=nn.Sequential(nn.Linear(3, 3)), right=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    assert calls(t) == ["#0", "  wrong#0", "    wrong.0#0", "  right#0"]
    assert t["wrong.0"].one.error.startswith("RuntimeError: mat1 and mat2")
    assert t["wrong"].one.error == t["wrong.0"].one.error
    assert t["right"].one.error is None
    assert t[""].one.error is None
    assert t.ops[-1].module == ""
    assert t.crash is None


def test_generators_that_call_modules_in_turns() -> None:
    """Two half-finished computations, each with its own place."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)

    def rounds(layer: nn.Module) -> Any:
        for _ in range(2):
            yield layer(ONE)

    with clew.trace({"first": first, "second": second}) as t:
        for a, b in zip(rounds(first), rounds(second), strict=True):
            a + b
    assert calls(t) == ["first#0", "second#0", "first#1", "second#1"]
    assert [op.module for op in t.ops if op.name == "aten.add.Tensor"] == [None, None]


def test_a_call_that_is_still_open_can_be_read() -> None:
    seen = []

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        y = self.fc(x)
        seen.append([(event.address, event.duration is None) for event in t.modules])
        return y

    model = Call(forward, fc=nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
    assert seen == [[("#0", True), ("fc#0", False)]]
    assert t[""].one.duration > 0


# Checkpoints


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_calls_are_not_counted_again(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    x = torch.ones(1, 2, requires_grad=True)
    with clew.trace(model) as t:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        model(x)
    assert [event.phase for event in t["0"]] == ["forward", "forward"]
    assert [event.call for event in t["0"]] == [0, 1]
    recomputed = [event for event in t.modules if event.phase == "recompute"]
    assert [event.module for event in recomputed][:4] == ["", "0", "1", "2"]
    assert all(event.error is None for event in t.events)
    assert t.crash is None
    again = [op for op in t.ops if op.phase == "recompute"]
    assert {"aten.addmm.default", "aten.relu.default"} <= {op.name for op in again}
    assert {op.module for op in again if op.name == "aten.addmm.default"} <= {"0", "2"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_after_a_recomputation_events_are_in_their_place(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with clew.trace(model) as t:
        checkpoint(
            model, torch.ones(1, 2, requires_grad=True), use_reentrant=reentrant
        ).sum().backward()
        outside = ONE + 1
        model(outside)
    last = t["#1"].one
    assert last.parent is None
    (plus,) = (op for op in t.ops if op.name == "aten.add.Tensor" and op.phase == "forward")
    assert (plus.module, plus.parent) == (None, None)
    assert [event.parent_id for event in t["*#1"]] == [last.id] * 3


# Real models


@pytest.mark.parametrize("name", sorted(models.ALL))
def test_every_call_of_a_real_model_is_there(name: str) -> None:
    model, inputs = models.build(name)
    model.eval()
    expected = []
    handles = [
        module.register_forward_pre_hook(
            lambda m, args, kwargs, path=path: expected.append((path, type(m).__name__)),
            with_kwargs=True,
        )
        for path, module in model.named_modules(remove_duplicate=True)
    ]
    model(**inputs)
    for handle in handles:
        handle.remove()
    with clew.trace(model) as t:
        out = model(**inputs)
    paths = {path for path, _ in model.named_modules(remove_duplicate=False)}
    named = [e for e in t.modules if e.module in paths and not e.reconstructed]
    assert [(event.module, event.name) for event in named] == expected
    root = t["#0"].one
    assert {path: value.shape for path, value in root.outputs.items()} == {
        path: tuple(tensor.shape) for path, tensor in models.leaves(out).items()
    }
    assert set(root.inputs) == set(models.leaves(inputs))
    assert faults(t) == []


COUNTED_CALLS = """
import gc, sys, torch, clew
from torch import nn

def calls(model):
    count = 0

    def called(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # a collection calls what waits for objects to go
    sys.setprofile(called)
    try:
        with clew.trace(model):
            torch.empty(0)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count

small, large = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(*map(nn.Linear, *[[2] * 99] * 2))
calls(small)
assert "torch._dynamo" not in sys.modules  # which would want to know the paths of modules
assert calls(large) == calls(small)
"""


def test_a_block_that_runs_no_module_costs_the_same_for_a_large_model() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", COUNTED_CALLS], check=True)


def test_threads_that_ask_for_the_first_names_at_once_find_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register = ModuleTable.register

    def slowly(table: ModuleTable, module: nn.Module, path: str) -> None:
        if module is model:
            time.sleep(0.1)
        register(table, module, path)

    monkeypatch.setattr(ModuleTable, "register", slowly)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    table, ready, found = ModuleTable(), threading.Barrier(4), list[str]()
    table.give(model, "net")

    def ask(layer: nn.Module) -> None:
        ready.wait()
        found.append(table.name_of(layer, None, 0).path)

    threads = [threading.Thread(target=ask, args=(layer,)) for layer in model]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["net.0", "net.1", "net.2", "net.3"]


def test_a_parameter_that_is_used_before_any_module_has_its_name() -> None:
    model = nn.Linear(2, 2)
    with clew.trace({"net": model}) as t:
        model.weight * 2
    assert [value.name for value in t.ops[0].inputs.values()][:1] == ["net.weight"]


PATCHED_FIRST = """
import torch
from torch import nn

original = nn.Module._call_impl

def patched(self, *args, **kwargs):
    return original(self, *args, **kwargs)

nn.Module._call_impl = patched
import clew

model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
with clew.trace(model) as t:
    model(torch.ones(1, 2))
    nn.Module._call_impl = original
    model(torch.ones(1, 2))
assert [str(call.module) for call in t.modules] == ["", "0", "0.0", "1"] * 2, t
assert all(call.outputs and not call.reconstructed for call in t.modules), t
"""


def test_a_library_that_replaced_how_torch_calls_modules_before_clew_was_loaded() -> None:
    """It puts the function back inside the block, as a profiler does that ends there."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", PATCHED_FIRST], check=True)


def test_calls_that_a_library_makes_past_the_usual_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python runs the function itself here, without its pointer; or it does not run at all."""
    original = nn.Module._call_impl

    def patched(self: nn.Module, x: Tensor) -> Any:
        return original(self, x)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self._call_impl = self.forward

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.fc(x)
            return result

    model = nn.Sequential(Own(), nn.ReLU())
    with clew.trace(model) as t:
        model(ONE)
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "_call_impl", patched)
            model(ONE)
        model(ONE)
    assert [str(call.module) for call in t.modules] == ["", "0", "0.fc", "1"] * 3
    assert [str(op.module) for op in t.ops] == ["0.fc", "0.fc", "1"] * 3
    assert faults(t) == []


class Written:
    """A key that tells when its text is made."""

    def __init__(self) -> None:
        self.times = 0

    def __repr__(self) -> str:
        self.times += 1
        return "written"


def test_no_code_of_the_program_makes_the_names_of_keys() -> None:
    """A module would read its parameters, which fx notes; a parameter would print its numbers."""
    layer, key = nn.Linear(2, 2), Written()
    optimizer = torch.optim.Adam(layer.parameters())
    layer(ONE).sum().backward()
    optimizer.step()
    given = {key: ONE, ("a", 1): ONE, torch.float32: ONE, layer: ONE}
    model = Call(lambda self, x, state, optimizer: x + 1)
    with clew.trace(model, capture=[":in.state.Written_0"]) as t:
        model(ONE, state=given, optimizer=optimizer)
    assert key.times == 0
    names = list(t[""][0].inputs)
    assert names[:5] == [
        "0", "state.Written_0", "state.('a', 1)", "state.torch.float32", "state.Linear_3",
    ]  # fmt: skip
    assert {name.rpartition(".")[0] for name in names[5:]} >= {"optimizer.state.Parameter_0"}
    assert "tensor(" not in " ".join(names)
    assert t[":in.state.Written_0"].values[0].array().tolist() == [[1, 1]]


def test_a_graph_that_fx_makes_inside_the_block_is_that_of_an_untraced_run() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return self.fc(x)

    model = nn.Sequential(Inner(), nn.ReLU())
    expected = str(torch.fx.symbolic_trace(model).graph)
    with clew.trace(model) as t:
        assert str(torch.fx.symbolic_trace(model).graph) == expected
    assert faults(t) == []
