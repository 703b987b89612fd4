"""What is rare in torch runs as without Clew, and is recorded without a fault."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import clew
from tests.native.engine import (
    faults,
    native_trace,
    needs_engine,
    op_names,
    outcome,
    read_all,
)
from tests.native.programs import PROGRAMS, Doubles, SameDispatch, SameFunction, small_model

pytestmark = [needs_engine, pytest.mark.filterwarnings("ignore")]

levels = pytest.mark.parametrize("values", ["meta", "stats", "full"])


@levels
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_gives_the_same_bits(name: str, values: str) -> None:
    expected = outcome(PROGRAMS[name])
    with native_trace(values=values) as t:
        found = outcome(PROGRAMS[name])
    assert found == expected
    assert not faults(t)
    assert t.ops
    read_all(t)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_gives_the_same_bits_when_modules_alone_are_recorded(name: str) -> None:
    expected = outcome(PROGRAMS[name])
    with native_trace(values="stats", level="modules") as t:
        found = outcome(PROGRAMS[name])
        small_model()(torch.ones(3))
    assert found == expected
    assert not faults(t)
    read_all(t)


@levels
@pytest.mark.parametrize("mode", [SameDispatch, SameFunction, Doubles])
def test_a_mode_around_the_block(mode: type[Any], values: str) -> None:
    def run() -> Any:
        model = small_model()
        out = model(torch.ones(2, 3))
        out.sum().backward()
        return out, [weight.grad for weight in model.parameters()]

    with mode():
        expected = outcome(run)
        with native_trace(values=values) as t:
            found = outcome(run)
    assert found == expected
    assert not faults(t)
    assert "aten.addmm.default" in op_names(t)
    read_all(t)


def test_an_op_that_raises_is_recorded_with_what_it_raised() -> None:
    with native_trace() as t:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="size of tensor"):
                torch.ones(2) + torch.ones(3)
    errors = [op.error for op in t.ops if op.error]
    assert len(errors) == 3
    assert all("size of tensor" in error for error in errors)


def test_every_generator_has_its_own_count_of_draws() -> None:
    """Also one that has the address of one that is gone."""
    with native_trace() as t:
        for _ in range(4):
            own = torch.Generator()
            torch.rand(2, generator=own)
            torch.rand(2, generator=own)
            del own
            gc.collect()
    draws = [op.draw for op in t.ops if op.draw is not None]
    assert len(draws) == 8
    assert len(set(map(str, draws))) == 8


def test_ops_of_libraries_that_are_taken_away() -> None:
    for at in range(40):
        library = torch.library.Library("clew_soak", "FRAGMENT")
        name = f"op{at}"
        library.define(f"{name}(Tensor x, {'int n, ' * (at % 2)}*, float f=1) -> Tensor")
        library.impl(name, lambda x, *n, f=1: x * 2, "CPU")
        with native_trace() as t:
            getattr(torch.ops.clew_soak, name)(torch.ones(2), *[3] * (at % 2), f=0.5)
        library._destroy()
        assert f"clew_soak.{name}.default" in op_names(t)
        (op,) = (op for op in t.ops if name in op.name)
        assert op.arguments["f"] == 0.5
        assert not faults(t)


def test_an_op_defined_again_with_other_arguments() -> None:
    for arguments in (["Tensor x", "int n"], ["Tensor x", "float f", "int n", "bool b"]):
        library = torch.library.Library("clew_soak_again", "FRAGMENT")
        library.define(f"same({', '.join(arguments)}) -> Tensor")
        library.impl("same", lambda x, *rest: x * 2, "CPU")
        packet = torch.ops.clew_soak_again.same
        with native_trace() as t:
            packet(torch.ones(2), *range(1, len(arguments)))
        library._destroy()
        (op,) = (op for op in t.ops if "same" in op.name)
        assert len(op.arguments) == len(arguments)


def test_tensors_and_modules_die_in_the_block() -> None:
    with native_trace() as t:
        x = torch.ones(1000)
        y = x * 2
        gone = weakref.ref(x)
        del x
        assert gone() is None
        model = nn.Linear(2, 2)
        model(torch.ones(2)).sum().backward()
        held = [weakref.ref(model), weakref.ref(model.weight)]
        del model
        gc.collect()
        assert [one() for one in held] == [None, None]
    assert t.ops
    assert float(y.sum()) == 2000


def test_a_guard_takes_statistics_without_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_ENGINE", "native")
    with pytest.raises(clew.NonFiniteError) as raised, clew.guard():
        torch.arange(4.0).log()
    value = raised.value.nonfinite.event.inputs["0"]
    assert value.stats is not None
    assert value.stats.max == 3
    assert value.digest is None
