"""`clew.ranks` on real runs over gloo: DDP, FSDP2, tensor parallel, with and without a fault."""

from __future__ import annotations

import json
import shutil
import warnings
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import nn

import clew
from accuracy import rank_programs as programs
from accuracy.rank_faults import FAULTS, RankFault, missed
from bench.ranks import write_ranks
from clew.analysis.ranks import rank_reader
from clew.cli.main import main
from tests.processes import ROOT, answers

# One for each kind of cause, on two ranks where those are enough.
TRIED = [
    fault for fault in FAULTS
    if (fault.program.__name__, fault.fault, fault.size) in {
        ("data_parallel", "weight", 4), ("data_parallel", "no-sync", 2),
        ("data_parallel", "skip", 4), ("data_parallel", "stale", 4), ("by_hand", "forgotten", 4),
        ("tensor_parallel", "seed", 2), ("fully_sharded", "lr", 4), ("gathered", "order", 4),
    } and fault.bad != 0
]  # fmt: skip


def recorded(name: str, size: int, folder: Path, fault: str = "", bad: int = -1) -> Path:
    """Run a program of accuracy.rank_programs on several ranks."""
    script = f"""
sys.path.insert(0, {str(ROOT)!r})
warnings.simplefilter("ignore")
from accuracy import rank_programs as programs
programs.{name}(programs.Setting(rank, size, {fault!r}, {bad}, "run.clew"))
dist.barrier()
answer = None
"""
    answers(script, size, folder)
    return folder / "run.clew"


@pytest.mark.parametrize("fault", TRIED, ids=lambda one: f"{one.program.__name__} {one.fault}")
def test_a_fault_on_one_rank_is_named(fault: RankFault, tmp_path: Path) -> None:
    trace = recorded(fault.program.__name__, fault.size, tmp_path, fault.fault, fault.bad)
    found = clew.ranks(trace)
    assert missed(fault, found) == "", str(found)


@pytest.mark.parametrize(
    ("name", "size"),
    [("data_parallel", 2), ("data_parallel", 4), ("fully_sharded", 2), ("tensor_parallel", 2),
     ("mesh_parallel", 4)],
)  # fmt: skip
def test_clean_runs_raise_no_alarm(
    name: str, size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = recorded(name, size, tmp_path)
    assert main(["ranks", str(trace)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ranks 0")
    assert "agree in all they should" in said
    if name == "data_parallel":
        assert "0.norm.running_mean and 1 more differ by design" in said


def test_shards_are_merged_and_told_apart_by_order(tmp_path: Path) -> None:
    trace = recorded("fully_sharded", 2, tmp_path)
    found = {one.name: one for one in clew.ranks(trace).placements}
    torch.manual_seed(0)
    whole = programs.Block().fc1.weight
    weight = found["0.fc1.weight"]
    assert (weight.placement, weight.dim, weight.source) == ("sharded", 0, "DTensor")
    assert weight.shape == (16, 8)
    assert weight.local == (8, 8)
    # As the first step has written it, which moves each number by about the learning rate.
    assert weight.norm == pytest.approx(sqrt(whole.detach().square().sum().item()), rel=0.05)
    shutil.move(trace / "rank=00000", trace / "aside")
    shutil.move(trace / "rank=00001", trace / "rank=00000")
    shutil.move(trace / "aside", trace / "rank=00001")
    first = clew.ranks(trace).first
    assert first is not None
    assert first.kind == "order"
    assert "with its shards in another order than the ranks hold them" in first.text


DYING = """
model = nn.Linear(4, 2)
if rank == 1:
    with torch.no_grad():
        model.weight[0, 0] += {change}
with clew.trace(model, values="stats", out="run.clew") as t:
    for step in range(4):
        model(torch.full((3, 4), float(step)))
        t.step()
        if rank == 1 and step == 1:
            t.flush()
            reached("dead")
            os._exit(3)
answer = None
wait_for("dead")
"""


@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_killed_rank_is_compared_as_far_as_it_came(
    change: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(DYING.format(change=change), 3, tmp_path, dead=(1,))
    found = clew.ranks(tmp_path / "run.clew")
    assert [(end.rank, end.step) for end in found.ended] == [(1, 1)]
    assert found.equal == (change == 0)
    if change:
        assert found.first is not None
        assert (found.first.ranks, found.first.name) == ((1,), "weight")
    assert main(["ranks", str(tmp_path / "run.clew")]) == (1 if change else 0)
    assert "rank 1 was killed or still runs: its" in capsys.readouterr().out


def test_small_differences_count_only_beyond_the_tolerance(tmp_path: Path) -> None:
    trace = recorded("data_parallel", 4, tmp_path, "weight", 1)
    assert clew.ranks(trace, tol=0.05).equal
    assert not clew.ranks(trace, tol=1e-7).equal


def test_the_answer_as_data_and_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recorded("data_parallel", 4, tmp_path, "lr", 1)
    found = clew.ranks(clew.load(trace))
    assert not found.equal
    assert found.groups == ((0, 2, 3), (1,))
    assert repr(found).startswith("<RankAgreement ranks 0–3 differ: aten.mul_.Tensor at rank_pro")
    assert str(found).startswith("ranks 0, 2, 3 equal; 1 differs in 0.fc1.weight at rank_programs")
    assert main(["ranks", str(trace), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data == {"schema": 1, **json.loads(json.dumps(found.to_dict()))}
    assert data["first"]["kind"] == "arguments"
    assert data["first"]["ranks"] == [1]
    assert main(["ranks", str(trace), "--rows", "2"]) == 1
    assert "more parameters and buffers; --rows" in capsys.readouterr().out


def test_one_rank_and_no_values() -> None:
    model = nn.Linear(3, 2)
    with clew.trace(model) as t:
        model(torch.ones(1, 3))
    found = clew.ranks(t)
    assert found.equal
    assert found.ranks == (0,)
    assert any("values were not checked" in note for note in found.notes)


def test_what_is_no_trace_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(tmp_path / "nothing")]) == 2
    assert "is not a trace" in capsys.readouterr().err


def test_many_ranks_need_the_memory_of_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real ranks, and copies with batches of their own; the guide's query in Dask agrees."""
    trace = recorded("data_parallel", 2, tmp_path)
    write_ranks(trace, 40, 17, 1, "0.fc1.weight")
    held = clew.ranks(trace)
    monkeypatch.setattr(rank_reader, "_MOST_HELD", 0)
    found = clew.ranks(trace)
    assert found == held
    assert found.first is not None
    assert (found.first.ranks, found.first.step, found.first.name) == ((17,), 1, "0.fc1.weight")
    assert _differing_by_dask(trace)[0] == (1, "0.fc1.weight", [17])


def _differing_by_dask(trace: Path) -> list[tuple[int, str, list[int]]]:
    """Run the query of docs/ranks-disagree.md; return step, name and the ranks in the minority."""
    guide = (ROOT / "docs" / "ranks-disagree.md").read_text()
    query = guide.partition("# query.py\n")[2].partition("for step, name")[0]
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dask uses what pandas will take away
        exec(query.replace("run.clew/", f"{trace}/"), names)
    rows = names["differing"].to_dict("records")  # type: ignore[attr-defined]
    return sorted(
        (row["step"], row["name"], row["rank"]) for row in rows
        if len(row["rank"]) == 1 and "running" not in row["name"]
    )  # fmt: skip
