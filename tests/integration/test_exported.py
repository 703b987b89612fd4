"""Programs exported inside a block: nothing of Clew's is in them, and coverage says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import clew

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        clew.tap("marked", hidden, self)
        y = hidden.relu()
        return y


X = torch.ones(1, 2)
ASKED: dict[str, dict[str, Any]] = {
    "taps": {},
    "locals": {"capture": ["forward.hidden", "linear.weight:param", "linear:out"]},
    "watch": {"watch": ["hidden"]},
    "statistics": {"values": "stats"},
    "modules": {"level": "modules", "capture": ["forward.hidden"]},
}
EXPORTS: dict[str, Callable[[nn.Module], Any]] = {
    "export": lambda net: torch.export.export(net, (X,)),
    "strict": lambda net: torch.export.export(net, (X,), strict=True),
    "draft": lambda net: torch.export.draft_export(net, (X,)),
    "dynamo": lambda net: torch._dynamo.export(net)(X)[0],
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("how", EXPORTS)
def test_an_exported_program_is_the_programs_own(how: str, asked: str) -> None:
    net = Net()
    plain = EXPORTS[how](net)
    with clew.trace(net, **ASKED[asked]) as t:
        before = net(X)
        made = EXPORTS[how](net)
        after = net(X)
    assert text(made) == text(plain)
    assert "clew" not in text(made)
    assert any(gap.what == "what runs while a program is exported" for gap in t.coverage)
    assert torch.equal(before, after)
    assert len(t[""]) == 2, "calls before and after are recorded"
    assert len(t["marked"]) == 2
    if "capture" in ASKED[asked]:
        assert len(t["forward.hidden"]) == 2
        assert not any("forward.hidden" in gap.where for gap in t.coverage)


def text(made: Any) -> str:
    return str(made.graph)


@pytest.mark.parametrize(
    "trace", [lambda net: make_fx(net)(X), lambda net: torch.jit.trace(net, X)], ids=["fx", "jit"]
)
@pytest.mark.parametrize("asked", ASKED)
def test_a_traced_program_is_the_programs_own(
    trace: Callable[[nn.Module], Any], asked: str
) -> None:
    net = Net()
    with clew.trace(net, **ASKED[asked]):
        made = trace(net)
    assert "clew" not in text(made)
    assert kinds(made) == kinds(trace(net))


def kinds(made: Any) -> list[str]:
    if isinstance(made, torch.jit.ScriptModule):
        return [node.kind() for node in made.inlined_graph.nodes()]
    return [str(node.target) for node in made.graph.nodes]


def test_an_exported_program_runs_where_there_is_no_clew(tmp_path: Path) -> None:
    net = Net()
    with clew.trace(net, capture=["forward.hidden"]):
        made = torch.export.export(net, (X,))
    torch.export.save(made, tmp_path / "net.pt2")
    program = (
        "import sys, torch\n"
        f"made = torch.export.load({str(tmp_path / 'net.pt2')!r})\n"
        "print(made.module()(torch.ones(1, 2)).tolist())\n"
        "assert 'clew' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (str(net(X).tolist()), 0), done.stderr


def test_watching_leaves_an_exported_program_alone() -> None:
    net = Net()
    plain = EXPORTS["export"](net)
    with clew.watch("hidden", out=False):
        made = EXPORTS["export"](net)
    assert text(made) == text(plain)


def test_torch_is_as_it_was_after_the_block() -> None:
    before = type(torch.compiler)
    with clew.trace(), clew.trace():
        assert not torch.compiler.is_exporting()
    assert type(torch.compiler) is before


def test_an_address_that_only_paused_is_not_called_missing() -> None:
    """Sources that are taken away between steps of a schedule say nothing yet."""
    net = Net()
    asked = ["forward.hidden", "linear.weight:update"]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with clew.trace(net, capture=asked, schedule=clew.schedule(every=2)) as t:
        t.step()
        t.step()
        t.step()
        net(X).sum().backward()
        optimizer.step()
        t.step()
        t.step()
        net(X).sum().backward()
        optimizer.step()
    assert len(t["forward.hidden"]) >= 1
    assert not [gap for gap in t.coverage if gap.what == "an address to capture"]
