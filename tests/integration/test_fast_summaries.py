"""The quick look at tensors: the numbers of a closer one, and never those of a moment before."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clew.compat.engine.watched_functions import is_same, summary_of
from clew.keep.describing import summarize
from clew.keep.tensor_statistics import statistics

SHOWN = ("count", "min", "max", "mean", "nan", "inf")


def spoiled(*numbers: float) -> Tensor:
    tensor = torch.linspace(-2, 3, 300_000)
    tensor[: len(numbers)] = torch.tensor(numbers)
    return tensor


def shown(tensor: Tensor) -> dict[str, Any]:
    stats = summary_of(tensor).stats
    assert stats is not None
    return {name: stats[name] for name in SHOWN}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(13),
        torch.randn(300, 1000) + 5,
        torch.randn(4, 5, 600).double().permute(2, 0, 1),
        torch.randn(100, 100)[::2],
        torch.randn(40, 40).expand(3, 40, 40),
        torch.arange(5000),
        torch.randn(64).to(torch.bfloat16),
        torch.randn(64, dtype=torch.complex64),
        torch.randn(64, requires_grad=True),
        spoiled(math.nan, math.inf),
        spoiled(math.inf, -math.inf),
        spoiled(3e38, 3e38, 3e38),
        torch.full((50,), math.nan),
    ],
    ids=lambda t: f"{t.dtype} {tuple(t.shape)}",
)
def test_the_numbers_are_those_of_a_closer_look(tensor: Tensor) -> None:
    expected = statistics(tensor.detach())
    found = shown(tensor)
    for name in SHOWN:
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("size", [3e38, 1e31, math.inf, math.nan])
def test_numbers_are_had_where_numpy_raises_for_them(size: float) -> None:
    tensor = spoiled(size, size, -size)
    with np.errstate(all="raise"):
        found = shown(tensor)
    expected = {name: statistics(tensor)[name] for name in SHOWN}
    assert found == pytest.approx(expected, rel=1e-5, nan_ok=True)


def test_a_digest_is_that_of_the_elements_in_their_order() -> None:
    tensor = torch.randn(60, 50)
    expected = statistics(tensor)["digest"]
    turned = tensor.T.contiguous().T
    for one in (tensor, turned):
        found = summarize(one, numbers=True, digest=True).stats
        assert found is not None
        assert found["digest"] == expected
    # The quick look remembers them by their order in memory.
    again = summarize(turned, numbers=True, digest=True).stats
    assert again is not None
    assert again["digest"] == expected


def test_what_changes_is_looked_at_again() -> None:
    tensor = torch.zeros(1000)
    assert shown(tensor)["max"] == 0
    tensor += 1
    assert shown(tensor)["max"] == 1
    tensor.data.mul_(2)  # which counts no version
    assert shown(tensor)["max"] == 2
    tensor.data[503] = 9
    assert shown(tensor)["max"] == 9
    shared = torch.from_numpy(memory := np.zeros(1000, np.float32))
    assert shown(shared)["max"] == 0
    memory[501] = 7
    assert shown(shared)["max"] == 7
    assert not summary_of(tensor).grad
    assert summary_of(tensor.requires_grad_()).grad


def test_tensors_of_another_kind_are_looked_at_with_more_care() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(1000)
        assert shown(tensor)["max"] == 0
        tensor += 1
        assert shown(tensor)["max"] == 1
    zeros = torch._efficientzerotensor(1000)
    assert summary_of(zeros).shape == (1000,)
    empty = torch.ones(1000)
    empty.untyped_storage().resize_(0)
    assert summary_of(empty).stats is None
    found = []
    torch.func.vmap(lambda row: (found.append(summary_of(row)), row)[1])(torch.ones(3, 20))
    assert [(one.cls, one.stats) for one in found] == [("Tensor", None)]


def test_a_tensor_at_the_address_of_another_is_not_taken_for_it() -> None:
    for number in range(50):
        assert shown(torch.full((1000,), float(number)))["min"] == number


def test_nothing_is_kept_alive_and_nothing_stays_installed() -> None:
    tensors = [torch.randn(1000) for _ in range(3)]
    for tensor in tensors:
        summary_of(tensor)
    assert torch.utils.weakref is weakref  # type: ignore[attr-defined]
    gone = weakref.ref(tensors[0])
    del tensor, tensors
    gc.collect()
    assert gone() is None


def test_tensors_that_were_looked_at_can_be_swapped() -> None:
    one, other = torch.zeros(1000), torch.ones(1000)
    summary_of(one)
    torch.utils.swap_tensors(one, other)
    assert (shown(one)["max"], shown(other)["max"]) == (1, 0)


def test_no_op_runs_while_somebody_looks() -> None:
    ran: list[str] = []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            ran.append(str(func))
            return func(*args, **(kwargs or {}))

    tensor = torch.randn(1000, requires_grad=True)
    with Ops():
        summary_of((tensor, [tensor]))
    assert ran == []


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x


def test_sameness_of_large_tensors_and_of_objects() -> None:
    large = torch.randn(200_000)
    other = large.clone()
    assert is_same({"a": [large]}, {"a": [other]})
    other[7] += 1e-6
    assert not is_same({"a": [large]}, {"a": [other]})
    assert not is_same(large, large.double())
    assert not is_same(Point(1), Point(1))
    assert is_same([Point(1)], [Point(1)], lambda a, b: a == b)
    assert not is_same(Point(1), Point(2), lambda a, b: a == b)
    assert not is_same(Point(1), Point(1), lambda a, b: 1 / 0)


@pytest.mark.parametrize("watch", ["clew.trace(watch=['x'])", "clew.watch('x', out=False)"])
def test_every_way_to_watch_has_the_quick_look(watch: str) -> None:
    program = (
        "import torch, clew\n"
        "from clew.keep import value_summaries\n"
        f"with {watch}:\n"
        "    x = torch.ones(20)\n"
        "assert value_summaries._fast_summary[0].__module__ == 'clew.keep.fast_summaries'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
