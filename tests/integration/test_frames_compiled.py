"""Instrumented functions under torch.compile: the same graphs, no breaks, the same results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from clew.observe.variables.frames import Site, Target, instrument
from tests.no_torch.frames.seen import Seen


class Eager(Seen):
    """Writes down what happens outside compiled code; inside, the calls vanish from the graph."""

    def _note(self, what: str, site: Site, owner: object, value: object = None) -> None:
        if not torch.compiler.is_compiling():
            super()._note(what, site, owner, value)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.seen: dict[str, int] = {}

    def forward(self, x: torch.Tensor, talk: bool = False) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        attn = q @ k.transpose(-2, -1)
        if talk:
            torch._dynamo.graph_break()
        for scale in (2.0, 4.0):
            attn = attn / scale
            cache = {"attn": attn}
            cache["v"] = v
        if (n := x.shape[-1]) > 4:
            attn = attn.softmax(-1)
        attn[..., 0] = 0
        self.seen["n"] = n
        return attn @ cache["v"]


@pytest.fixture
def model() -> Iterator[Attention]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield Attention().eval()
    torch._dynamo.reset()


def everything(model: Attention) -> Target:
    return Target(type(model).forward, lambda name: True, returns=True, polls=True, lines=True)  # type: ignore[arg-type]


def counted(model: Attention, **options: Any) -> tuple[torch.Tensor, int, int]:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    with torch.no_grad():
        found = torch.compile(model, backend=counter, **options)(
            torch.ones(2, 3, 8), talk=not options
        )
    return found, counter.frame_count, counter.op_count


def test_one_whole_graph_stays_one_whole_graph(model: Attention) -> None:
    plain = counted(model, fullgraph=True)
    with instrument([everything(model)], Eager(), compiling=torch.compiler.is_compiling) as i:
        assert i.fallbacks == i.unseen == []
        found = counted(model, fullgraph=True)
    assert torch.equal(found[0], plain[0])
    assert found[1:] == plain[1:]
    assert plain[1] == 1


def test_a_graph_that_breaks_anyway_breaks_only_there(model: Attention) -> None:
    plain = counted(model)
    with instrument([everything(model)], Eager(), compiling=torch.compiler.is_compiling):
        found = counted(model)
    assert torch.equal(found[0], plain[0])
    assert found[1:] == plain[1:]
    assert plain[1] == 2


def test_outside_compiled_code_everything_is_told(model: Attention) -> None:
    seen = Eager()
    with instrument([everything(model)], seen, compiling=torch.compiler.is_compiling):
        model(torch.ones(2, 3, 8))
    assert len(seen.values("attn")) == 4
    assert seen.kinds()[0] == "entered"
    assert seen.kinds()[-2:] == ["returned", "left"]
    assert all(owner is model for owner in seen.owners)


def test_decorated_methods_are_followed_and_others_untouched(model: Attention) -> None:
    original = Attention.forward
    seen = Eager()
    decorated = torch.no_grad()(Attention.forward)
    with instrument([everything(model)], seen, compiling=torch.compiler.is_compiling):
        decorated(model, torch.ones(2, 3, 8))
    assert len(seen.values("attn")) == 4
    assert Attention.forward is original
