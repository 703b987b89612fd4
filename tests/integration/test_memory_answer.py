"""`t.memory()` and `clew mem`: the peak, what was alive then, what grows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from accuracy import memory as figures
from accuracy.memory_programs import PROGRAMS
from clew.analysis.memory.memory_model import MemoryMoment
from clew.cli.main import main

SAMPLE = ("cnn-sgd", "gpt-checkpointed", "lstm-sparse", "unet-adam", "losses-with-graphs")


def test_figures_agree_with_a_count_of_live_storages() -> None:
    found = list(figures.figures(os.environ["CLEW_ENGINE"], SAMPLE))
    assert [one for one in found if not one.is_right] == []
    assert len(found) >= 30
    assert min(one.expected for one in found if "peak" in one.name) > 10_000


def test_the_list_of_programs_is_long_enough() -> None:
    assert len(PROGRAMS) >= 15


class Net(nn.Module):
    """Two layers; the first makes far more than the second."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 256)
        self.last = nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.wide(x))
        return self.last(hidden)


def train(net: Net, optimizer: torch.optim.Optimizer, t: Any, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.ones(64, 16)).sum()
        loss.backward()
        optimizer.step()
        t.step()


def kinds(moment: MemoryMoment | None) -> dict[str, int]:
    assert moment is not None
    return {group.name: group.bytes for group in moment.kinds}


@pytest.fixture(scope="module")
def trained() -> clew.Trace:
    torch.manual_seed(0)
    net = Net()
    with clew.trace(net) as t:
        train(net, torch.optim.Adam(net.parameters()), t)
    return t


PARAMETERS = 4 * (16 * 256 + 256 + 256 * 4 + 4)


def test_kinds_by_arithmetic(trained: clew.Trace) -> None:
    memory = trained.memory()
    last_forward = [op for op in trained.ops if op.phase == "forward" and op.step == 1][-1]
    found = kinds(memory.at(last_forward))
    # x and the result of relu; what sum takes is an output that the program has dropped.
    assert found["saved for backward"] == 4 * (64 * 16 + 64 * 256)
    assert found["parameters"] == PARAMETERS
    assert found["optimizer state"] == 2 * PARAMETERS + 4 * 4
    assert "gradients" not in found  # zero_grad came before
    last = kinds(memory.at(trained.ops[-1]))
    assert last["gradients"] == PARAMETERS
    assert "saved for backward" not in last


def test_groups_add_up_to_the_bytes_alive(trained: clew.Trace) -> None:
    memory = trained.memory()
    for moment in (memory.peak, memory.at(0), memory.at(trained.ops[7])):
        assert moment is not None
        for grouping in ("kind", "module", "line"):
            assert sum(group.bytes for group in moment.by(grouping)) == moment.bytes
            for group in moment.by(grouping):
                assert sum(group.kinds.values()) == group.bytes


def test_modules_and_lines(trained: clew.Trace) -> None:
    last_forward = [op for op in trained.ops if op.phase == "forward" and op.step == 1][-1]
    moment = trained.memory().at(last_forward)
    modules = {group.name: group.kinds for group in moment.modules}
    assert modules["wide"]["parameters"] == 4 * (16 * 256 + 256)
    assert modules["wide"]["optimizer state"] == 2 * 4 * (16 * 256 + 256)
    assert modules["the root module"] == {"saved for backward": 4 * 64 * 256}
    lines = {group.source.text: group for group in moment.lines if group.source is not None}
    assert lines["hidden = torch.relu(self.wide(x))"].bytes == 4 * 64 * 256
    assert lines["optimizer.step()"].kinds == {"optimizer state": 2 * PARAMETERS + 16} or (
        # numbers that the python engine sees only as they are lifted into a tensor
        lines["optimizer.step()"].kinds == {"optimizer state": 2 * PARAMETERS}
    )


def test_steps_and_timeline(trained: clew.Trace) -> None:
    memory = trained.memory()
    (device,) = memory.devices
    assert [one.step for one in device.steps] == [0, 1, 2]
    assert max(one.peak for one in device.steps) == device.peak.bytes == max(device.timeline)
    assert device.steps[1].peak == memory.at(1).bytes
    assert memory.growth is None


def test_a_moment_that_is_not_there(trained: clew.Trace) -> None:
    with pytest.raises(clew.ClewError, match="no step 7; it has 0, 1, 2"):
        trained.memory().at(7)
    with clew.trace() as t:
        pass
    assert t.memory().devices == ()
    assert str(t.memory()).startswith("no memory of tensors was seen")
    with pytest.raises(clew.ClewError, match="no memory"):
        t.memory().at(0)


def test_saved_and_streamed_traces_say_the_same(tmp_path: Path) -> None:
    answers = []
    for out in (None, tmp_path / "streamed.clew"):
        torch.manual_seed(0)
        net = Net()
        with clew.trace(net, out=out) as t:
            train(net, torch.optim.Adam(net.parameters()), t)
        t.save(tmp_path / "saved.clew")
        saved = clew.load(tmp_path / "saved.clew")
        answers += [
            t.memory().to_dict(),
            saved.memory().to_dict(),
            clew.load(out or tmp_path / "saved.clew").memory().to_dict(),
        ]
        for answer in answers[-2:]:
            assert answer == answers[-3]
    for answer in (answers[0], answers[-1]):
        # A batch that ends with a step has its frees before the mark of the next one.
        del answer["devices"][0]["timeline"]
    assert answers[0] == answers[-1]
    assert json.loads(json.dumps(answers[0]))["devices"][0]["peak"]["bytes"] > PARAMETERS


def test_a_part_of_a_run(trained: clew.Trace) -> None:
    whole = trained.memory()
    assert trained.only(step=1).memory().devices[0].peak.bytes == whole.at(1).bytes
    forward = trained.only(phase="forward").memory().devices[0]
    assert forward.peak.bytes <= whole.devices[0].peak.bytes


def test_a_ring_says_what_came_before_it() -> None:
    net = Net()
    with clew.trace(net, limits=clew.Limits(last=200)) as t:
        train(net, torch.optim.Adam(net.parameters()), t, steps=12)
    memory = t.memory()
    found = kinds(memory.peak)
    assert found["parameters"] == PARAMETERS
    assert found["optimizer state"] >= 2 * PARAMETERS
    assert memory.growth is None
    assert any("are not in this trace any more" in note for note in memory.notes)


def _loop(keep: Callable[[Tensor], Any], backward: bool = False) -> clew.Trace:
    net, kept = Net(), []
    with clew.trace(net) as t:
        for _ in range(8):
            loss = net(torch.ones(64, 16)).sum()
            if backward:
                loss.backward()
            kept.append(keep(loss))
            t.step()
    return t


def test_graphs_that_are_kept_are_found_to_grow() -> None:
    t = _loop(lambda loss: loss)
    growth = t.memory().growth
    assert growth is not None
    # x, the result of relu, and the loss
    assert growth.per_step == pytest.approx(4 * (64 * 16 + 64 * 256 + 1), rel=0.1)
    assert growth.has_graph
    assert growth.lines[0].source is not None
    assert "torch.relu" in growth.lines[0].source.text
    assert growth.event.source is not None
    assert growth.event.source.text == "loss = net(torch.ones(64, 16)).sum()"
    (finding,) = [one for one in t.findings if one.kind == "memory"]
    assert finding.severity == "warning"
    assert finding.event == growth.event
    assert "store .detach() or .item()" in finding.text


@pytest.mark.parametrize("keep", [Tensor.item, Tensor.detach])
@pytest.mark.parametrize("backward", [False, True])
def test_what_is_kept_without_its_graph_is_no_finding(keep: Any, backward: bool) -> None:
    t = _loop(keep, backward)
    assert t.memory().growth is None
    assert [one for one in t.findings if one.kind == "memory"] == []


def test_a_cache_that_is_bounded_does_not_grow() -> None:
    net: Any = nn.Linear(64, 64)
    kept: list[Tensor] = []
    with torch.no_grad(), clew.trace(net) as t:
        for _ in range(12):
            kept.append(net(torch.ones(64, 64)))
            del kept[:-4]
            t.step()
    assert t.memory().growth is None


def test_results_kept_without_a_graph_grow_too() -> None:
    net: Any = nn.Linear(64, 64)
    kept: list[Tensor] = []
    with torch.no_grad(), clew.trace(net) as t:
        for _ in range(8):
            kept.append(net(torch.ones(64, 64)))
            t.step()
    growth = t.memory().growth
    assert growth is not None
    assert not growth.has_graph
    assert growth.per_step >= 4 * 64 * 64
    assert "let go of it" in str(t.memory())


def test_detached_results_of_layers_are_no_graph() -> None:
    net: Any = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    kept: list[Tensor] = []
    for layer in net:
        layer.register_forward_hook(lambda _module, _given, made: kept.append(made.detach()))
    with clew.trace(net) as t:
        for _ in range(8):
            net(torch.ones(64, 64)).sum().backward()
            t.step()
    growth = t.memory().growth
    assert growth is not None
    assert growth.per_step == 4 * 64 * 64 * 3
    assert not growth.has_graph
    (finding,) = [one for one in t.findings if one.kind == "memory"]
    assert "graph" not in finding.text


def test_what_a_function_collects_until_it_returns_grows() -> None:
    net = Net()

    def train(t: Any) -> None:
        total = torch.zeros(())
        for _ in range(8):
            total = total + net(torch.ones(64, 16)).sum()
            t.step()

    with clew.trace(net) as t:
        train(t)
        net(torch.ones(64, 16))
    growth = t.memory().growth
    assert growth is not None
    assert growth.has_graph
    assert growth.per_step == pytest.approx(4 * (64 * 16 + 64 * 256 + 1), rel=0.1)


def test_a_few_bytes_a_step_are_no_growth() -> None:
    net: Any = nn.Linear(4, 2)
    states: list[Tensor] = []
    with torch.no_grad(), clew.trace(net) as t:
        for _ in range(12):
            states.append(torch.randn(1, 4))
            net(states[-1])
            t.step()
    assert t.memory().growth is None


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell])
def test_the_parts_of_a_recurrent_cell_are_freed(cell: Any) -> None:
    net = cell(16, 32)
    with clew.trace(net) as t:
        for _ in range(8):
            made = net(torch.ones(8, 16))
            (made[0] if isinstance(made, tuple) else made).sum().backward()
            t.step()
    assert t.memory().growth is None
    sizes = [step.end for step in t.memory().devices[0].steps[1:]]
    assert max(sizes) - min(sizes) < sizes[0] / 10


def test_advice_is_what_the_figures_show() -> None:
    def advice(zero_first: bool, width: int) -> str:
        net: Any = nn.Sequential(nn.Linear(16, width), nn.Linear(width, 4))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with clew.trace(net) as t:
            for _ in range(3):
                if zero_first:
                    optimizer.zero_grad()
                loss = net(torch.ones(16, 16)).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                t.step()
        return str(t.memory())

    assert "until zero_grad() frees them after the forward pass" in " ".join(
        advice(False, 512).split()
    )
    assert "zero_grad()" not in advice(True, 512)


def test_no_gradient_asked_for_is_all_temporary() -> None:
    net = Net()
    with torch.no_grad(), clew.trace(net) as t:
        net(torch.ones(64, 16))
    assert set(kinds(t.memory().peak)) == {"parameters", "temporary"}


def test_a_forward_without_backward_says_that_it_cannot_tell() -> None:
    net = Net()
    with clew.trace(net) as t:
        loss = net(torch.ones(64, 16)).sum()
        torch.zeros(100_000)
    memory = t.memory()
    assert memory.peak is not None
    assert memory.peak.unproven == kinds(memory.peak)["saved for backward"] > 4 * 64 * 256
    assert "met no backward pass in this trace" in str(memory)
    assert loss.requires_grad


def test_modules_alone_and_parameters_that_meet_no_op() -> None:
    net = Net()
    with clew.trace(net, level="modules") as t:
        net(torch.ones(64, 16))
    assert any("ops were not recorded" in note for note in t.memory().notes)
    with clew.trace(net) as t:
        F.linear(torch.ones(2, 16), net.wide.weight)
        net.last(torch.ones(2, 256))
    (note,) = [note for note in t.memory().notes if "met no recorded op" in note]
    assert note.startswith("1 parameter of the model (256 elements)")


def test_ranks_are_counted_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        net = Net()
        with clew.trace(net, out=tmp_path / "run.clew") as t:
            net(torch.ones(64 * (1 + rank), 16)).sum().backward()
            t.step()
    t = clew.load(tmp_path / "run.clew")
    assert t.ranks == [0, 1]
    memory = t.memory()
    assert [one.rank for one in memory.devices] == [1, 0]
    for rank in (0, 1):
        alone = t.only(rank=rank).memory().devices[0]
        (device,) = [one for one in memory.devices if one.rank == rank]
        assert device.peak.to_dict()["by_kind"] == alone.peak.to_dict()["by_kind"]
        assert device.peak.bytes > (1 + rank) * 4 * 64 * 256
    assert "rank 0 cpu: peak" in str(memory)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run.clew")
    _loop(Tensor.item, backward=True).save(folder)
    assert main(["mem", folder]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("peak ")
    for words in ("by kind", "by line", "by module", "parameters", "saved for backward"):
        assert words in printed
    assert max(map(len, printed.splitlines())) < 160
    assert len(printed.splitlines()) < 45
    assert main(["mem", folder, "--by", "line", "--rows", "1"]) == 0
    printed = capsys.readouterr().out
    assert "by module" not in printed
    assert "more left out; --rows N shows more" in printed
    assert main(["mem", folder, "--by", "module", "--rows", "2", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert len(device["peak"]["by_module"]) == 2
    assert "by_line" not in device["peak"]
    _loop(lambda loss: loss).save(folder)
    assert main(["mem", folder]) == 1
    assert "memory grows" in capsys.readouterr().out
