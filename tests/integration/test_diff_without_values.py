"""Runs of which one has no values are compared by their ops, and never said to differ for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.analysis.diff.aligned import CHANGED, align

NOT_COMPARED = "nothing differs as far as was recorded; values were not compared"


class Block(nn.Module):
    def __init__(self, eps: float, kind: str) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8, eps=eps), nn.Linear(8, 8)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = self.linear(y * 3 if self.kind == "scaled" else y)
        y = torch.tanh(y) if self.kind == "tanh" else torch.relu(y)
        if self.kind == "more":
            y = y.exp()
        return x + y


def recorded(kind: str = "", values: str = "meta", eps: float = 1e-5, **more: Any) -> clew.Trace:
    torch.manual_seed(0)
    model = nn.Sequential(Block(1e-5, ""), Block(eps, kind), Block(1e-5, ""))
    x = torch.randn(3, 8)
    with torch.no_grad(), clew.trace(model, values=values, **more) as t:
        model(x)
    return t


def sides(found: clew.Diff) -> tuple[str, str | None, str | None]:
    first = found.first
    assert first is not None
    names = (None if one is None else f"{one.name} in {one.module}" for one in (first.a, first.b))
    return (first.kind, *names)


@pytest.mark.parametrize("values", ["stats", "fingerprint", "full"])
def test_the_same_run_without_values_is_no_difference(values: str) -> None:
    plain, measured = recorded(), recorded(values=values)
    for a, b in ((plain, recorded()), (plain, measured), (measured, plain)):
        found = clew.diff(a, b)
        assert found.equal
        assert str(found).startswith(NOT_COMPARED)
        assert found.matched == clew.diff(plain, plain).matched
        assert found.matched.a == found.matched.b == 1
        (note,) = found.notes
        assert "no statistics of values: only ops" in note


@pytest.mark.parametrize("values", ["meta", "stats"])
def test_ops_that_differ_are_named_without_values(values: str) -> None:
    a = recorded(values=values)
    found = clew.diff(a, recorded("tanh"))
    assert sides(found) == ("wrong", "aten.relu.default in 1", "aten.tanh.default in 1")
    assert found.first is not None
    assert found.first.evidence[0] == "a runs aten.relu.default, b aten.tanh.default"
    assert json.loads(json.dumps(found.to_dict()))["first"]["kind"] == "wrong"
    assert sides(clew.diff(a, recorded("more"))) == ("extra", None, "aten.exp.default in 1")
    assert sides(clew.diff(recorded("more"), a)) == ("missing", "aten.exp.default in 1", None)


def test_other_constants_and_shapes_are_named_without_values() -> None:
    found = clew.diff(recorded(), recorded(eps=1e-3))
    assert sides(found)[2] == "aten.native_layer_norm.default in 1.norm"
    assert found.first is not None
    assert "argument 4: 1e-05 in a, 0.001 in b" in found.first.evidence
    layer = nn.Linear(8, 8)
    traces = []
    for x in (torch.ones(3, 8), torch.ones(5, 8)):
        with clew.trace(layer) as t:
            layer(x)
        traces.append(t)
    found = clew.diff(*traces)
    assert sides(found)[2] == "aten.addmm.default in "
    assert found.first is not None
    assert "a has f32[3,8], b f32[5,8]" in found.first.evidence


def test_other_code_without_values_cannot_be_compared(tmp_path: Path) -> None:
    other = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Sigmoid())
    with clew.trace(other) as t:
        other(torch.ones(2, 3, 8))
    with pytest.raises(clew.ClewError, match=r"b has no statistics.*not that of b.*fingerprint"):
        clew.diff(recorded(values="stats"), t)


def test_values_that_one_run_did_not_keep_are_not_wrong() -> None:
    every, some = recorded(values="stats"), recorded(capture=["1.norm", "2"])
    assert clew.diff(every, some).equal
    assert clew.diff(some, every).equal
    for a in (every, some):
        found = clew.diff(a, recorded("tanh", capture=["1.norm", "2"]))
        assert sides(found) == ("wrong", "aten.relu.default in 1", "aten.tanh.default in 1")


def calls(kind: str = "", **more: Any) -> clew.Trace:
    return recorded(kind, level="modules", **more)


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_runs_without_ops_are_compared_by_their_calls(level: str, tmp_path: Path) -> None:
    a = recorded(values="stats", level=level)
    assert clew.diff(a, calls(values="stats")).equal
    found = clew.diff(a, calls("tanh", values="stats"))
    assert sides(found) == ("wrong", "Block in 1", "Block in 1")
    assert found.first is not None
    agreement, setting = found.first.evidence
    assert agreement.startswith("its inputs agree bit for bit, its result: b differs by 0.")
    assert setting == "1: kind is '' in a, 'tanh' in b"
    assert found.matched.a == found.matched.b == 0.5
    assert json.loads(json.dumps(found.to_dict()))["first"]["b"]["module"] == "1"
    assert found.html(tmp_path / "diff.html").size
    assert found.compared is not None
    rows = align(found.compared, found.first)
    a, b = (half.graph.run for half in (found.compared.a, found.compared.b))
    beside = {
        a.address(x): (b.address(y), state)
        for x, y, state in zip(rows.a.tolist(), rows.b.tolist(), rows.state.tolist(), strict=True)
        if x >= 0 and a.event(x).kind == "module"
    }
    assert all(address == other for address, (other, _) in beside.items())
    wrong = {address for address, (_, state) in beside.items() if state == CHANGED}
    assert wrong == {"1#0", "2.norm#0", "2.linear#0", "2#0", "#0"}
    assert any("without ops, so module calls were compared" in note for note in found.notes)


def test_what_a_call_makes_for_another_is_its_own_fault() -> None:
    found = clew.diff(calls(values="stats"), calls("scaled", values="stats"))
    assert sides(found) == ("wrong", "Block in 1", "Block in 1")
    assert found.first is not None
    assert found.first.evidence[0].startswith("what it gives to 1.linear at y = self.linear(")
    layer, traces = nn.Linear(8, 8), []
    for x in (torch.ones(3, 8), torch.zeros(3, 8)):
        with clew.trace(layer, level="modules", values="stats") as t:
            layer(x)
        traces.append(t)
    assert sides(clew.diff(*traces)) == ("inputs", "Linear in ", "Linear in ")


def test_calls_that_only_one_run_makes_are_named() -> None:
    def run(more: bool) -> clew.Trace:
        torch.manual_seed(0)
        model = nn.ModuleDict({"first": nn.Linear(8, 8), "last": nn.Linear(8, 8)})
        with clew.trace(model, level="modules", values="stats") as t:
            y = model["first"](torch.ones(2, 8))
            if more:
                model["last"](y)
        return t

    with_one, without = run(True), run(False)
    assert sides(clew.diff(with_one, without)) == ("missing", "Linear in last", None)
    assert sides(clew.diff(without, with_one)) == ("extra", None, "Linear in last")


def test_without_ops_and_values_settings_and_shapes_are_compared() -> None:
    found = clew.diff(calls(), calls())
    assert found.equal
    assert str(found).startswith(NOT_COMPARED)
    found = clew.diff(calls(), calls(eps=1e-3))
    assert sides(found) == ("wrong", "LayerNorm in 1.norm", "LayerNorm in 1.norm")
    assert found.first is not None
    assert found.first.evidence == ("1.norm: eps is 1e-05 in a, 0.001 in b",)


def with_a_damaged_column(t: clew.Trace, folder: Path, column: str) -> clew.Trace:
    """Save a trace, and turn around every bit of a column of its values."""
    file = next(t.save(folder).glob("rank=*/values-*.parquet"))
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    begin = columns[column].data_page_offset + 64
    data = bytearray(file.read_bytes())
    data[begin : begin + 64] = bytes(byte ^ 0xFF for byte in data[begin : begin + 64])
    file.write_bytes(data)
    return clew.load(folder)


@pytest.mark.parametrize(
    ("column", "said"),
    [("fingerprint.list.element", "fingerprints of values"), ("storage", "values")],
)
def test_what_could_not_be_read_is_said(column: str, said: str, tmp_path: Path) -> None:
    a = recorded(values="fingerprint")
    b = with_a_damaged_column(a, tmp_path / "b.clew", column)
    found = clew.diff(a, b)
    assert [note for note in found.notes if note.startswith(f"b is damaged: {said}")]
    assert not [note for note in found.notes if note.startswith("a is damaged")]
    assert any(gap.what.startswith(said) for gap in b.coverage)
    again = clew.load(b.save(tmp_path / "again.clew"))
    assert any(gap.what.startswith(said) for gap in again.coverage)
