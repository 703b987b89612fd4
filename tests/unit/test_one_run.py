"""One run over all ranks: parts of it, ranks that lack something, facts of a streamed trace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import clew

TRACES = Path(__file__).parents[1] / "corpus" / "traces"


class Loss(nn.Module):
    """A model whose call is open while the trace is written several times."""

    def __init__(self, t: clew.Trace) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.t = t

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.fc(x).sum()
        for _ in range(4):
            self.t.flush()
        return loss


def facts(t: clew.Trace) -> list[tuple[object, ...]]:
    return [(e.id, e.address, e.module, e.step, e.forward and e.forward.id) for e in t.events]


def test_a_call_that_is_written_while_open_keeps_later_facts_right(tmp_path: Path) -> None:
    """The gradient a pass begins with belongs to the module that made the loss, batch or not."""
    t = clew.trace(out=tmp_path / "run.clew")
    model = Loss(t)
    with t:
        for _ in range(8):
            model(torch.ones(1, 2)).backward()
            t.step()
    loaded = clew.load(tmp_path / "run.clew")
    assert [e.module for e in loaded["op:aten.ones_like"]] == ["Loss"] * 8
    whole = [(c, None) for c, _ in loaded._current_run().parts]
    for columns, _ in whole:
        columns.derived = None
    again = clew.Trace(type(loaded._current_run())({0: whole[0][0]}))
    assert facts(again) == facts(clew.load(tmp_path / "run.clew"))


def test_a_rank_that_says_nothing_of_its_beginning_moves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.clew"
    shutil.copytree(TRACES / "equal_ranks.clew", path)
    for file in (path / "rank=00001").iterdir():
        file.unlink()
    t = clew.load(path)
    assert 0 <= t.events[0].start < 10
    assert {e.rank for e in t.events} == {0}
    assert not [f for f in t.findings if f.kind == "ranks"]
    t.export("chrome", tmp_path / "run.json")


def test_an_empty_trace_exports_to_chrome(tmp_path: Path) -> None:
    with clew.trace(nn.Linear(1, 1)) as t:
        pass
    t.export("chrome", tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"]


def test_addresses_hold_in_a_part_of_a_run() -> None:
    t = clew.load(TRACES / "steps.clew").only(step=1)
    ops = [event for event in t.ops if event.phase != "recompute"]
    assert ops[0].call > 0
    assert [t[event.address].one for event in ops] == ops


def test_the_steps_of_a_part_keep_their_numbers_in_chrome(tmp_path: Path) -> None:
    t = clew.load(TRACES / "steps.clew").only(step=[1, 3])
    t.export("chrome", tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    named = {e["name"] for e in events if e.get("cat") == "step"}
    assert named <= {"step 1", "step 3"}


def test_what_was_made_before_a_part_is_not_said_to_come_with_the_data() -> None:
    t = clew.load(TRACES / "nan_op.clew").only(phase="backward")
    found = t.nonfinite()
    assert found
    assert not any("look at the data" in one.hint or one.kind == "constant" for one in found)
    assert any("not in this part of the run" in one.hint for one in found)


def test_a_missing_rank_is_still_missed_after_saving(tmp_path: Path) -> None:
    t = clew.load(TRACES / "missing_rank.clew")
    saved = clew.load(t.save(tmp_path / "again.clew"))
    assert [str(gap) for gap in saved.coverage] == [str(gap) for gap in t.coverage] != []


def test_a_fused_kernel_is_missed_only_where_it_ran() -> None:
    t = clew.load(TRACES / "fused.clew")
    assert any("fused" in str(gap) for gap in t.coverage)
    assert any("fused" in str(gap) for gap in t.only(phase="forward").coverage)


def test_events_of_two_processes_are_never_equal() -> None:
    t = clew.load(TRACES / "gathered.clew")
    assert len(set(t.events)) == len(t.events)


def test_memory_that_nobody_wrote_has_no_statistics(tmp_path: Path) -> None:
    """What `empty_like` gives is whatever lay there: NaN in it is nobody's result."""
    junk = [torch.full((1000,), float("nan")) for _ in range(50)]
    del junk
    dropout = nn.Dropout(0.5)
    with clew.trace(dropout, values="stats") as t:
        dropout(torch.ones(1000))
    table = t.table().columns()
    empty = [row for row, name in enumerate(table["name"]) if "empty" in name]
    assert empty
    assert {table["nan"][row] for row in empty} == {None}
    assert "NaN ×" not in str(t)
    saved = clew.load(t.save(tmp_path / "run.clew"))
    assert saved.table().columns()["nan"] == table["nan"]


def test_parameters_are_those_of_the_model_alone() -> None:
    model, other = nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4)
    with clew.trace(model) as t:
        model(torch.ones(1, 4))
        other(torch.ones(1, 4))
    calls = {node["name"]: node["parameters"] for node in t.tree().to_dict()["children"]}
    assert (calls["Sequential"], calls["Linear"]) == (20, 20)


def test_what_ran_after_the_optimizer_stands_after_it() -> None:
    model = nn.Linear(2, 1)
    average = torch.zeros(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats") as t:
        loss = model(torch.ones(2, 2)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            average.lerp_(model.weight, 0.1)
    nodes = t.tree().to_dict()["children"]
    kinds = [node["kind"] for node in nodes]
    assert kinds == ["ops", "call", "ops", "backward", "ops", "optimizer", "ops"]
    assert list(nodes[2]["op_counts"]) == ["aten.mean.default"]
    assert list(nodes[-1]["op_counts"]) == ["aten.lerp_.Scalar"]


def test_counts_beside_a_result_are_of_that_result() -> None:
    with clew.trace(values="stats") as t:
        mask = torch.ones(4, 4).triu(1).bool()
        torch.zeros(4, 4).masked_fill(mask, -torch.inf).softmax(-1).argmax(-1)
    (node,) = t.tree().to_dict()["children"]
    assert (node["stats"]["count"], node["stats"]["inf"]) == (4, 0)


def test_a_finding_names_its_step() -> None:
    (finding,) = clew.load(TRACES / "nan_op.clew").findings
    assert "step 1" in finding.text


def test_the_command_names_a_value_of_one_rank_so_that_it_can_be_asked_for() -> None:
    command = [sys.executable, "-m", "clew", "value", str(TRACES / "equal_ranks.clew")]
    many = subprocess.run([*command, "0@1"], capture_output=True, text=True, check=True).stdout
    assert "0#0@1" in many
    one = subprocess.run([*command, "0#0@1"], capture_output=True, text=True, check=True).stdout
    assert "rank 1" in one
