"""`t.findings`: what a person reads first, the same list at every exit."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from clew.views.text.finding_lines import finding_lines
from clew.views.text.style import Style

NAN = math.nan


class Bad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(-x.abs() - 1)


PLAIN = Style()


def lines_of(t: clew.Trace, style: Style = PLAIN) -> list[str]:
    """The findings of a trace as the tree prints them."""
    return finding_lines(t.findings, t._current_run(), style)


def bad_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), Bad(), nn.Linear(3, 3))


def nan_trace(**options: Any) -> clew.Trace:
    model = bad_model()
    with clew.trace(model, **options) as t:
        model(torch.ones(2, 3))
    return t


def listed(t: clew.Trace) -> list[tuple[str, str]]:
    return [(finding.severity, finding.kind) for finding in t.findings]


def run_cli(*arguments: object) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([str(argument) for argument in arguments]) == 0
    return out.getvalue()


def test_a_fine_run_has_none() -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3)).sum().backward()
    assert t.findings == []


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_nan_is_an_error_at_each_level(level: str) -> None:
    t = nan_trace(level=level, values="stats")
    assert listed(t) == [("error", "produced")]
    (finding,) = t.findings
    assert finding.event is not None
    assert finding.event.module == "1"
    assert "NaN appeared at" in finding.text
    assert "test_findings.py:" in finding.text
    assert repr(finding) == f"<Finding error produced: {finding.text}>"
    assert str(finding) == finding.text


def test_one_finding_a_kind_with_a_count() -> None:
    model = bad_model()
    with clew.trace(model, values="stats") as t:
        for _ in range(3):
            model(torch.ones(2, 3))
            t.step()
    (finding,) = t.findings
    assert finding.count == 3
    assert (
        "at 3 places, first at op:aten.log.default#0 in 1, step 0, test_findings.py:"
        in finding.text
    )
    assert finding.text.endswith("; 6 of 27 ops gave NaN or Inf")


def test_nothing_taken_is_not_checked() -> None:
    t = nan_trace()
    assert listed(t) == [("info", "not checked")]
    assert t.findings[0].text == (
        "NaN and Inf not checked: no values were taken; values='stats' takes them"
    )


def test_looking_at_one_address_is_not_looking_everywhere() -> None:
    """`capture=["0"]` looks at one module's output: that is no all-clear for the others."""
    t = nan_trace(capture=["0"])
    assert listed(t) == [("info", "not checked")]
    text = t.findings[0].text
    assert text.startswith("NaN and Inf not checked everywhere: values were taken of 2 of ")


def test_absorbed_infinities_are_no_alarm() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.masked_fill(torch.eye(3).bool(), -math.inf).softmax(-1)

    model = Masked()
    with clew.trace(model, values="stats") as t:
        model(torch.ones(3, 3)).sum()
    assert listed(t) == [("info", "absorbed")]


def test_a_crash_comes_first_and_names_the_op() -> None:
    model = nn.Sequential(Bad(), nn.Linear(4, 2))
    t = clew.trace(model, values="stats")
    with pytest.raises(RuntimeError, match="shapes"), t:
        model(torch.ones(2, 3))
    assert listed(t) == [("error", "crash"), ("error", "produced")]
    crash = t.findings[0]
    assert t.crash is not None
    assert crash.event == t.crash.event
    assert crash.text.startswith("ended by RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert "raised at op:aten.addmm.default#0 in 1, test_findings.py:" in crash.text


def test_gaps_are_one_warning() -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model, values="stats", capture=["nowhere", "neither"]) as t:
        model(torch.ones(2, 3))
    (finding,) = t.findings
    assert (finding.severity, finding.kind) == ("warning", "coverage")
    assert finding.count == len(t.coverage) == 2
    assert finding.text.startswith("2 things were not seen: first ")


# Ranks


def record_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch, programs: list[Any]) -> clew.Trace:
    for rank, program in enumerate(programs):
        model = nn.Linear(3, 3)
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(len(programs)))
        with clew.trace(model, values="stats", out=folder / "run.clew") as t:
            program(model, t)
    return clew.load(folder / "run.clew")


def plain(model: nn.Module, t: clew.Trace) -> None:
    model(torch.ones(2, 3)).sum().backward()


def clipping(model: nn.Module, t: clew.Trace) -> None:
    plain(model, t)
    torch.ones(2).tanh()


def smaller(model: nn.Module, t: clew.Trace) -> None:
    model(torch.ones(1, 3)).sum().backward()


def test_ranks_that_ran_the_same_are_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record_ranks(tmp_path, monkeypatch, [plain, plain, plain]).findings == []


def test_another_batch_size_is_not_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record_ranks(tmp_path, monkeypatch, [plain, smaller]).findings == []


def test_the_rank_that_differs_is_named_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = record_ranks(tmp_path, monkeypatch, [clipping, plain, plain])
    (finding,) = t.findings
    assert (finding.severity, finding.kind, finding.count) == ("warning", "ranks", 1)
    assert finding.event is not None
    assert (finding.event.rank, finding.event.name) == (0, "aten.ones.default")
    assert finding.text.startswith(
        "rank 0 did not run what rank 1 ran: in step 0 rank 0 went on with op:aten.ones.default#1, "
        "test_findings.py:"
    )
    assert finding.text.endswith(" where rank 1 had ended")


def test_each_rank_says_where_it_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(model: nn.Module, t: clew.Trace) -> None:
        plain(model, t)
        raise KeyError("lost")

    monkeypatch.setenv("RANK", "0")
    with pytest.raises(KeyError):
        record_ranks(tmp_path, monkeypatch, [plain, failing])
    found = clew.load(tmp_path / "run.clew").findings
    (crash,) = [finding.text for finding in found if finding.kind == "crash"]
    assert crash.startswith("rank 1 ended by KeyError: 'lost', raised at test_findings.py:")


# The same list everywhere


def test_every_exit_has_the_same_list(tmp_path: Path) -> None:
    t = nan_trace(values="stats")
    t.save(tmp_path / "run.clew")
    loaded = clew.load(tmp_path / "run.clew")
    listed = [finding.to_dict() for finding in loaded.findings]
    (first,) = listed
    assert (first["event"]["row"], first["event"]["line"]) == (
        loaded.findings[0].event.row,  # type: ignore[union-attr]
        loaded.findings[0].event.source.line,  # type: ignore[union-attr]
    )
    assert json.loads(json.dumps(listed)) == listed
    assert loaded.to_dict()["findings"] == listed
    loaded.export("json", tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["findings"] == listed
    assert json.loads(run_cli("info", "--json", tmp_path / "run.clew"))["findings"] == listed
    text = run_cli("info", tmp_path / "run.clew").splitlines()
    assert text[1:3] == ["findings  1", f"  ✗ {first['text']}"]
    assert lines_of(loaded) == [f"✗ {first['text']}"]
    notebook = loaded._repr_mimebundle_()["text/html"]
    assert notebook.startswith("<ul")
    assert "NaN appeared" in notebook.split("</ul>")[0]


def test_info_of_a_fine_trace_says_so(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model, values="stats", out=tmp_path / "run.clew"):
        model(torch.ones(2, 3))
    text = run_cli("info", tmp_path / "run.clew")
    assert "findings  none: no crash, no NaN or Inf, nothing missed\n" in text


def test_lines_name_the_way_to_see_more() -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model, values="stats", capture=["no", "not", "nor", "none"]) as t:
        model(torch.ones(2, 3))
    lines = lines_of(t)
    assert lines[0] == "! not seen: 4 things, t.coverage lists them"
    assert len(lines) == 3
    assert lines_of(t, Style(shell=True))[0] == "! not seen: 4 things, `clew info` lists them"
    assert "\x1b[33m" in lines_of(t, Style(color=True))[0]


def test_lines_are_few_and_say_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(count: int) -> Any:
        def run(model: nn.Module, t: clew.Trace) -> None:
            for _ in range(count):
                model(torch.full((2, 3), NAN).log())

        return run

    t = record_ranks(tmp_path, monkeypatch, [program(n) for n in range(1, 9)])
    kinds = [finding.kind for finding in t.findings]
    assert kinds.count("ranks") == 5
    assert t.findings[kinds.index("ranks") + 4].text == "3 more ranks did not run what rank 0 ran"
    lines = lines_of(t)
    assert len(lines) <= 8
