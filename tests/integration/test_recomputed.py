"""What a checkpoint computes again in a backward pass: marked so, counted apart, named once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew


class Checkpointed(nn.Module):
    """A block that is computed again once the model's own call is over."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.reentrant = reentrant

    def block(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        clew.tap("marked", h)
        return torch.tanh(h)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return y


def inputs() -> Tensor:
    return torch.ones(1, 2, requires_grad=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_variables_are_marked_and_counted_apart(reentrant: bool) -> None:
    model = Checkpointed(reentrant)
    with clew.trace(model, capture=["block.h"]) as trace:
        for _ in range(2):
            model(inputs()).sum().backward()
            trace.step()
    seen = [(e.name, e.step, e.phase, e.call) for e in trace.variables]
    assert seen == [
        ("h", 0, "forward", 0), ("h", 0, "recompute", 0),
        ("h", 1, "forward", 1), ("h", 1, "recompute", 1),
    ]  # fmt: skip
    # An address names what ran first, as it does for calls.
    for address in ("block.h", "marked", "linear"):
        assert [(e.step, e.phase) for e in trace[address]] == [(0, "forward"), (1, "forward")]
        assert trace[f"{address}#1"].one.step == 1
    assert trace.series("block.h").steps == [0, 1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_ops_have_the_module_that_made_the_checkpoint(reentrant: bool) -> None:
    """They run once its call is over."""

    class OfOps(Checkpointed):
        def block(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x))

    model = OfOps(reentrant)
    with clew.trace(model) as trace:
        model(inputs()).sum().backward()
    modules = {op.name: op.module for op in trace.ops if op.phase == "recompute"}
    assert modules["aten.tanh.default"] == ""
    assert modules["aten.addmm.default"] == "linear"


class Step(nn.Module):
    """A step of training as one module: the backward pass runs while its call is open."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> None:
        self.net(x).sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_callbacks_hear_of_each_value_once(reentrant: bool, inside: bool) -> None:
    net = Checkpointed(reentrant)
    step, given = Step(net), []

    def save(value: Tensor, *, address: str) -> Tensor:
        given.append(address)
        return value

    names = ("linear", "block.h", "marked", "forward.y")
    wanted = [f"net.{name}" if inside else name for name in names]
    callbacks = {address: clew.Callbacks(save=save, with_address=True) for address in wanted}
    with clew.trace(step if inside else net, callbacks=callbacks) as trace:
        for _ in range(2):
            step(inputs()) if inside else net(inputs()).sum().backward()
            trace.step()
    assert given == wanted * 2
    assert trace.series(wanted[1]).steps == [0, 1]
