"""Steps: train and eval steps are told apart, by the model's `training`, and counted apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import clew
from clew.cli.main import main
from tests.same_trace import facts_of

TRAIN_EVAL = {0: "train", 1: "train", 2: "eval", 3: "eval", 4: "train"}


def train_and_eval(t: clew.Trace, model: nn.Module, first: bool = False) -> None:
    """Two train steps, two eval steps, a train step; `t.step()` before or after each."""
    for number in range(5):
        if first and number:
            t.step()
        model.train(number not in (2, 3))
        nn.CrossEntropyLoss()(model(torch.full((1, 2), float(number))), torch.tensor([0]))
        if not first:
            t.step()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_steps_know_their_mode(named: bool, first: bool, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model if named else None, values="full") as t:
        train_and_eval(t, model, first)
    assert t.modes == TRAIN_EVAL
    assert t.steps == [0, 1, 2, 3, 4]
    loaded = clew.load(t.save(tmp_path / "saved.clew"))
    assert loaded.modes == TRAIN_EVAL
    with clew.trace(model, values="full", out=tmp_path / "run.clew") as streamed:
        train_and_eval(streamed, model, first)
    loaded = clew.load(tmp_path / "run.clew")
    assert loaded.modes == TRAIN_EVAL
    assert facts_of(loaded) == facts_of(streamed)


def test_a_series_of_one_mode() -> None:
    model = nn.Identity()
    with clew.trace(model, values="full") as t:
        train_and_eval(t, model)
    series = t.series("")
    assert series.steps == [0, 1, 2, 3, 4]
    assert series.modes == ["train", "train", "eval", "eval", "train"]
    assert series.counts == [0, 1, 0, 1, 2]
    evaluated = t.series("", mode="eval")
    assert evaluated.steps == [2, 3]
    assert evaluated.counts == [0, 1]
    assert evaluated.stack()[:, 0, 0].tolist() == [2, 3]
    assert t.series("", mode="train").stack()[:, 0, 0].tolist() == [0, 1, 4]


def test_a_mode_without_values_is_an_error() -> None:
    model = nn.Identity()
    with clew.trace(model, values="full") as t:
        model(torch.ones(1))
        t.step()
        torch.ones(1)
    with pytest.raises(clew.ClewError, match="'' has no values of eval steps, only 1 of train"):
        t.series("", mode="eval")
    mixed = "only 1 of train steps, 1 of steps in which no model ran"
    with pytest.raises(clew.ClewError, match=mixed):
        t.series("op:*", mode="eval")
    with pytest.raises(clew.ClewError, match="mode='valid' is not one of 'train', 'eval', None"):
        t.series("", mode="valid")


def test_the_model_named_decides_not_what_runs_beside_it() -> None:
    model, frozen = nn.Linear(2, 2), nn.Identity().eval()
    with clew.trace({"model": model, "frozen": frozen}) as t:
        frozen(torch.ones(1, 2))
        model(torch.ones(1, 2))
    assert t.modes == {0: "train"}


def test_a_wrapped_model_decides_too() -> None:
    model = nn.Linear(2, 2).eval()
    wrapper = nn.Sequential(model).train()
    model.eval()
    with clew.trace(model) as t:
        wrapper(torch.ones(1, 2))
    assert t.modes == {0: "eval"}


def test_steps_without_a_model_have_no_mode() -> None:
    with clew.trace() as t:
        torch.ones(1)
        t.step()
        nn.ReLU()(torch.ones(1))
    assert t.modes == {1: "train"}
    assert t.series("op:aten.ones.default").modes == [None, "train"]


def test_a_crashed_step_has_a_mode_and_steps_not_recorded_have_none() -> None:
    model = nn.Linear(2, 2).eval()
    with clew.trace(model, schedule=clew.schedule(every=2)) as t:
        for _ in range(4):
            model(torch.ones(1, 2))
            t.step()
    assert t.modes == {1: "eval", 3: "eval"}
    crashed = clew.trace(model)
    with pytest.raises(RuntimeError), crashed:
        model(torch.ones(1, 3))
    assert crashed.modes == {0: "eval"}


def test_info_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model, out=tmp_path / "run.clew") as t:
        train_and_eval(t, model)
    assert main(["info", str(tmp_path / "run.clew")]) == 0
    assert "(3 train, 2 eval)" in capsys.readouterr().out
