"""Silent broadcasting is a finding, and ordinary broadcasting is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clew
from clew.analysis.findings import Finding
from clew.cli.main import main
from tests import models

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")

x = torch.randn(8, 3)
y = torch.randn(8)
column = nn.Parameter(torch.ones(8, 1))


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(3, 1)


def broadcasts(trace: clew.Trace) -> list[Finding]:
    return [finding for finding in trace.findings if finding.kind == "broadcast"]


def found(run: Callable[[nn.Module], object], model: nn.Module) -> list[Finding]:
    with clew.trace(model) as t:
        run(model)
    return broadcasts(t)


def reshaped_before(model: nn.Module) -> Tensor:
    target = y.view(-1, 1)
    predicted = model(x).squeeze()
    return ((predicted - target) ** 2).mean()


FAULTS: dict[str, tuple[Callable[[nn.Module], Tensor], str]] = {
    "mse_loss": (lambda m: F.mse_loss(m(x), y), "mse_loss broadcast both [8,1] and [8] to [8,8]"),
    "l1_loss": (lambda m: F.l1_loss(m(x), y), "l1_loss broadcast both [8,1] and [8] to [8,8]"),
    "smooth_l1": (lambda m: F.smooth_l1_loss(m(x), y), "smooth_l1_loss broadcast both [8,1]"),
    "HuberLoss": (lambda m: nn.HuberLoss()(m(x), y), "huber_loss broadcast both [8,1] and [8]"),
    "other sizes": (lambda m: F.mse_loss(m(x), y[:5]), "mse_loss broadcast both [8,1] and [5]"),
    "difference": (lambda m: ((m(x) - y) ** 2).mean(), "sub broadcast both [8,1] and [8] to [8,8]"),
    "accuracy": (lambda m: (m(x) == y).float().mean(), "eq broadcast both [8,1] and [8] to [8,8]"),
    "weights": (lambda m: (m(x) * y).sum(), "mul broadcast both [8,1] and [8] to [8,8]"),
    "reshaped before": (reshaped_before, "sub broadcast both [8] and [8,1] to [8,8]"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_both_operands_expanded_by_accident(name: str, model: nn.Module) -> None:
    run, text = FAULTS[name]
    (finding,) = found(run, model)
    assert (finding.severity, finding.count) == ("warning", 1)
    assert finding.text.startswith(text)
    assert "test_broadcasts.py:" in finding.text
    assert finding.event is not None
    assert finding.event.kind in ("op", "composite")


def unsqueezed_before(model: nn.Module) -> Tensor:
    targets = y.unsqueeze(1)
    return (targets * y).sum(0)


def pairwise(model: nn.Module) -> Tensor:
    """Squared distances by sums that keep the dimension: [8,1] + [8] is meant."""
    squares = (x**2).sum(1, keepdim=True) + (x**2).sum(1) - 2 * x @ x.T
    return squares.clamp(0).sqrt().mean()


def pairs_of_nodes(model: nn.Module) -> Tensor:
    """Scores of all pairs, as attention over a graph has them: [8,1] + [8] is meant."""
    return (model(x) + model(x * 2).squeeze(1)).softmax(1)


def positions(model: nn.Module) -> Tensor:
    position = torch.arange(8).unsqueeze(1)
    angles = position * torch.exp(torch.linspace(0, 1, 8))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def causal(model: nn.Module) -> Tensor:
    at = torch.arange(8)
    return at[None, :] <= at[:, None]


ORDINARY: dict[str, Callable[[nn.Module], Tensor]] = {
    "same shapes": lambda m: F.mse_loss(m(x).squeeze(1), y),
    "one operand": lambda m: F.mse_loss(m(x), torch.zeros(1)),
    "bias": lambda m: x + torch.randn(3),
    "normalised": lambda m: x - x.mean(1, keepdim=True),
    "on one line": lambda m: ((m(x).squeeze() - y.view(-1, 1)) ** 2).mean(),
    "by None": lambda m: (y[:, None] - y).abs().mean(),
    "unsqueezed before": unsqueezed_before,
    "pairwise": pairwise,
    "pairs of nodes": pairs_of_nodes,
    "positions": positions,
    "lengths": lambda m: torch.arange(8) < torch.randint(9, (8, 1)),
    "causal": causal,
    "learned": lambda m: column * y,
    "explicit": lambda m: torch.broadcast_tensors(m(x), y)[0].mean(),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_broadcasting_is_no_finding(name: str, model: nn.Module) -> None:
    assert found(ORDINARY[name], model) == []


@pytest.mark.parametrize("name", models.ALL)
def test_real_architectures_have_no_such_finding(name: str) -> None:
    model, inputs = models.build(name)
    with clew.trace(model) as t:
        outputs = models.floats(model(**inputs))
        torch.stack([output.float().pow(2).mean() for output in outputs]).sum().backward()
    assert broadcasts(t) == []


def test_one_line_is_one_finding_however_often_it_runs(model: nn.Module) -> None:
    with clew.trace(model) as t:
        for _ in range(3):
            F.mse_loss(model(x), y).backward()
    (finding,) = broadcasts(t)
    assert finding.count == 3


def test_every_exit_shows_it(
    model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with clew.trace(model) as t:
        F.mse_loss(model(x), y).backward()
    said = "mse_loss broadcast both [8,1] and [8] to [8,8]"
    assert f"! {said}" in str(t)
    t.save(tmp_path / "run.clew")
    assert main(["show", str(tmp_path / "run.clew")]) == 0
    assert said in capsys.readouterr().out
    main(["show", str(tmp_path / "run.clew"), "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [f["text"].startswith(said) for f in findings if f["kind"] == "broadcast"] == [True]
