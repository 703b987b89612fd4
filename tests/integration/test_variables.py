"""Local variables by address, in real modules and functions."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import functools
import gc
import importlib
import sys
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from tests.outcomes import faults

HERE = "test_variables.py"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = k = self.proj(x)
        attn = q @ k.transpose(-2, -1)
        attn = attn / self.scale
        attn[:, 0] = 0
        attn.mul_(3)
        cache = {"k": [k, q], "n": 1}
        cache["n"] = 2
        return attn @ x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def record(capture: list[str], **options: Any) -> clew.Trace:
    torch.manual_seed(0)
    net = Net()
    with clew.trace(net, capture=capture, **options) as t:
        net(torch.randn(3, 4))
    assert faults(t) == []
    return t


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_every_binding_and_write_of_a_local(level: str) -> None:
    t = record(["blocks.0.forward.attn"], level=level)
    events = list(t["blocks.0.forward.attn"])
    assert [e.source.text for e in events if e.source] == [
        "attn = q @ k.transpose(-2, -1)",
        "attn = attn / self.scale",
        "attn[:, 0] = 0",
        "attn.mul_(3)",
    ]
    product, scaled, zeroed, tripled = (e.outputs[""].array() for e in events)
    assert np.array_equal(scaled, product / 2)
    assert np.array_equal(zeroed[:, 0], [0, 0, 0])
    assert np.array_equal(tripled, zeroed * 3)
    first = events[0]
    assert (first.kind, first.name, first.module) == ("variable", "attn", "blocks.0")
    assert first.address == "blocks.0.forward.attn#0"
    assert list(t.variables) == events


def test_columns_are_those_of_the_assignment() -> None:
    event = record(["blocks.0.forward.attn"])["blocks.0.forward.attn#0"].one
    assert event.source is not None
    line = Path(__file__).read_text().splitlines()[event.source.line - 1]
    if sys.version_info >= (3, 11):
        assert line[event.source.col : event.source.end_col].startswith("attn")


def test_wildcards_name_the_same_local_of_many_modules() -> None:
    t = record(["blocks.*.forward.attn"])
    assert [len(t[f"blocks.{n}.forward.attn"]) for n in (0, 1)] == [4, 4]
    assert len(t["blocks.*.forward.attn"]) == 8
    assert len(t["**.attn"]) == 8


@pytest.mark.parametrize("address", ["**.forward.attn", "*.*.forward.attn", "**", "*.result"])
def test_a_wildcard_for_methods_leaves_calls_of_modules_as_they_are(address: str) -> None:
    # `*` also stands for torch's own methods, by whose code calls are recognised.
    t = record([address])
    assert [event.address for event in t.modules] == [event.address for event in record([]).modules]
    assert not any(event.reconstructed or event.duration is None for event in t.modules)


def test_parameters_return_values_and_attributes() -> None:
    t = record(["blocks.0.forward.x", "blocks.0.forward.mask", "blocks.0.forward.return",
                "blocks.1.forward.self.scale", "forward.x"])  # fmt: skip
    assert t["blocks.0.forward.x"].value.shape == (3, 4)
    assert t["blocks.0.forward.mask"].one.outputs[""].item() is None
    assert t["blocks.1.forward.self.scale"].one.outputs[""].item() == 2.0
    output = t["blocks.0#0"].output
    assert t["blocks.0.forward.return"].one.outputs[""].digest == t["forward.x"].values[1].digest
    assert output.look == "f32[3,4]"
    assert [v.shape for v in t["forward.x"].values] == [(3, 4)] * 3


def test_a_method_stands_for_what_it_returns() -> None:
    t = record(["blocks.0.forward"])
    assert t["blocks.0.forward"].one.name == "return"


def test_paths_into_containers() -> None:
    wanted = ["blocks.0.forward.cache.k.0", "blocks.0.forward.cache['k'][1]",
              "blocks.0.forward.cache.n", "blocks.1.forward.cache.**"]  # fmt: skip
    t = record(wanted)
    assert t["blocks.0.forward.cache.k.0"].value.shape == (3, 4)
    assert t["blocks.0.forward.cache['k'][1]"].value.shape == (3, 4)
    assert [v.item() for v in t["blocks.0.forward.cache.n"].values] == [1, 2]
    names = {e.name for e in t["blocks.1.forward.cache.**"]}
    assert names == {"cache.k.0", "cache.k.1", "cache.n"}


def test_a_container_as_a_whole_has_all_its_leaves() -> None:
    t = record(["blocks.0.forward.cache"])
    first, second = t["blocks.0.forward.cache"]
    assert {p: v.look for p, v in first.outputs.items()} == {
        "k.0": "f32[3,4]", "k.1": "f32[3,4]", "n": "int",
    }  # fmt: skip
    assert second.outputs["n"].item() == 2


def test_one_address_being_a_prefix_of_another_loses_neither() -> None:
    t = record(["blocks.0", "blocks.0.forward", "blocks.0.forward.cache",
                "blocks.0.forward.cache.k.*", "blocks.0.proj"])  # fmt: skip
    assert t["blocks.0#0"].output.array().shape == (3, 4)
    assert len(t["blocks.0.forward.return"]) == 1
    assert len(t["blocks.0.forward.cache"]) == 2
    assert len(t["blocks.0.forward.cache.k.*"]) == 2
    assert t["blocks.0.proj"].value.shape == (3, 4)


# Free functions, other kinds of functions


def scale(value: Tensor, by: float = 2.0) -> Tensor:
    for factor in (by, by + 1):
        result = value * factor
    result += 1
    return result


def numbers() -> Iterator[int]:
    total = 0
    for item in (1, 2, 3):
        total = total + item
        yield total


async def later(value: int) -> int:
    await asyncio.sleep(0)
    doubled = value * 2
    await asyncio.sleep(0)
    doubled = doubled + 1
    return doubled


class Tools:
    @staticmethod
    def fixed(a: int) -> int:
        out = a + 1
        return out

    @classmethod
    def made(cls, a: int) -> int:
        out = a + 2
        return out

    def __hidden(this, a: int) -> int:
        out = a + 3
        return out

    def call(this, a: int) -> int:
        return this.__hidden(a)


@torch.no_grad()
def undecided(x: Tensor) -> Tensor:
    y = x + 1
    return y


def opaque(function: Any) -> Any:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@opaque
@functools.cache
def cached(n: int) -> int:
    square = n * n
    return square


def counter() -> Any:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    return add


def factorial(n: int) -> int:
    if n <= 1:
        return 1
    result = n * factorial(n - 1)
    return result


def items(t: clew.Trace, address: str) -> list[Any]:
    return [value.item() for value in t[address].values]


def test_locals_of_free_functions() -> None:
    kept = scale
    with clew.trace(capture=[f"{HERE}:scale.result", f"{__name__}:scale.factor"]) as t:
        kept(torch.ones(2))
    assert [v.array().tolist() for v in t[f"{HERE}:scale.result"].values] == [
        [2, 2],
        [3, 3],
        [4, 4],
    ]
    assert items(t, f"{__name__}:scale.factor") == [2.0, 3.0]
    assert t[f"{HERE}:scale.result"][0].module is None
    assert "__clew" not in " ".join(scale.__code__.co_names)


def test_generators_and_coroutines() -> None:
    async def both() -> list[int]:
        return await asyncio.gather(later(1), later(10))

    with clew.trace(capture=[f"{HERE}:numbers.total", f"{HERE}:later.doubled"]) as t:
        assert list(numbers()) == [1, 3, 6]
        assert asyncio.run(both()) == [3, 21]
    assert items(t, f"{HERE}:numbers.total") == [0, 1, 3, 6]
    assert items(t, f"{HERE}:later.doubled") == [2, 20, 3, 21]


def test_methods_of_any_kind() -> None:
    wanted = [f"{HERE}:Tools.fixed.out", f"{HERE}:Tools.made.out", f"{HERE}:Tools.__hidden.out",
              f"{HERE}:undecided.y", f"{HERE}:cached.square"]  # fmt: skip
    cached.__closure__[0].cell_contents.cache_clear()  # type: ignore[index]
    with clew.trace(capture=wanted) as t:
        Tools.fixed(1), Tools.made(1), Tools().call(1)
        undecided(torch.ones(1))
        assert cached(3) == 9
    assert faults(t) == []
    assert [items(t, a)[0] for a in wanted[:3]] == [2, 3, 4]
    assert t[wanted[3]].value.tolist() == [2]
    assert items(t, wanted[4]) == [9]


FROZEN = """
import functools

def plain(x):
    out = x + 1
    return out

def wrapping(function):
    @functools.wraps(function)
    def call(x):
        return function(x)
    return call

@functools.cache
@wrapping
def wrapped(x):
    out = x + 2
    return out

class Tools:
    @staticmethod
    def fixed(x):
        out = x + 3
        return out

    @property
    def size(self):
        out = 4
        return out
"""


def test_functions_made_before_the_heap_was_frozen_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frozen_tools.py").write_text(FROZEN)
    monkeypatch.syspath_prepend(tmp_path)
    tools = importlib.import_module("frozen_tools")
    names = ["plain", "wrapped", "Tools.fixed", "Tools.size"]
    gc.freeze()
    try:
        with clew.trace(capture=[f"frozen_tools:{name}.out" for name in names]) as t:
            tools.plain(0), tools.wrapped(0), tools.Tools.fixed(0), tools.Tools().size
    finally:
        gc.unfreeze()
    assert [items(t, f"frozen_tools:{name}.out") for name in names] == [[1], [2], [3], [4]]


def test_closures_recursion_and_threads() -> None:
    add = counter()
    wanted = [f"{HERE}:counter.add.count", f"{HERE}:factorial.result"]
    with clew.trace(capture=wanted) as t:
        add(), add()
        assert factorial(4) == 24
        thread = threading.Thread(target=factorial, args=(2,), name="other")
        thread.start()
        thread.join()
    assert items(t, wanted[0]) == [1, 2]
    assert items(t, wanted[1]) == [2, 6, 24, 2]
    assert t[wanted[1]][-1].thread == "other"


class OddSelf(nn.Module):
    def forward(s, x: Tensor) -> Tensor:
        y = x + 1
        return y


class NoSelf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        del self
        y = x + 1
        return y


def test_any_name_for_self_and_none_at_all() -> None:
    net = nn.Sequential(OddSelf(), NoSelf())
    with clew.trace(net, capture=["0.forward.y"]) as t:
        assert net(torch.zeros(1)).item() == 2
    assert t["0.forward.y"].value.tolist() == [1]


def test_a_method_replaced_on_the_instance() -> None:
    net = nn.Sequential(nn.Identity())

    def forward(x: Tensor) -> Tensor:
        replaced = x * 2
        return replaced

    net[0].forward = forward  # type: ignore[method-assign]
    with clew.trace(net, capture=[f"{HERE}:test_a_method_replaced_on_the_instance.forward.replaced",
                                  "0.forward.x"]) as t:  # fmt: skip
        net(torch.ones(1))
    assert t.variables[-1].outputs[""].array().tolist() == [2]


@dataclasses.dataclass
class State:
    h: Tensor
    steps: int


class Pair(typing.NamedTuple):
    first: Tensor
    second: Tensor


def structures(x: Tensor) -> Any:
    state = State(x, 1)
    pair = Pair(x, x + 1)
    state.steps = 2
    state.h = x * 2
    return state, pair


def test_fields_of_dataclasses_and_named_tuples() -> None:
    wanted = [f"{HERE}:structures.state.steps", f"{HERE}:structures.pair.second",
              f"{HERE}:structures.state.h"]  # fmt: skip
    with clew.trace(capture=wanted) as t:
        structures(torch.ones(1))
    assert items(t, wanted[0]) == [1, 2]
    assert t[wanted[1]].value.tolist() == [2]
    assert [v.array().tolist() for v in t[wanted[2]].values] == [[1], [2]]


# What other tools got wrong


class Consumer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        g = (item for item in (1.0, 2.0))
        text = "ab"
        return x + sum(g) + len(text)


def test_wildcards_consume_no_iterator_and_split_no_tensor_or_text() -> None:
    net = Consumer()
    expected = net(torch.zeros(2))
    with clew.trace(
        net, capture=["forward.g.*", "forward.text.*", "forward.x.*", "forward.*"]
    ) as t:
        assert torch.equal(net(torch.zeros(2)), expected)
    assert {e.name for e in t.variables} == {"g", "text", "x", "self"}


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.seen = [1]
        self.seen.append(2)
        y = y * 3
        raise ValueError("after the last assignment")


def test_the_last_assignment_before_an_exception_is_seen() -> None:
    net = Last()
    with (
        clew.trace(net, capture=["forward.y", "forward.self.seen"]) as t,
        pytest.raises(ValueError, match="last assignment"),
    ):
        net(torch.ones(1))
    assert [v.array().tolist() for v in t["forward.y"].values] == [[2], [6]]
    lists = [{p: v.item() for p, v in e.outputs.items()} for e in t["forward.self.seen"]]
    assert lists == [{"0": 1}, {"0": 1, "1": 2}]


class Silent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y.data.add_(1)
        y.numpy()[0] = 7
        view = y[1:]
        view.mul_(0)
        y = y
        return y


def test_writes_that_no_version_counts() -> None:
    with clew.trace(net := Silent(), capture=["forward.y"]) as t:
        net(torch.ones(3))
    assert [v.array().tolist() for v in t["forward.y"].values] == [
        [1, 1, 1], [2, 2, 2], [7, 2, 2], [7, 0, 0], [7, 0, 0],
    ]  # fmt: skip


def test_values_equal_across_passes_line_up() -> None:
    with clew.trace(net := OddSelf(), capture=["forward.y"]) as t:
        for _ in range(3):
            net(torch.zeros(1))
            t.step()
    assert t.series("forward.y").steps == [0, 1, 2]
    assert t.series("forward.y").stack().tolist() == [[1], [1], [1]]


def test_outputs_that_hold_graphs() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(2, 3, 4, requires_grad=True)
    with clew.trace(attention, capture=["forward.attn_output", "forward"]) as t:
        attention(x, x, x)[0].sum().backward()
    assert faults(t) == []
    assert t["forward.attn_output"].values[0].shape == (3, 2, 4)


def test_debuggers_see_what_they_saw() -> None:
    def called(capture: list[str]) -> list[str]:
        seen: list[str] = []

        def tracer(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename == __file__:
                seen.append(f"{frame.f_code.co_name} {event}")
            return None

        net = OddSelf()
        with clew.trace(net, capture=capture):
            before = sys.gettrace()
            sys.settrace(tracer)
            net(torch.ones(1))
            assert sys.gettrace() is tracer
            sys.settrace(before)
        return seen

    assert called(["forward.y"]) == called([])


def test_functions_are_as_they_were() -> None:
    codes = [Attention.forward.__code__, scale.__code__]

    @clew.trace(capture=["Net.blocks.*.forward.*", f"{HERE}:scale.*"])
    def fails() -> None:
        Net()(torch.ones(3, 4))
        scale(torch.ones(1))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    gc.collect()
    assert [Attention.forward.__code__, scale.__code__] == codes
    assert not [name for name in globals() if "clew_" in name]


def test_nested_traces_each_have_theirs() -> None:
    with clew.trace(capture=[f"{HERE}:scale.result"]) as outer:
        with clew.trace(capture=[f"{HERE}:scale.factor"]) as inner:
            scale(torch.ones(1))
        scale(torch.ones(1))
    assert len(outer.variables) == 6
    assert {e.name for e in inner.variables} == {"factor"}


def test_models_met_only_when_they_run() -> None:
    net = Net()
    with clew.trace(capture=["Net.blocks.1.forward.attn"]) as t:
        net(torch.randn(3, 4))
    assert len(t["Net.blocks.1.forward.attn"]) == 4


def test_results_are_the_same_bit_by_bit() -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 4)
    expected = net(x)
    with clew.trace(net, capture=["**.forward.*", "**.forward"]) as t:
        got = net(x)
    assert torch.equal(got, expected)
    assert faults(t) == []


# What is said when there is nothing


def test_a_variable_that_does_not_exist_is_said_with_the_nearest() -> None:
    t = record(
        ["blocks.0.forward.atn", f"{HERE}:scale.resul", f"{HERE}:skale.result", "nofile.py:f.x"]
    )
    texts = [str(gap) for gap in t.coverage]
    assert any("blocks.0.forward.atn" in text and "blocks.0.forward.attn" in text for text in texts)
    assert any("scale.resul" in text and "result" in text for text in texts)
    assert any("skale.result" in text and "scale" in text for text in texts)
    assert any("nofile.py" in text for text in texts)


def test_a_function_that_never_ran_is_said() -> None:
    t = record([f"{HERE}:scale.result"])
    assert any("never called" in str(gap) for gap in t.coverage)


def test_a_fast_path_that_goes_past_the_function_is_said() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with torch.no_grad(), clew.trace(layer, capture=["self_attn.forward.attn_output"]) as t:
        layer(torch.ones(1, 2, 8))
    assert any("fast path" in str(gap) for gap in t.coverage)


def test_variables_on_disk(tmp_path: Path) -> None:
    record(["blocks.*.forward.attn", "blocks.0.forward.cache"], out=tmp_path / "run.clew")
    trace = clew.load(tmp_path / "run.clew")
    assert len(trace["blocks.*.forward.attn"]) == 8
    assert trace["blocks.0.forward.cache"][1].outputs["n"].item() == 2
    assert trace["blocks.0.forward.attn#3"].value.shape == (3, 3)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_variables_of_compiled_code(backend: str) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y = y + 1
            return y

    torch._dynamo.reset()
    net = nn.Sequential(Scaled(), Scaled())
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    with clew.trace(net, capture=["*.forward.y"]) as t:
        result = compiled(torch.ones(2))
    assert result.tolist() == [7, 7]
    assert [v.array().tolist() for v in t["1.forward.y"].values] == [[6, 6], [7, 7]]
    assert [e.source.text for e in t["0.forward.y"] if e.source] == ["y = x * 2", "y = y + 1"]


def test_code_compiled_before_is_said() -> None:
    torch._dynamo.reset()
    net = nn.Sequential(OddSelf(), OddSelf())
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(2))
    with clew.trace(net, capture=["*.forward.y"]) as t:
        compiled(torch.ones(2))
    assert any("compiled before the trace" in str(gap) for gap in t.coverage)


@pytest.mark.parametrize("how", ["capture", "callbacks"])
@pytest.mark.parametrize("given", ["model", "wrapper"])
def test_methods_inside_a_wrapper_are_those_of_the_model(how: str, given: str) -> None:
    net = Net()
    wrapper = nn.DataParallel(net)
    paths = ["forward", "forward.x", "blocks.0.forward.attn"]
    asked: Any = paths if how == "capture" else dict.fromkeys(paths, clew.Callbacks())
    with clew.trace(net if given == "model" else wrapper, **{how: asked}) as t:
        for _ in range(2):
            y = wrapper(torch.randn(3, 4))
            t.step()
    returned = t.series("forward.return")
    assert returned.steps == [0, 1]
    assert np.array_equal(returned.stack()[-1], y.detach())
    assert t.series("forward.x").steps == [0] * 3 + [1] * 3
    assert len(t.series("blocks.0.forward.attn").steps) == 8
    assert not t.coverage


def shifted(by: Tensor) -> Tensor:
    much = by + 5
    return much


class Helped(nn.Module):
    """Has functions that are called without it."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = shifted

    @staticmethod
    @torch.no_grad()
    def plus(q: Tensor) -> Tensor:
        more = q + 1
        return more

    @classmethod
    def twice(cls, q: Tensor) -> Tensor:
        return q * 2

    def forward(self, x: Tensor) -> Tensor:
        def inner(q: Tensor) -> Tensor:
            less = q - 1
            return less

        return self.shift(self.twice(self.plus(inner(x))))


class Helpers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Helped(), Helped()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_functions_that_do_not_get_their_module() -> None:
    paths = ["plus", "plus.more", "plus.q", "twice", "forward.inner.less", "shift.much"]
    net = Helpers()
    with clew.trace(net, capture=[f"layers.*.{path}" for path in paths]) as t:
        net(torch.zeros(1))
    assert not t.coverage
    for layer, given in ((0, 0.0), (1, 5.0)):
        found = {path: t.series(f"layers.{layer}.{path}").stack().tolist() for path in paths[1:3]}
        assert found == {"plus.more": [[given]], "plus.q": [[given - 1]]}
        for path in ("plus.return", "twice.return", "forward.inner.less", "shift.much"):
            assert len(t.series(f"layers.{layer}.{path}")) == 1
    with clew.trace(net, capture=["layers.1.plus.more"]) as t:
        net(torch.zeros(1))
        Helped.plus(torch.full((1,), 7.0))  # of no module, and the function that was named
    assert t.series("layers.1.plus.more").stack().tolist() == [[5], [8]]


@pytest.mark.parametrize("layers", [1, 2])
def test_functions_that_do_not_get_their_module_in_compiled_code(layers: int) -> None:
    torch._dynamo.reset()
    net = Helpers()
    del net.layers[layers:]
    compiled = torch.compile(net, backend="eager")
    with clew.trace(net, capture=["layers.0.plus.more"]) as t:
        compiled(torch.zeros(1))
    told = [gap.why for gap in t.coverage if gap.where == "layers.0.plus.more"]
    if layers == 1:
        assert (t.series("layers.0.plus.more").stack().tolist(), told) == ([[0]], [])
    else:
        assert len(told) == 1
        assert "does not tell whose a static method is" in told[0]


def test_models_whose_code_was_made_are_followed_by_name() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * 2

    x = torch.rand(1, 2)
    exported = torch.export.export(Scaled(), (x,)).module()
    for model in (torch.fx.symbolic_trace(Scaled()), exported):
        with clew.trace(model, capture=["forward", "forward.x", "**.forward.linear"]) as t:
            y = model(x)
        assert torch.equal(t["forward"].one.outputs[""].tensor(), y)
        # Once: that the code lets go of it afterwards is not the program's doing.
        bound = [event.outputs[""].tensor() for event in t["forward.x"]]
        assert all(torch.equal(value, x) for value in bound)
        # Not by a pattern, which the code of torch.compile would match as well.
        [gap] = [gap for gap in t.coverage if gap.what == "an address to capture"]
        assert gap.where == "**.forward.linear"


class Named(nn.Module):
    """Calls its object `s`; a function inside and a static method have no object."""

    def __init__(s) -> None:
        super().__init__()
        s.lin = nn.Linear(2, 2)
        s.seen = torch.zeros(1)

    def forward(s, x: Tensor) -> Tensor:
        s.seen = x * 2

        def inner(y: Tensor) -> Tensor:
            return y + 1

        return inner(s.lin(s.seen))


@pytest.mark.parametrize("address", ["forward.self.seen", f"{HERE}:Named.forward.self.seen"])
def test_self_is_the_object_whatever_its_method_calls_it(address: str) -> None:
    model = Named()
    with clew.trace(model, capture=[address]) as t:
        model(torch.ones(1, 2))
    assert torch.equal(t[address][-1].outputs[""].tensor(), torch.full((1, 2), 2.0))
    assert t[address][-1].name == "self.seen"
    assert t.coverage == ()


@pytest.mark.parametrize("address", ["forward.inner.self", f"{HERE}:made.self"])
def test_what_is_no_method_has_no_self(address: str) -> None:
    model = Named()
    with clew.trace(model, capture=[address]) as t:
        model(torch.ones(1, 2))
    assert [gap.where for gap in t.coverage] == [address]


def made() -> Any:
    def doubled(x: Tensor) -> Tensor:
        y = x * 2
        return y

    return doubled


def test_a_function_inside_another_goes_by_its_qualified_name_too() -> None:
    address = f"{HERE}:made.<locals>.doubled.y"
    with clew.trace(capture=[address]) as t:
        made()(torch.ones(2))
    assert [e.address for e in t[address]] == [f"{HERE}:made.doubled.y#0"]
    assert t.coverage == ()


def _counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The arguments with which a function of `gc` is called from now on."""
    calls: list[Any] = []
    original = getattr(gc, name)
    monkeypatch.setattr(gc, name, lambda *args: calls.append(args) or original(*args))
    return calls


def test_functions_of_a_file_are_looked_for_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at everything that exists takes tens of milliseconds."""
    searches = _counted(monkeypatch, "get_referrers")
    asked = [f"{HERE}:made.doubled.y", f"{HERE}:nowhere.y", "no_file.py:f.x", "no_module:f.x"]
    trace = clew.trace(capture=asked).start()
    assert len([args for args in searches if globals() in args]) == 1
    made()(torch.ones(2))
    trace.stop()
    assert len(trace[asked[0]]) == 1
    assert [gap.where for gap in trace.coverage] == asked[1:]


def test_a_function_that_does_not_exist_is_not_searched_for_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = [_counted(monkeypatch, "get_objects"), _counted(monkeypatch, "get_referrers")]
    with clew.trace(capture=["no_file.py:f.x", "no_module:f.x"]) as t:
        assert searches == [[], []]
        torch.ones(2)
    assert [gap.where for gap in t.coverage] == ["no_file.py:f.x", "no_module:f.x"]


def test_a_second_trace_searches_and_rewrites_nothing_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record() -> int:
        with clew.trace(capture=[f"{HERE}:scale.result"]) as t:
            scale(torch.ones(2))
        return len(t[f"{HERE}:scale.result"])

    first = record()
    searches = [_counted(monkeypatch, "get_objects"), _counted(monkeypatch, "get_referrers")]
    monkeypatch.setattr(ast, "parse", None)
    assert record() == first > 0
    assert searches == [[], []]


def test_a_function_that_is_defined_anew_is_found_by_the_next_trace() -> None:
    address = f"{HERE}:defined_anew.y"
    for factor in (2, 3):
        _define_anew(factor)
        with clew.trace(capture=[address], values="full") as t:
            globals()["defined_anew"](torch.ones(1))
        assert [e.outputs[""].array().item() for e in t[address]] == [factor]


def _define_anew(factor: int) -> None:
    text = f"def defined_anew(x):\n    y = x * {factor}\n    return y\n"
    exec(compile(text, __file__, "exec"), globals())
