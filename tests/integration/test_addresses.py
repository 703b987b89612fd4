"""The address of an event reads back as that event and no other, whatever ran."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import clew
from clew.errors import ClewWarning

ONE = torch.ones(1, 3)


class Net(nn.Module):
    """A layer with two names, a tap, a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.same = self.fc

    def forward(self, x: Tensor) -> Tensor:
        h = self.same(self.fc(x)).relu()
        return clew.tap("h", h) * 2


class Keyed(nn.Module):
    """Layers whose names have letters that mean something in an address."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"x[0]": nn.Linear(3, 3), "x": nn.ModuleList([nn.ReLU()])})

    def forward(self, x: Tensor) -> Tensor:
        h = self.heads["x[0]"](x)
        return self.heads["x"][0](h)


def test_a_bracket_in_the_name_of_a_module_is_a_letter() -> None:
    model = Keyed()
    with clew.trace(model, capture=["heads['x[0]']"]) as t:
        y = model(ONE)
    assert not t.coverage
    kept = t["heads['x[0]']"].one.outputs["0"].tensor()
    assert torch.equal(kept.relu(), y)
    with pytest.raises(clew.ClewError, match="not kept"):
        t["heads.x.0"].one.outputs["0"].tensor()


def several_models(t: Any) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    for _ in range(4):
        first(ONE)
        second(second(ONE))


def models_with_variables(t: Any) -> None:
    nets = [Net() for _ in range(3)]
    for _ in range(4):
        for net in nets:
            net(ONE)


def calls_past_the_hooks(t: Any) -> None:
    net = Net()
    net.forward(ONE)
    net(ONE)
    net.forward(ONE)


def modules_made_anew(t: Any) -> None:
    for _ in range(4):
        nn.Linear(3, 3)(ONE)
        nn.Linear(3, 3)(ONE)


def training(t: Any) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        net(ONE).sum().backward()
        optimizer.step()
        t.step()


def a_crash(t: Any) -> None:
    with contextlib.suppress(RuntimeError):
        Net()(torch.ones(1, 5))


def read_back(t: clew.Trace) -> list[str]:
    """The addresses of calls, ops and named values that do not stand for just their event."""
    kinds = ("module", "op", "variable", "tap", "grad")
    assert any(event.kind == "module" for event in t.events)
    return [e.address for e in t.events if e.kind in kinds and list(t[e.address]) != [e]]


@pytest.mark.parametrize(
    "program",
    [several_models, models_with_variables, calls_past_the_hooks, modules_made_anew, training,
     a_crash],
)  # fmt: skip
def test_every_address_reads_back(program: Callable[[Any], None], tmp_path: Any) -> None:
    wanted = ["**.forward.h", "**.fc.weight:grad", "**.fc:grad"]
    with clew.trace(capture=wanted) as t:
        program(t)
    assert read_back(t) == []
    t.save(tmp_path / "run.clew")
    assert read_back(clew.load(tmp_path / "run.clew")) == []


names = st.text("ab01#[]'\"*?:.x ", min_size=1, max_size=4).filter(lambda n: "." not in n)


@given(st.lists(names, min_size=1, max_size=4, unique=True), st.integers(1, 4), st.booleans())
def test_whatever_modules_are_called(given: list[str], calls: int, is_named: bool) -> None:
    model, other = nn.Sequential(), nn.Sequential(nn.Identity())
    for name in given:
        model.add_module(name, nn.Identity())
    with clew.trace(model if is_named else None, level="modules") as t:
        for _ in range(calls):
            model(ONE)
            other(ONE)
    assert read_back(t) == []


def test_a_root_and_a_call_that_are_written_alike() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    with clew.trace() as t:
        first(ONE)
        second(ONE)
    assert t["Linear#2"].one.module == "Linear#2"
    with clew.trace() as t:
        for _ in range(3):
            first(ONE)
        second(ONE)
    third = t["Linear#2"].one
    assert (third.module, third.call) == ("Linear", 2)
    assert t["['Linear#2']"].one.module == "Linear#2"


# Addresses that nothing matches


def warned(caught: Any) -> list[str]:
    return [str(w.message) for w in caught if w.category is ClewWarning]


@pytest.mark.parametrize(
    ("address", "nearest"),
    [
        ("0.wieght:param", "0.weight"),
        ("linear", "0"),
        ("op:aten.sotfmax", ""),
        ("test_addresses.py:no_such_function.x", "the functions of test_addresses.py"),
        ("test_addresses.py:Net.forward.x", "never called"),
        ("0.weight:update", "no optimizer"),
    ],
)
def test_an_address_without_a_match_is_warned_of_at_the_end(address: str, nearest: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(model, capture=[address]) as t:
            model(torch.ones(1, 2))
            assert warned(caught) == []
    assert len(warned(caught)) == 1
    assert address in warned(caught)[0]
    assert nearest in warned(caught)[0]
    assert [gap.where for gap in t.coverage] == [address]


def test_a_step_that_could_have_matched_ends_with_the_warning_and_only_the_first() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(model, capture=["9", "0.forward.nothing"]) as t:
            torch.ones(1)
            t.step()
            assert warned(caught) == []  # no module ran
            model(torch.ones(1, 2))
            t.step()
            assert len(warned(caught)) == 2
            assert "(up to the end of step 1)" in warned(caught)[0]
            assert len(t.coverage) == 0  # they may still come
            model(torch.ones(1, 2))
            t.step()
    assert len(warned(caught)) == 2
    assert {gap.where for gap in t.coverage} == {"9", "0.forward.nothing"}


def test_where_a_model_never_ran_that_is_the_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(nn.Linear(2, 2), capture=["fc", "weight:grad"]) as t:
            torch.ones(1)
    assert ["it never ran" in text for text in warned(caught)] == [True]
    assert len(t.coverage) == 3


def test_what_comes_later_is_not_in_the_coverage() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(model, capture=["b", "a#2"]) as t:
            model["a"](torch.ones(1, 2))
            t.step()
            assert ["b" in text for text in warned(caught)] == [True]
            model["b"](torch.ones(1, 2))
            model["a"](torch.ones(1, 2))
            model["a"](torch.ones(1, 2))
    assert len(warned(caught)) == 1
    assert t.coverage == ()


def test_a_watched_name_without_a_match_is_warned_of() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(watch=["no_such_name"]):
            torch.ones(1)
    assert [text.partition(":")[0] for text in warned(caught)] == [
        "a variable to watch at no_such_name"
    ]


def test_a_watched_name_without_a_match_is_warned_of_after_the_first_step() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(watch=["no_such_name"]) as t:
            for _ in range(2):
                torch.ones(1)
                t.step()
            assert ["(up to the end of step 0)" in text for text in warned(caught)] == [True]
            assert t.coverage == ()  # it may still come
    assert len(warned(caught)) == 1
    assert [gap.where for gap in t.coverage] == ["no_such_name"]
