"""Tensors whose facts change without an op that tells: other data, a gradient asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import clew
from clew.run.value import Value


def inputs(trace: clew.Trace, name: str) -> list[Value]:
    return [op.inputs["0"] for op in trace.ops if op.name.startswith(f"aten.{name}.")]


def test_a_model_cast_inside_the_block_is_seen_as_it_is_then() -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    with clew.trace(model) as t:
        model(x)
        model.to(torch.bfloat16)
        model(x.bfloat16())
    before, after = inputs(t, "addmm")
    assert (before.dtype, after.dtype) == ("float32", "bfloat16")
    assert before.name == after.name == "bias"


def test_data_that_is_replaced() -> None:
    parameter = nn.Parameter(torch.ones(3))
    with clew.trace(values="stats") as t:
        _ = parameter * 2
        parameter.data = torch.zeros(5)
        _ = parameter * 3
    before, after = inputs(t, "mul")
    assert (before.shape, after.shape) == ((3,), (5,))
    assert (before.stats.max, after.stats.max) == (1.0, 0.0)


def test_a_lazy_parameter_is_seen_as_it_is_once_it_has_a_shape() -> None:
    model = nn.LazyLinear(3)
    with clew.trace(model) as t:
        model(torch.ones(2, 5))
    assert [value.shape for value in inputs(t, "uniform_")] == [(3, 5), (3,)]
    assert inputs(t, "addmm")[0].name == "bias"


def test_parameters_that_are_frozen_inside_the_block() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    with clew.trace(model) as t:
        model(x)
        model.bias.requires_grad = False
        model(x.requires_grad_(True))
    assert [value.requires_grad for value in inputs(t, "addmm")] == [True, False]
    assert [call.inputs["0"].requires_grad for call in t.modules] == [False, True]


@pytest.mark.parametrize("values", ["meta", "stats"])
def test_what_an_op_made_is_asked_for_its_gradient_and_not_any_more(values: str) -> None:
    identity = nn.Identity()
    with clew.trace(identity, values=values) as t:
        x = torch.zeros(3)
        x.tan()
        x.requires_grad_()
        identity(x).tan()
        with torch.no_grad():
            x.tan()
        x.requires_grad = False
        x.tan()
    used = inputs(t, "tan")
    assert [value.requires_grad for value in used] == [False, True, True, False]
    assert t.modules[0].inputs["0"].requires_grad
    # The same memory and content, made by the same op.
    assert {value.producer for value in used} == {t.ops[0]}
    assert len({(value.storage, value.version) for value in used}) == 1


def test_a_gradient_is_asked_for_after_a_write_to_a_part() -> None:
    with clew.trace() as t:
        x = torch.zeros(3)
        x[1:].add_(1)
        x.requires_grad_()
        x.tan()
    [used] = inputs(t, "tan")
    assert used.requires_grad
    assert used.producer is not None
    assert used.producer.name == "aten.add_.Tensor"


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_statistics_of_a_tensor_that_was_written_to_between_calls(level: str) -> None:
    model, x = nn.Identity(), torch.zeros(3)
    with clew.trace(model, level=level, values="stats") as t:
        for _ in range(3):
            model(x)
            model(x.view(3))
            x += 1
    means = [event.outputs[""].stats.mean for event in t.modules]
    assert means == [0, 0, 1, 1, 2, 2]


def test_memory_that_gets_a_gradient_by_a_write_to_a_part_of_it() -> None:
    source = torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        by_index = torch.zeros(4)
        by_index[:2] = source * 2
        by_index.tan()
        whole = torch.zeros(3)
        part = whole[1:]
        part.mul_(source)
        whole.exp()
        with torch.no_grad():
            untouched = torch.zeros(3)
            untouched[1:] = source
        untouched.cos()
    [tan], [exp], [cos] = (inputs(t, name) for name in ("tan", "exp", "cos"))
    assert (by_index.requires_grad, whole.requires_grad) == (True, True)
    assert (tan.requires_grad, exp.requires_grad, cos.requires_grad) == (True, True, False)


class Watching(torch.overrides.TorchFunctionMode):
    """A function mode of the program's own, which must not see Clew look at tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_nothing_of_it_shows_in_a_function_mode_of_the_program() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    plain, traced = Watching(), Watching()
    with plain:
        model(x), model(x)
    with traced, clew.trace(model):
        model(x), model(x)
    assert traced.seen == plain.seen
