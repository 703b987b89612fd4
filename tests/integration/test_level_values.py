"""`level="values"`: the values that were asked for, and no calls around them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import clew
from clew import Callbacks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.tail = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        clew.tap("mid", h * 2)
        return self.tail(h).sum()


ASKED = ["tail.0", "tail:in", "forward.h", "fc.weight:grad", "tail.1:grad"]


def trained(level: str, steps: int = 2, **settings: object) -> clew.Trace:
    torch.manual_seed(0)
    model = Net()
    with clew.trace(model, level=level, **settings) as t:  # type: ignore[arg-type]
        for step in range(steps):
            model(torch.full((1, 3), 1.0 + step)).backward()
            t.step()
    return t


def test_it_has_the_values_of_a_whole_trace_and_nothing_else() -> None:
    t, whole = trained("values", capture=ASKED), trained("modules", capture=ASKED)
    assert not t.coverage
    for address in [*ASKED, "mid"]:
        found, wanted = t.series(address), whole.series(address)
        assert len(found) == 2, address
        assert found.steps == wanted.steps
        for one, other in zip(found.stack(), wanted.stack(), strict=True):
            assert (one == other).all(), address
    assert {event.kind for event in t.events} == {"variable", "tap", "grad", "step"}
    assert all(event.parent is None for event in t.events)
    assert "module call" not in str(t.tree())
    assert "tail.0 ×2" in str(t.tree())


def test_source_lines_are_those_of_the_program() -> None:
    t = trained("values", capture=["tail.0"])
    [first, _] = [event for event in t.events if event.name == "0"]
    assert first.source is not None
    assert first.source.text == "return self.tail(h).sum()"


def test_callbacks_leave_nothing_behind_but_steps() -> None:
    got: list[float] = []

    def taken(value: Tensor) -> None:
        got.append(value.sum().item())

    t = trained("values", 50, callbacks={"fc": Callbacks(save=taken, keep=False)})
    assert len(got) == 50
    assert {event.kind for event in t.events} - {"tap"} == {"step"}


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    t = trained("values", capture=["tail.0"], out=tmp_path / "run.clew")
    loaded = clew.load(tmp_path / "run.clew")
    assert (loaded.series("tail.0").stack() == t.series("tail.0").stack()).all()
    assert str(loaded.tree()).startswith("values alone: ")


def test_what_fails_is_told_with_its_line() -> None:
    model = Net()
    with (
        pytest.raises(RuntimeError) as raised,
        clew.trace(model, level="values", capture=["fc"]) as t,
    ):
        model(torch.ones(1, 4))
    assert raised.value.__notes__[0].startswith("clew: RuntimeError raised\n  at ")
    assert "h = self.fc(x)" in raised.value.__notes__[0]
    assert [str(gap) for gap in t.coverage] == [
        "an address to capture at fc: every call of it raised, so it has no result; "
        "capture fc:in for what it was given"
    ]


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_a_module_that_always_raises_is_not_said_to_go_past_hooks(level: str) -> None:
    model = Net()
    with pytest.raises(RuntimeError), clew.trace(model, level=level, capture=["fc"]) as t:
        model(torch.ones(1, 4))
    assert "every call of it raised" in str(t.coverage[0])


def test_a_live_listener_hears_of_values_alone(capsys: pytest.CaptureFixture[str]) -> None:
    trained("values", 1, capture=["tail.0"], live=True)
    shown = capsys.readouterr().out
    assert (
        "return self.tail(h).sum()  # test_level_values.py:24 in Net.forward\n│ 0 = f32[1,2]"
        in shown
    )
    assert "Linear" not in shown
