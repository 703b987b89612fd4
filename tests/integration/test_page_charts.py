"""What the charts of the page are made of: figures of layers, memory and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.analysis.memory.memory_answer import memory_search
from clew.analysis.memory.memory_curve import memory_curve
from clew.analysis.memory.memory_kinds import KINDS
from clew.run.event import Event
from clew.run.run import Run
from tests.integration.test_report import Opened


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 64)
        self.last = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.wide(x)))


def trained(steps: int = 3, **options: Any) -> clew.Trace:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    with clew.trace(net, **options) as t:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.ones(16, 8)).sum().backward()
            optimizer.step()
            t.step()
    return t


def opened(t: clew.Trace, tmp_path: Path, **options: Any) -> Opened:
    return Opened(t.html(tmp_path / "r.html", **options).path.read_text())


def shown(t: clew.Trace) -> list[Event]:
    """The events that a page holds, row by row."""
    return [event for event in t.events if event.kind != "composite"]


def run_of(t: clew.Trace) -> Run:
    return t.events[0]._run


def test_layers_have_the_statistics_of_the_calls(tmp_path: Path) -> None:
    t = trained(values="stats")
    page = opened(t, tmp_path)
    head = page.trace["layers"]
    assert head["paths"] == ["", "wide", "last"]
    assert head["classes"] == ["Net", "Linear", "Linear"]
    assert head["depths"] == [0, 1, 1]
    assert head["columns"] == [[0, 0], [1, 1], [2, 2]]
    path, column = page.column("0.layers.path"), page.column("0.layers.column")
    event, std = page.column("0.layers.event"), page.column("0.layers.std")
    time = page.column("0.layers.time")
    assert len(path) == 9
    for at in range(9):
        call = shown(t)[int(event[at]) - 1]
        assert (call.module, call.step) == (head["paths"][path[at]], column[at])
        stats = call.outputs["0"].stats
        assert stats is not None
        assert std[at] == pytest.approx(stats.std, rel=1e-6)
        assert call.duration is not None
        assert time[at] == pytest.approx(call.duration * 1e9, rel=1e-6)


def test_several_calls_in_a_step_are_one_entry_with_the_worst_first(tmp_path: Path) -> None:
    layer = nn.Tanh()
    with clew.trace(layer, values="stats") as t:
        layer(torch.ones(4))
        layer(torch.tensor([torch.nan, 1.0, 0.0, 0.5]))
        layer(torch.zeros(4))
    page = opened(t, tmp_path)
    assert page.column("0.layers.calls").tolist() == [3]
    assert page.column("0.layers.nan").tolist() == [pytest.approx(1 / 12)]
    assert page.column("0.layers.zeros").tolist() == [pytest.approx(5 / 12)]
    assert shown(t)[int(page.column("0.layers.event")[0]) - 1].call == 1


def test_data_kept_without_statistics_counts_as_taken(tmp_path: Path) -> None:
    t = trained(capture=["wide", "**:grad"])
    page = opened(t, tmp_path)
    assert page.trace["layers"]["taken"] is True
    taken = page.column("0.layers.taken")
    path = page.column("0.layers.path")
    assert set(path[taken > 0].tolist()) == {1}
    value = t["wide#0"].output.array()
    std = page.column("0.layers.std")[path == 1]
    assert std[0] == pytest.approx(value.std(), rel=1e-5)
    gradients = page.trace["gradients"]
    assert gradients["names"] == ["wide.weight", "wide.bias", "last.weight", "last.bias"]
    name, step = page.column("0.gradients.name"), page.column("0.gradients.step")
    norm = page.column("0.gradients.norm")[(name == 2) & (step == 1)]
    expected = np.linalg.norm(t["last.weight:grad"].values[1].array())
    assert norm.tolist() == [pytest.approx(expected, rel=1e-5)]


def test_long_runs_have_several_steps_in_a_column(tmp_path: Path) -> None:
    layer = nn.Identity()
    with clew.trace(layer, level="modules") as t:
        for _ in range(900):
            layer(torch.ones(1))
            t.step()
    page = opened(t, tmp_path)
    head = page.trace["layers"]
    assert len(head["columns"]) == 300
    assert head["columns"][0][0] == 0
    assert head["columns"][-1][1] == 899
    ends = [last for _, last in head["columns"][:-1]]
    assert ends == [first - 1 for first, _ in head["columns"][1:]]
    spent = [call.duration or 0.0 for call in t.modules][:3]
    assert page.column("0.layers.time")[0] == pytest.approx(sum(spent) / 3 * 1e9, rel=1e-5)


def test_memory_of_every_moment_is_what_the_analysis_says(tmp_path: Path) -> None:
    t = trained()
    memory = t.memory()
    search = memory_search(run_of(t))
    curve = memory_curve(search, 0, 0, 10_000)
    assert len(curve.row) == len(t.events)
    for at in range(0, len(curve.row), 7):
        moment = memory.at(t.events[int(curve.row[at])])
        bytes_of = dict(zip(KINDS, curve.kinds[at].tolist(), strict=True))
        assert {kind: size for kind, size in bytes_of.items() if size} == {
            group.name: group.bytes for group in moment.kinds
        }
        largest = curve.largest[at][curve.largest[at] >= 0]
        sizes = search.lives.size[largest].tolist()
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) == min(10, sum(group.count for group in moment.kinds))
    page = opened(t, tmp_path)
    device = page.trace["memory"]["devices"][0]
    assert memory.peak is not None
    assert device["bytes"] == memory.peak.bytes
    assert shown(t)[device["row"]] == memory.peak.event
    kinds = page.column("0.memory.kinds").reshape(device["points"], len(KINDS))
    assert kinds.sum(axis=1).max() == memory.peak.bytes
    # The same peak in far fewer moments.
    assert memory_curve(search, 0, 0, 9).kinds.sum(axis=1).max() == memory.peak.bytes


def test_bytes_made_are_those_of_new_storages(tmp_path: Path) -> None:
    model = nn.Linear(4, 8, bias=False)
    with clew.trace(model) as t, torch.no_grad():
        model(torch.ones(2, 4)).view(16)
    made = opened(t, tmp_path).column("0.memory.made")
    by_name = {event.name: int(made[row]) for row, event in enumerate(shown(t))}
    assert by_name["aten.mm.default"] == 2 * 8 * 4
    assert by_name["aten.view.default"] == 0


def test_updates_are_those_captured(tmp_path: Path) -> None:
    t = trained(values="stats", capture=["**:update"])
    page = opened(t, tmp_path)
    assert page.trace["gradients"]["updates"] is True
    name, step = page.column("0.gradients.name"), page.column("0.gradients.step")
    update = page.column("0.gradients.update")
    for at, parameter in enumerate(page.trace["gradients"]["names"]):
        values = t[f"{parameter}:update"].values
        for number, value in enumerate(values):
            (found,) = update[(name == at) & (step == number)]
            assert found == pytest.approx(np.linalg.norm(value.array()), rel=1e-5)


def test_without_gradients_it_says_how_to_record_them(tmp_path: Path) -> None:
    with clew.trace(Net()) as t:
        Net()(torch.ones(1, 8))
    assert "capture=['**:grad', '**:param']" in opened(t, tmp_path).trace["gradients"]["why"]
    assert "values='stats'" in opened(trained(1), tmp_path).trace["gradients"]["why"]


def test_events_left_out_of_the_page_still_count(tmp_path: Path) -> None:
    t = trained(20, values="stats")
    page = opened(t, tmp_path, events=100)
    event = page.column("0.layers.event")
    assert len(event) == 60
    assert 0 < (event == 0).sum() < 60
    assert not np.isnan(page.column("0.layers.std")).any()


def test_a_wrapper_and_its_model_are_two_rows(tmp_path: Path) -> None:
    model = torch.nn.DataParallel(Net(), device_ids=[])
    with clew.trace(model) as t:
        model(torch.ones(1, 8))
    head = opened(t, tmp_path).trace["layers"]
    rows = list(zip(head["paths"], head["classes"], strict=True))
    assert rows[:2] == [("", "DataParallel"), ("", "Net")]
    assert head["depths"][:3] == [0, 1, 2]
