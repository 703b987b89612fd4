"""Noise is measured from repeats and perturbed weights, and the model is left as it was."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from clew.replay.model_state import is_same
from clew.replay.perturbing import moved_by_one


class Net(nn.Module):
    """A model with all that running it may change: buffers, dropout, a mode per part."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8, dtype=dtype), nn.BatchNorm1d(8, dtype=dtype)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(8, 4, dtype=dtype)
        with torch.no_grad():
            self.out.bias.copy_(torch.tensor([-0.0, float("nan"), float("inf"), 1e-45]))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.norm(self.fc(x))))


def everything(model: nn.Module) -> list[Tensor]:
    return [
        tensor.detach().clone()
        for tensor in (
            *model.state_dict(keep_vars=True).values(),
            *(p.grad for p in model.parameters() if p.grad is not None),
        )
    ]


def states() -> list[object]:
    return [random.getstate()[1], np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index, union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_bit_for_bit_as_it_was(dtype: torch.dtype, fails: bool) -> None:
    torch.manual_seed(0)
    model = Net(dtype)
    model.drop.eval()
    x = torch.randn(6, 8, dtype=dtype)
    saved = model(x)[:, 0].sum()
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before, drawn, grad = everything(model), states(), model.fc.weight.grad
    calls: list[int] = []

    def step() -> None:
        random.random(), np.random.rand()
        model.eval() if len(calls) % 2 else model.train()
        model(x)[:, 0].sum().backward()
        calls.append(1)
        if fails and len(calls) == 3:
            raise ValueError("the program's own")

    if fails:
        with pytest.raises(ValueError, match="the program's own"):
            clew.calibrate(step, n=2, model=model)
    else:
        clew.calibrate(step, n=2, model=model)
        assert len(calls) == 4
    assert all(map(is_same, before, everything(model)))
    assert states() == drawn
    assert model.fc.weight.grad is grad
    assert model.out.weight.grad is None
    assert (model.training, model.drop.training) == (True, False)
    saved.backward()  # the graph of before still fits the weights


def test_each_weight_is_moved_to_a_neighbour() -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.tensor([1.0, -2.5, 0.0, float("inf"), float("nan"), torch.finfo().max, 1e-45])
    found = moved_by_one(given.repeat(50), generator).view(50, 7)
    up, down = (
        torch.nextafter(given, torch.full_like(given, end)) for end in (math.inf, -math.inf)
    )
    assert {*found[:, 0].tolist()} == {up[0].item(), down[0].item()}
    assert {*found[:, 1].tolist()} == {up[1].item(), down[1].item()}
    assert is_same(found[:, 2:5], given[2:5].expand(50, 3).contiguous())
    assert {*found[:, 5].tolist()} == {down[5].item()}


def test_noise_is_measured_per_value_and_used() -> None:
    torch.manual_seed(0)
    # The second layer cancels: rounding in the first is a large part of what remains.
    first, last = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    model = nn.Sequential(first, nn.Identity(), last)
    x = torch.randn(5, 64)

    def lossy(scale: float) -> clew.Trace:
        with torch.no_grad(), clew.trace(model, values="stats") as t:
            y = first(x)
            last((y * scale + 3e3) - 3e3)
        return t

    def run() -> object:
        with torch.no_grad():
            return last((first(x) * 1.0 + 3e3) - 3e3)

    noise = clew.calibrate(run, model=model)
    a, b = lossy(1.0), lossy(1.0000003)
    assert not clew.diff(a, b).equal
    found = clew.diff(a, b, tol=noise)
    assert found.equal, str(found)
    assert str(noise) in found.notes
    assert not clew.diff(a, lossy(1.02), tol=noise).equal
    levels = {key.split("/")[2]: level for key, level in noise.values.items()}
    assert levels["aten.sub.Tensor#0"] > 20 * levels["aten.mul.Tensor#0"]


def test_the_noise_is_data_and_says_what_it_is() -> None:
    model = nn.Linear(8, 8)
    x = torch.ones(3, 8)
    noise = clew.calibrate(lambda: model(x), n=2, model=model)
    assert repr(noise).startswith("<Noise of 4 runs: ")
    assert str(noise).startswith("noise of 4 runs, 2 with perturbed weights: ")
    data = noise.to_dict()
    assert (data["runs"], data["perturbed"]) == (4, 2)
    assert any("/aten.addmm.default#0/0" in key for key in data["values"])
    assert data["dtypes"] == {"float32": 1e-05}
    # Without a model the names begin with its class, and are found all the same.
    named = clew.calibrate(lambda: model(x))
    with clew.trace(model, values="stats") as t:
        model(x)
    assert clew.diff(t, t, tol=named).equal


def test_wrong_questions_are_said_to_be() -> None:
    with pytest.raises(clew.ClewError, match=r"calibrate\(n=1\): noise is measured between runs"):
        clew.calibrate(lambda: None, n=1)
    with pytest.raises(clew.ClewError, match="takes a torch module, not function"):
        clew.calibrate(lambda: None, model=lambda: None)  # type: ignore[arg-type]
    with pytest.raises(clew.ClewError, match="give at least one repeat"), clew.trace() as t:
        clew.noise_of(t)


def test_saved_repeats_say_what_noise_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 32), torch.randn(32, 32)
    names = []
    for number, factor in enumerate((1, 1.001, 1.002, 1.003, 1.5)):
        with clew.trace(values="stats") as t:
            (x @ weight * factor).sin()
        names.append(str(tmp_path / f"{number}.clew"))
        t.save(names[-1])
    a, a2, a3, b, c = names
    assert main(["diff", a, b]) == 1
    capsys.readouterr()
    assert main(["diff", a, b, "--noise", a2, a3]) == 0
    assert "noise of 3 runs: " in capsys.readouterr().out
    assert main(["diff", a, c, "--noise", a2, a3]) == 1
    assert main(["diff", a, c, "--tol", "1", "--noise", a2]) == 2
    assert "both say what counts as rounding" in capsys.readouterr().err
    assert clew.diff(a, b, tol=clew.noise_of(a, a2, a3)).equal
