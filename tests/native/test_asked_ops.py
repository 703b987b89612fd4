"""Values of single ops by address: the native engine keeps what the python engine keeps."""

from __future__ import annotations

import fnmatch
import signal
import threading
from typing import Any

import pytest
import torch
from torch import nn

import clew
from clew.run.value import numbers_of
from tests.native.engine import faults, native_trace, needs_engine, outcome

pytestmark = needs_engine


def attention() -> torch.Tensor:
    """Run forward and backward, with ops that write to a result and to a view of it."""
    x = torch.randn(2, 3, 4, requires_grad=True)
    scores = torch.softmax(x @ x.transpose(1, 2), -1)
    part = scores.detach().clone()
    part[0].mul_(2.0).add_(part[1], alpha=0.5)
    largest, _ = torch.topk(part, 2, dim=-1)
    torch._foreach_mul_([part, largest], 3.0)
    (scores.sum() + largest.sum()).backward()
    assert x.grad is not None
    return x.grad


def data_of(trace: Any, address: str) -> list[tuple[str, str, list[float]]]:
    """Return the data that an address names: op, place among arguments or results, elements."""
    _, pattern, *role = address.split(":")
    found = []
    for op in trace.ops:
        if not fnmatch.fnmatch(op.name, pattern):
            continue
        for path, value in (op.inputs if role[:1] == ["in"] else op.outputs).items():
            data = numbers_of(value)
            if data is not None:
                found.append((op.name, path, data.reshape(-1).tolist()))
    return found


@pytest.mark.parametrize("values", ["meta", "stats"])
@pytest.mark.parametrize(
    "address",
    ["op:aten._softmax*", "op:aten.add_*:in", "op:aten.mul_*:in.0", "op:aten.topk*:out.1",
     "op:aten._foreach_mul_*:in", "op:*backward*", "op:aten.add_*:in.1"],
)  # fmt: skip
def test_both_engines_keep_the_same_values(address: str, values: str) -> None:
    untraced = outcome(attention)
    found = {}
    for engine in ("python", "native"):
        with clew.trace(engine=engine, capture=[address], values=values) as t:
            assert outcome(attention) == untraced
        assert t.env["engine"] == engine
        assert not faults(t)
        found[engine] = (data_of(t, address), sorted(gap.what for gap in t.coverage))
    assert found["native"] == found["python"]


def test_callbacks_get_the_values_of_ops() -> None:
    seen: dict[str, list[Any]] = {}
    recorded: dict[str, list[Any]] = {}
    for engine in ("python", "native"):
        given = seen[engine] = []

        def save(value: Any, given: list[Any] = given) -> Any:
            torch.rand(3)  # is not recorded, and leaves the random numbers as they are
            tensor = value if isinstance(value, torch.Tensor) else value["0"]
            given.append([type(value).__name__, tensor.tolist()])
            return tensor.sum()

        callbacks = {
            "op:aten._softmax*": clew.Callbacks(save=save),
            "op:aten.add_.Tensor:in": clew.Callbacks(save=save),
        }
        untraced = outcome(attention)
        with clew.trace(engine=engine, callbacks=callbacks) as t:
            assert outcome(attention) == untraced
        assert not faults(t)
        assert "aten.rand.default" not in [op.name for op in t.ops]
        recorded[engine] = [
            (str(event.address), numbers_of(value).tolist())  # type: ignore[union-attr]
            for event in t.events
            if event.kind == "variable"
            for value in event.outputs.values()
        ]
    assert seen["native"] == seen["python"]
    assert len(seen["native"]) >= 2
    assert recorded["native"] == recorded["python"]


def test_a_callback_that_raises_does_not_reach_the_program() -> None:
    def fail(value: Any) -> Any:
        raise ValueError("not this one")

    with native_trace(callbacks={"op:aten.exp*": clew.Callbacks(save=fail)}) as t:
        assert torch.ones(2).exp().tolist() == pytest.approx([2.7182817] * 2)
    assert any("fail raised ValueError: not this one" in gap.why for gap in t.coverage)


def test_an_interrupt_in_a_callback_interrupts_the_program() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def interrupted(value: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return value

    def program() -> None:
        torch.ones(2).exp()
        for _ in range(1000):
            torch.ones(2).sin()

    callbacks = {"op:aten.exp*": clew.Callbacks(save=interrupted)}
    with pytest.raises(KeyboardInterrupt), native_trace(callbacks=callbacks):
        program()


def test_values_of_threads_and_of_odd_tensors_are_kept() -> None:
    def work() -> None:
        nn.Linear(2, 2)(torch.ones(3, 2)).relu()

    with native_trace(capture=["op:aten.relu*", "op:aten.mul*"]) as t:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.ones(3).to_sparse().mul(2.0)
        torch.vmap(lambda row: row * 3.0)(torch.ones(2, 2))
    assert not faults(t)
    assert data_of(t, "op:aten.relu*")
    # What `vmap` gives has no elements of its own.
    assert data_of(t, "op:aten.mul*") == [("aten.mul.Tensor", "", [2.0] * 3)]
    assert any("no elements" in gap.why for gap in t.coverage)
