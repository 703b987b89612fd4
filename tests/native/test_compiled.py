"""`torch.compile`: a trace makes nothing compile again, inside it or after it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from tests.native.engine import faults, native_trace, needs_engine, plain, read_all
from tests.native.programs import small_model

pytestmark = [
    needs_engine,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler needs g++"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_model_is_not_compiled_again(backend: str, training: bool) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    torch.manual_seed(0)
    model: nn.Module = torch.compile(small_model(), backend=counter)  # type: ignore[assignment]

    def run() -> Any:
        model.zero_grad()
        with torch.set_grad_enabled(training):
            out = model(torch.ones(2, 3)) * 2
        if training:
            out.sum().backward()
        return plain([out, [weight.grad for weight in model.parameters()] if training else None])

    expected = run()
    compiled, breaks = counter.frame_count, sum(counters["graph_break"].values())
    assert compiled
    for values in ("meta", "stats", "full"):
        with native_trace(values=values) as t:
            assert run() == expected
            assert run() == expected
        assert not faults(t)
        read_all(t)
        assert run() == expected
    assert counter.frame_count == compiled
    assert sum(counters["graph_break"].values()) == breaks


def test_a_model_compiled_in_the_block_is_not_compiled_again_after_it() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter)
    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    with native_trace() as t:
        inside = double(torch.ones(3))
    compiled = counter.frame_count
    assert torch.equal(double(torch.ones(3)), inside)
    assert counter.frame_count == compiled
    assert not faults(t)
    read_all(t)
