"""The page of a comparison as a file: its rows, what is left out, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import clew
from clew.analysis.diff.aligned import CHANGED, MATCHED, ONLY_A, ONLY_B, STATES, Aligned, align
from clew.analysis.diff.compared import compare
from clew.analysis.diff.divergence import Diff
from clew.cli.main import main
from clew.run.run import Run
from clew.views.html import previews
from clew.views.html.diff_rows import shown_rows
from tests import deep_runs, run_pairs
from tests.integration.test_report import Opened
from tests.run_pairs import FAULTY, Net, Port, recorded


@pytest.fixture(scope="module")
def reference() -> clew.Trace:
    return recorded(run_pairs.original())


@pytest.fixture(scope="module")
def eps(reference: clew.Trace) -> Diff:
    return clew.diff(reference, recorded(run_pairs.changed(eps=1e-2)))


def aligned(diff: Diff) -> tuple[Aligned, Run, Run]:
    assert diff.compared is not None
    runs = diff.compared.a.graph.run, diff.compared.b.graph.run
    return align(diff.compared, diff.first), *runs


def names(rows: Aligned, a: Run, b: Run) -> list[tuple[str, str, str]]:
    """Return for each row the addresses, or texts, of both sides, and the state."""
    return [
        (
            a.address(int(rows.a[row])) if rows.a[row] >= 0 else rows.texts.get(row, ("", ""))[0],
            b.address(int(rows.b[row])) if rows.b[row] >= 0 else rows.texts.get(row, ("", ""))[1],
            STATES[rows.state[row]],
        )
        for row in range(len(rows))
    ]


def test_rows_of_the_same_code_stand_side_by_side(eps: Diff) -> None:
    rows, a, b = aligned(eps)
    found = names(rows, a, b)
    assert all(mine == theirs for mine, theirs, _ in found)
    assert {state for *_, state in found} == {"matched", "changed"}
    assert found[rows.first][0] == f"op:aten.native_layer_norm.default#{FAULTY}"
    assert rows.error[rows.first] > 1e-3
    assert rows.state[rows.first] == CHANGED
    assert (rows.parent < np.arange(len(rows))).all()
    before = next(row for row, one in enumerate(found) if one[0] == f"layers.{FAULTY - 1}#0")
    assert (rows.state[before], rows.error[before], rows.harm[before]) == (MATCHED, 0.0, 0)
    whole = next(row for row, one in enumerate(found) if one[0] == "#0")
    assert rows.harm[whole] == (rows.harm[rows.parent == whole]).sum()


def test_repeated_layers_fold_but_not_the_one_that_differs(eps: Diff) -> None:
    rows, a, b = aligned(eps)
    found = names(rows, a, b)
    folds = {found[row][:2]: (count, found[row][2]) for row, count in rows.folds.items()}
    assert folds == {
        ("layers.0 … 2", "layers.0 … 2"): (3, "matched"),
        ("layers.4 … 6", "layers.4 … 6"): (3, "changed"),
    }
    inside = [found[row][0] for row in np.flatnonzero(rows.parent == min(rows.folds))]
    assert inside == ["layers.0#0", "layers.1#0", "layers.2#0"]


def test_a_missing_op_stands_alone(reference: clew.Trace) -> None:
    diff = clew.diff(reference, recorded(run_pairs.changed(bare=True)))
    rows, a, b = aligned(diff)
    assert diff.first is not None
    assert diff.first.kind == "missing"
    assert rows.state[rows.first] == ONLY_A
    assert names(rows, a, b)[rows.first][:2] == (f"op:aten.relu.default#{FAULTY}", "")
    assert ONLY_B not in rows.state


def test_a_port_is_aligned_by_its_values() -> None:
    model = run_pairs.original()
    diff = clew.diff(recorded(model), recorded(Port(model)))
    rows, a, b = aligned(diff)
    assert diff.equal
    assert not rows.harm.any()
    assert not rows.beyond.any()
    found = names(rows, a, b)
    pairs = {(mine, theirs) for mine, theirs, _ in found}
    for n in range(run_pairs.LAYERS):
        assert (f"layers.{n}#0", f"body.h.{n}#0") in pairs
        assert (f"layers.{n}.norm#0", f"body.h.{n}.ln#0") in pairs
    assert ("", "body#0", "only_b") in found
    assert ("head#0", "out#0") in pairs
    # Every event of both runs has exactly one row.
    for run, column in ((a, rows.a), (b, rows.b)):
        events = column[column >= 0].tolist()
        assert sorted(events) == sorted([*run.rows(0).tolist(), *run.rows(1).tolist()])


def test_a_wrong_port_shows_both_ops_where_it_goes_wrong() -> None:
    model = run_pairs.original()
    diff = clew.diff(recorded(model), recorded(Port(model, scale=0.5)))
    rows, a, b = aligned(diff)
    assert diff.first is not None
    assert diff.first.b is not None
    assert rows.b[rows.first] == diff.first.b.row
    found = names(rows, a, b)
    layer = next(row for row, one in enumerate(found) if one[1] == f"body.h.{FAULTY}#0")
    assert found[layer][0] == f"layers.{FAULTY}#0"
    assert rows.beyond[layer]
    # Before it only the calls around it differ.
    off = {found[row][1] for row in np.flatnonzero(rows.beyond[: rows.first])}
    assert off <= {"#0", "body#0", f"body.h.{FAULTY}#0"}


def test_steps_and_passes_are_groups() -> None:
    def trained(eps: float) -> clew.Trace:
        model = run_pairs.changed(eps=eps)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        with clew.trace(model, values="stats") as t:
            for _ in range(2):
                optimizer.zero_grad()
                model(run_pairs.X).square().mean().backward()
                optimizer.step()
                t.step()
        return t

    diff = clew.diff(trained(1e-5), trained(1e-2))
    rows, a, b = aligned(diff)
    found = names(rows, a, b)
    top = [found[row][:2] for row in np.flatnonzero(rows.parent < 0)]
    assert top == [("step 0", "step 0"), ("step 1", "step 1")]
    texts = [mine for mine, _ in rows.texts.values()]
    assert texts.count("backward") == texts.count("optimizer") == 2
    assert f"layers.{FAULTY}.norm" in texts or f"layers.{FAULTY}.up" in texts


def test_calls_without_ops_are_compared_by_their_results() -> None:
    a, b = (recorded(run_pairs.changed(eps=eps), level="modules") for eps in (1e-5, 1e-2))
    rows, run_a, run_b = aligned(clew.diff(a, b))
    states = {one[1]: one[2] for one in names(rows, run_a, run_b)}
    assert states[f"layers.{FAULTY}.norm#0"] == "changed"
    assert states["layers.2.norm#0"] == "matched"


def test_runs_without_values_are_not_compared(tmp_path: Path) -> None:
    a, b = (recorded(run_pairs.original(), values="meta") for _ in range(2))
    diff = clew.diff(a, b)
    rows, *_ = aligned(diff)
    assert {STATES[state] for state in rows.state} == {"unknown"}
    assert "no statistics" in Opened(page(diff, tmp_path)).head["diff"]["notes"][0]


def page(diff: Diff, folder: Path, **options: object) -> str:
    path = folder / "page.html"
    diff.html(path, **options)  # type: ignore[arg-type]
    return path.read_text()


def test_page_holds_what_the_comparison_found(eps: Diff, tmp_path: Path) -> None:
    rows, a, b = aligned(eps)
    report = eps.html(tmp_path / "d.html", title="before and after")
    opened = Opened(report.path.read_text())
    head = opened.head["diff"]
    assert eps.first is not None
    assert head["headline"] == str(eps).splitlines()[0]
    assert head["evidence"] == list(eps.first.evidence)
    assert head["title"] == "before and after"
    assert head["matched"] == eps.matched.to_dict()
    assert head["first"]["row"] == rows.first
    assert opened.column("row.state").tolist() == rows.state.tolist()
    assert (opened.column("row.parent").astype(int) - 1).tolist() == rows.parent.tolist()
    assert head["settings"][str(rows.parent[rows.first])] == [["eps", "1e-05", "0.01"]]
    calls = [opened.column("row.b")[row] for row in head["calls"]]
    assert len(calls) == len(eps.table) == len(b.rows(0))
    errors = opened.column("row.error")
    assert [float(errors[row]) for row in head["calls"]] == pytest.approx(
        [row.error for row in eps.table]
    )
    assert report.events == 2 * (len(a.rows(0)) + len(a.rows(1)))
    assert report.left_out == ()


def test_past_the_limit_what_matches_is_left_out_first(eps: Diff, tmp_path: Path) -> None:
    rows, *_ = aligned(eps)
    report = eps.html(tmp_path / "d.html", rows=12)
    opened = Opened(report.path.read_text())
    head = opened.head["diff"]
    kept = len(opened.column("row.state"))
    assert kept < 20
    left = len(rows) - kept
    assert report.left_out[0].startswith(f"{left:,} of {len(rows):,} rows, first those that match")
    assert f"html(path, rows={len(rows)}) takes all" in report.left_out[0]
    assert head["left_out"] == list(report.left_out)
    assert opened.column("row.state")[head["first"]["row"]] == CHANGED
    assert opened.column("row.more").sum() == left
    # What matches just before the runs part is there, what matches far before is not.
    shown = shown_rows(rows, 40, [rows.first]).tolist()
    layer = int(rows.parent[rows.parent[rows.first]])
    matching = np.flatnonzero((rows.state == MATCHED) & (rows.harm == 0))
    near = matching[(matching < layer) & (matching >= layer - 2)].tolist()
    assert near
    assert set(near) <= set(shown)
    assert not {row for row in matching.tolist() if row < 20 and row + 1 in matching} <= set(shown)
    with pytest.raises(clew.ClewError, match="rows=0: a page holds at least one row"):
        eps.html(tmp_path / "d.html", rows=0)


def test_values_where_the_runs_part_get_their_pictures_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (recorded(run_pairs.changed(eps=eps), values="full") for eps in (1e-5, 1e-2))
    diff = clew.diff(a, b)
    everything = Opened(page(diff, tmp_path)).column("1.preview")
    assert (everything > 0).all()
    monkeypatch.setattr(previews, "_MOST_KEPT", 500)
    opened = Opened(page(diff, tmp_path))
    shown = opened.column("1.preview")
    event = opened.head["diff"]["first"]["b"]
    start, end = opened.column("1.first_ref")[event : event + 2]
    # The norm takes a value, a weight and a bias, and gives three results.
    assert shown[opened.column("1.refs")[start:end]].tolist()[3:] == [1, 2, 3]
    assert np.count_nonzero(shown) < 10
    lost = 2 * (len(shown) - np.count_nonzero(shown))
    assert opened.head["diff"]["left_out"] == [
        f"pictures of {lost} kept values, more than a page holds"
    ]


def test_redact_leaves_out_sources_and_settings(eps: Diff, tmp_path: Path) -> None:
    opened = Opened(page(eps, tmp_path, redact=True))
    assert opened.head["diff"]["settings"] == {}
    assert not [name for name in opened.head["columns"] if ".source." in name]
    assert [trace["paths"] for trace in opened.head["traces"]] == [[], []]
    assert "host" not in opened.head["traces"][0]["environment"]


def test_existing_files_are_treated_as_those_of_a_report(eps: Diff, tmp_path: Path) -> None:
    path = tmp_path / "d.html"
    eps.html(path)
    first = path.read_bytes()
    eps.html(path, title="again", exist="keep")
    assert (tmp_path / "d.1.html").read_bytes() == first
    with pytest.raises(clew.ClewError, match="exists"):
        eps.html(path, exist="error")
    path.write_text("a letter")
    with pytest.raises(clew.ClewError, match=r"d\.html.*not.*HTML"):
        eps.html(path)
    assert path.read_text() == "a letter"


def test_texts_of_a_trace_cannot_leave_their_place(eps: Diff, tmp_path: Path) -> None:
    text = page(eps, tmp_path, title="</title><script>alert(1)</script>\x1b[31m")
    assert text.count("<script") == 3
    assert "&lt;/title&gt;&lt;script&gt;" in text
    assert "\x1b" not in text


def test_command_writes_the_page_and_still_says_where(
    reference: clew.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference.save(tmp_path / "a.clew")
    recorded(run_pairs.changed(eps=1e-2)).save(tmp_path / "b.clew")
    paths = [str(tmp_path / "a.clew"), str(tmp_path / "b.clew")]
    out = tmp_path / "out.html"
    assert main(["diff", *paths, "--html", str(out)]) == 1
    said = capsys.readouterr().out
    assert "the runs part at aten.native_layer_norm" in said
    assert said.splitlines()[-1].startswith(f"{out}: 222 events, 0.1 MB")
    assert Opened(out.read_text()).head["diff"]["title"] == "a and b"
    assert main(["diff", paths[0], paths[0], "--html", str(out), "--exist", "error"]) == 2
    assert main(["diff", paths[0], paths[0], "--html", str(out)]) == 0
    assert Opened(out.read_text()).head["diff"]["equal"] is True


def test_a_comparison_without_its_runs_says_so(eps: Diff, tmp_path: Path) -> None:
    with pytest.raises(clew.ClewError, match="does not have its runs"):
        replace(eps, compared=None).html(tmp_path / "d.html")


def test_calls_nested_very_deeply_are_aligned() -> None:
    run = deep_runs.nested(3_000)
    rows = align(compare(run, deep_runs.nested(3_000)), None)
    assert rows.a.tolist() == rows.b.tolist() == list(range(3_000))
    assert rows.parent.tolist() == list(range(-1, 2_999))


def test_runs_of_different_models_have_rows_of_their_own() -> None:
    a = recorded(Net())
    with torch.no_grad(), clew.trace(torch.nn.Tanh(), values="stats") as b:
        torch.nn.Tanh()(run_pairs.X * 2)
    rows, run_a, run_b = aligned(clew.diff(a, b))
    assert (rows.a >= 0).sum() == len(run_a.rows(0)) + len(run_a.rows(1))
    assert (rows.b >= 0).sum() == len(run_b.rows(0)) + len(run_b.rows(1))
