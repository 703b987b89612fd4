"""Two training runs: which step differs, and what it is. A sample of `make accuracy`, and more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clew
from accuracy.training_faults import CLEAN, FAULTS, NOISY
from accuracy.training_pairs import outcome
from accuracy.training_unseen import UNSEEN

ALL = {f"{one.program}: {one.name}": one for one in (*CLEAN, *FAULTS)}
SAMPLE = (
    "classifier: two batches swapped", "classifier: a draw more", "convnet: a bias set to zero",
    "classifier: detached", "classifier: gradients never cleared", "convnet: other schedule",
    "classifier: eval mode", "classifier: a step fewer", "classifier: a hook on a gradient",
    "classifier: evaluation between steps", "classifier: foreach",
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_the_cause_the_step_and_the_place_are_named(name: str, engine: str) -> None:
    found = outcome(ALL[name], engine)
    assert (found.kind, found.step, found.place) == (True, True, True), found.said


def test_drift_by_rounding_is_no_difference() -> None:
    def run(factor: float) -> clew.Trace:
        torch.manual_seed(0)
        # The bias before the norm has no gradient but rounding, which Adam makes large.
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        for weight in model.parameters():
            weight.data *= factor
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with clew.trace(model, values="fingerprint") as t:
            for x in [*batches(0), *batches(1), *batches(2)]:
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
        return t

    found = clew.diff(run(1.0), run(1 + 1.2e-7))
    assert found.equal, found.text()
    worst = max(found.steps, key=lambda row: row.worst_error or 0.0)
    assert (worst.worst, (worst.worst_error or 0.0) > 1e-3) == ("0.bias", True)


def test_the_lists_are_long_enough() -> None:
    faults = [one for one in (*FAULTS, *UNSEEN, *NOISY) if one.cause is not None]
    clean = [one for one in (*CLEAN, *UNSEEN, *NOISY) if one.cause is None]
    assert len({one.cause for one in faults}) == 9
    assert len({one.name for one in faults}) >= 60
    assert len({(one.program, one.name) for one in clean}) >= 30


def batches(seed: int, bad: int | None = None) -> Iterator[torch.Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    for step in range(4):
        x = torch.randn(6, 4, generator=numbers)
        yield x * 2 if step == bad else x


def trained(seed: int = 0, bad: int | None = None, lr: float = 0.1) -> clew.Trace:
    given = [*batches(seed, bad)]
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with clew.trace(model, values="stats") as t:
        for x in given:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return t


def test_a_batch_made_outside_is_named_by_its_step() -> None:
    found = clew.diff(trained(), trained(bad=2))
    first = found.first
    assert first is not None
    assert (first.kind, first.cause, first.step) == ("inputs", "data", 2)
    assert found.text().startswith("the batch of step 2 differs: first at aten.")
    assert [row.agrees for row in found.steps] == [True, True, False, False]
    assert found.steps[1].parameters == 0
    assert found.steps[2].losses[0] != found.steps[2].losses[1]


def test_the_answer_is_plain_data() -> None:
    found = json.loads(json.dumps(clew.diff(trained(), trained(lr=0.2)).to_dict()))
    assert (found["first"]["cause"], found["first"]["step"]) == ("optimizer", 0)
    assert "lr is 0.1 in a, 0.2 in b" in found["first"]["evidence"]
    assert [row["step"] for row in found["steps"]] == [0, 1, 2, 3]
    assert clew.diff(trained(), trained()).steps[3].parameters == 0


def test_a_small_change_of_a_setting_is_no_rounding() -> None:
    found = clew.diff(trained(), trained(lr=0.1 + 1e-7))
    assert found.first is not None
    assert found.first.cause == "optimizer"
    assert any("lr is 0.1 in a" in said for said in found.first.evidence)


def test_gradients_without_an_optimizer_are_compared() -> None:
    def run(wrong: bool) -> clew.Trace:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        with clew.trace(model, values="fingerprint") as t:
            h = model[:2](x)
            if wrong:
                h.register_hook(lambda gradient: gradient * 2)
            model[2](h).sum().backward()
        return t

    assert clew.diff(run(False), run(False)).equal
    first = clew.diff(run(False), run(True)).first
    assert first is not None
    assert first.cause == "gradient"


def test_parameters_of_a_model_made_while_recording_have_names(engine: str) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            F.mse_loss(model(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
            optimizer.step()

    with clew.trace(values="stats") as t:
        train()
    named = {value.name for event in t.ops for value in event.inputs.values()} - {None}
    assert named >= {"Sequential.0.weight", "Sequential.1.bias"}
