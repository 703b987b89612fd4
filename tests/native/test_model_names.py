"""Names of a model are kept from one trace to the next, and found anew where it has changed."""

from __future__ import annotations

import gc
import importlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.observe.native_ops import Host
from clew.record import model_names
from clew.torch_compat import COMPILED_CALL, is_compiled
from tests.native.engine import faults, native_trace, needs_engine

pytestmark = needs_engine

X = torch.ones(2, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.ones(4))
        self.factor: Any = 2.0
        self.sizes: Any = [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.first(x)) * self.scale * float(self.factor)
        return out


class Head(nn.Linear):
    mark: Any = None

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(inside, outside)
        self.mark = 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.two = Block()
        self.head = Head(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def recorded(model: nn.Module, engine: str = "native", x: Tensor = X) -> clew.Trace:
    with clew.trace(model, engine=engine) as t:
        model(x)
    assert not faults(t)
    return t


def named(t: clew.Trace) -> list[str]:
    return [str(e.module) for e in t.modules]


def calls(t: clew.Trace, path: str) -> list[Any]:
    return [e for e in t.modules if e.module == path]


def _rename(model: Model) -> None:
    model.other = model.two
    del model.two
    model.last = model.head
    del model.head


def _replace(model: Model) -> None:
    model.two = Block()


def _add(model: Model) -> None:
    head = model.head
    del model.head
    model.three = Block()
    model.head = head


def _share(model: Model) -> None:
    model.two = model.one


def _tie(model: Model) -> None:
    model.two.first.weight = model.one.first.weight


def _swap_parameter(model: Model) -> None:
    model.head.weight = nn.Parameter(torch.zeros(2, 4))


def _add_parameter(model: Model) -> None:
    model.one.extra = nn.Parameter(torch.zeros(3))


def _grow_data(model: Model) -> None:
    model.head.weight.data = torch.zeros(5, 4)
    model.head.bias.data = torch.zeros(5)


def _change_class(model: Model) -> None:
    class Other(Block):
        pass

    model.one.__class__ = Other


def _eval(model: Model) -> None:
    model.eval()


def _attributes(model: Model) -> None:
    model.one.factor = 3.0
    model.two.drop.p = 0.25
    model.two.sizes.append(3)


def _attribute_added(model: Model) -> None:
    model.one.note = "new"


def _attribute_replaced_by_tensor(model: Model) -> None:
    model.head.mark = torch.tensor(4)


def _nothing(model: Model) -> None:
    pass


CHANGES: list[Callable[[Model], None]] = [
    _nothing, _rename, _replace, _add, _share, _tie, _swap_parameter, _add_parameter, _grow_data,
    _change_class, _eval, _attributes, _attribute_added, _attribute_replaced_by_tensor,
]  # fmt: skip


def seen(t: Any) -> list[Any]:
    """Return what a trace says of modules, of tensors and of settings."""
    modules = t._session.recorder.modules
    names = [(n.path, n.cls, n.entry.number, n.entry.calls) for n in modules.names]
    events = [
        (
            e.kind,
            e.address,
            e.name,
            e.call,
            e.attributes,
            [getattr(v, "name", None) for v in e.inputs.values()],
        )
        for e in [*t.modules, *t.ops]
    ]
    return [names, modules.parameters, [path for path, _ in modules.tensors()], events]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_change_between_traces_is_seen(change: Callable[[Model], None]) -> None:
    model = Model()
    before = recorded(model)
    assert named(before)[:3] == ["", "one", "one.first"]
    recorded(model)
    change(model)
    torch.manual_seed(0)
    now = seen(recorded(model))
    torch.manual_seed(0)
    assert now == seen(recorded(model, engine="python"))


def test_a_second_trace_asks_python_for_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which any optimizer loads, and with which it has to be known whether a module is compiled.
    importlib.import_module("torch._dynamo")
    model = Model()
    model.one.sizes = model.two.sizes = (1, 2)
    recorded(model)
    asked: list[str] = []
    for name in ("module", "attributes", "names"):
        monkeypatch.setattr(Host, name, lambda *args, name=name: asked.append(name))
    with native_trace(model) as t:
        model(X)
        model(X)
    assert asked == []
    monkeypatch.undo()
    assert [e.address for e in calls(t, "one")] == ["one#0", "one#1"]
    assert calls(t, "one")[0].attributes["factor"] == 2.0


def test_a_module_compiled_between_traces_is_found() -> None:
    model = Model()
    recorded(model)

    def any_compiled() -> bool:
        with native_trace(model) as t:
            modules = t._session.recorder.modules  # type: ignore[union-attr]
            assert modules._known() is not None
            return modules.any_compiled(is_compiled, COMPILED_CALL)

    assert not any_compiled()
    model.two.compile()
    assert any_compiled()
    model.two._compiled_call_impl = None
    assert not any_compiled()
    model.head = torch.compile(model.head)  # type: ignore[assignment]
    recorded(Model())
    with native_trace(model) as t:
        modules = t._session.recorder.modules  # type: ignore[union-attr]
        assert modules.any_compiled(is_compiled, COMPILED_CALL)


def test_a_change_inside_a_trace_is_seen() -> None:
    model = Model()
    recorded(model)
    with native_trace(model) as t:
        model(X)
        model.one.factor = 5.0
        model.last = nn.Linear(2, 2)
        t.step()
        model(X)
    assert [e.attributes["factor"] for e in calls(t, "one")] == [2.0, 5.0]
    assert not faults(t)
    with native_trace(model) as again:
        model(X)
    assert [e.attributes["factor"] for e in calls(again, "one")] == [5.0]
    assert named(again)[-1] == "last"


def test_a_trace_shows_the_names_of_its_own_time() -> None:
    model = Model()
    recorded(model)
    t = recorded(model)
    _rename(model)
    recorded(model)
    assert "two.first" in named(t)
    assert "other.first" not in named(t)


def test_a_trace_inside_another_has_counts_and_settings_of_its_own() -> None:
    model = Model()
    recorded(model)
    with native_trace(model) as outer:
        model(X)
        with native_trace(model) as inner:
            model.one.factor = 7.0
            model(X)
        outer.step()
        model(X)
    assert [e.attributes["factor"] for e in calls(outer, "one")] == [2.0, 2.0, 7.0]
    assert [e.attributes["factor"] for e in calls(inner, "one")] == [7.0]
    assert [e.call for e in calls(outer, "one")] == [0, 1, 2]
    assert not faults(outer)
    assert not faults(inner)


def test_reading_while_it_records_changes_no_count() -> None:
    model = Model()
    recorded(model)
    with native_trace(model) as t:
        model(X)
        assert len(calls(t, "one")) == 1
        model(X)
    assert [e.call for e in calls(t, "one")] == [0, 1]
    assert [e.attributes["factor"] for e in calls(t, "one")] == [2.0, 2.0]


def test_an_error_in_a_module_is_its_own() -> None:
    model = Model()
    recorded(model)
    with pytest.raises(RuntimeError), native_trace(model) as t:
        model(torch.ones(2, 3))
    assert t.crash is not None
    assert t.crash.event.module == "one.first"


def test_models_are_not_kept_alive() -> None:
    model = Model()
    t = recorded(model)
    u = recorded(model)
    key = id(model), ""
    assert key in model_names._known
    tensor = weakref.ref(model.one.scale)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert tensor() is None
    assert key not in model_names._known
    assert named(t) == named(u)


def test_two_models_have_names_of_their_own() -> None:
    one, two = Model(), Model()
    for _ in range(2):
        with native_trace({"a": one, "b": two}) as t:
            one(X), two(X)
        assert named(t).count("a.head") == named(t).count("b.head") == 1
        assert not faults(t)


def test_threads_count_calls_together() -> None:
    model = Model()
    recorded(model)

    def run() -> None:
        for _ in range(20):
            model(X)

    with native_trace(model) as t:
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        str(t.modules)
        for thread in threads:
            thread.join()
    assert sorted(e.call for e in calls(t, "one.first")) == list(range(60))
    assert not faults(t)


def test_a_parameter_replaced_in_a_trace_is_named_the_same_each_time() -> None:
    def swapped(model: Model) -> list[Any]:
        weight = model.head.weight
        with native_trace(model) as t:
            model(X)
            model.head.weight = nn.Parameter(torch.zeros(2, 4))
        names = [getattr(v, "name", None) for op in t.ops for v in op.inputs.values()]
        model.head.weight = weight
        assert not faults(t)
        return names

    model = Model()
    recorded(model)
    first = swapped(model)
    for _ in range(2):
        recorded(model)
        assert swapped(model) == first
    assert "one.first.weight" in first
    assert "head.weight" not in first
