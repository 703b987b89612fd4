"""Reports as files: what is in them, what is left out, and what is said when it cannot be done."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from clew.views.html import page_frame
from clew.views.html import report as report_module
from clew.views.html.payload import Packer

ROOT = Path(__file__).parents[2]
SECRET = "a line that nobody else should read"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()  # a line that nobody else should read
        return x


@pytest.fixture
def trace() -> clew.Trace:
    model = Net()
    with clew.trace(model, values="stats", capture=["layers.1"]) as t:
        model(torch.ones(2, 4)).sum().backward()
    return t


class Opened:
    """A report read back: the head and columns of its first trace."""

    def __init__(self, page: str, element: str = "clew-data") -> None:
        text = re.search(f'id="{element}">([^<]*)<', page)
        assert text is not None
        data = zlib.decompress(base64.b64decode(text[1]), -zlib.MAX_WBITS)
        size = int.from_bytes(data[:4], "little")
        self.head = json.loads(data[4 : 4 + size])
        self._data = data[4 + size :]

    def column(self, name: str) -> np.ndarray[Any, Any]:
        kind, offset, length, differences = self.head["columns"][name]
        size = int(kind[1])
        planes = np.frombuffer(self._data, np.uint8, length * size, offset)
        column = planes.reshape(size, length).T.copy().view(f"<{kind}").ravel()
        return np.cumsum(column) if differences else column

    @property
    def trace(self) -> dict[str, Any]:
        return dict(self.head["traces"][0])


@pytest.mark.parametrize(
    "column",
    [[], [0], [3, 250], [-1, 5], [70_000, -70_000], [1 << 40, 5], [0.5, float("nan")], [True]],
)
@pytest.mark.parametrize("differences", [False, True])
def test_columns_come_back_as_they_were(column: list[Any], differences: bool) -> None:
    packer = Packer()
    array = np.array(column) if column else np.zeros(0, dtype=np.int64)
    packer.add("before", [1, 2, 3])
    packer.add("it", array.astype(np.int64) if array.dtype.kind == "b" else array, differences)
    opened = Opened(f'<x id="clew-data">{packer.text({})}<')
    if differences and column and isinstance(column[-1], float):
        assert opened.column("it")[0] == 0.5
    else:
        np.testing.assert_array_equal(opened.column("it"), array)


def test_report_holds_what_the_trace_holds(trace: clew.Trace, tmp_path: Path) -> None:
    report = trace.html(tmp_path / "deep" / "r.html")
    page = report.path.read_text()
    opened = Opened(page)
    head = opened.trace
    assert report.events == head["rows"] == len(trace)
    assert report.size == report.path.stat().st_size
    assert report.left_out == ()
    size = f"{report.size / 1e6:.1f}"
    assert str(report).startswith(f"{report.path}: {len(trace)} events, {size} MB")
    names = [head["strings"][n] for n in opened.column("0.name")]
    assert names == [event.name for event in trace.events]
    modules = [head["strings"][m - 1] if m else None for m in opened.column("0.module")]
    assert modules == [event.module for event in trace.events]
    back = opened.column("0.parent").astype(int)
    ids = [event.id for event in trace.events]
    parents = [ids[row - n] if n else None for row, n in enumerate(back)]
    assert parents == [event.parent_id for event in trace.events]
    starts = [event.start for event in trace.events]
    np.testing.assert_allclose(opened.column("0.start") / 1e9, starts, atol=1e-9)
    spent = [event.duration for event in trace.events]
    np.testing.assert_allclose(opened.column("0.duration") / 1e9, spent, rtol=1e-6)


def test_report_tells_where_values_came_from(trace: clew.Trace, tmp_path: Path) -> None:
    opened = Opened(trace.html(tmp_path / "r.html").path.read_text())
    head = opened.trace
    refs, first = opened.column("0.refs"), opened.column("0.first_ref").astype(int)
    templates, producers = opened.column("0.template"), opened.column("0.producer")
    metas, stats = opened.column("0.meta"), opened.column("0.stat").astype(int)
    means = opened.column("0.stat.mean")
    for row, event in enumerate(trace.events):
        leaves = head["templates"][templates[row]]
        tensors = [leaf for leaf in leaves if leaf[2] is None]
        values = refs[first[row] : first[row] + len(tensors)]
        expected = [*event.inputs.values(), *event.outputs.values()]
        assert [head["metas"][metas[v]][0] for v in values] == [v.look for v in expected]
        made = [int(producers[v]) - 1 for v in values]
        assert made == [-1 if v.producer is None else v.producer.row for v in expected]
        for number, value in zip(values, expected, strict=True):
            assert (stats[number] > 0) == (value.stats is not None)
            if value.stats is not None and value.stats.mean is not None:
                assert means[stats[number] - 1] == pytest.approx(value.stats.mean, rel=1e-6)


def test_report_names_the_lines_as_the_trace_does(trace: clew.Trace, tmp_path: Path) -> None:
    opened = Opened(trace.html(tmp_path / "r.html").path.read_text())
    sites = opened.column("0.site").astype(int)
    lines, files = opened.column("0.place.line"), opened.column("0.place.file")
    for row, event in enumerate(trace.events):
        source = event.source
        if source is not None and sites[row]:
            assert lines[sites[row] - 1] == source.line
            assert opened.trace["paths"][files[sites[row] - 1]] == source.file
    assert (sites > 0).sum() > len(trace) / 2


def test_kept_data_becomes_pictures(trace: clew.Trace, tmp_path: Path) -> None:
    page = trace.html(tmp_path / "r.html").path.read_text()
    opened = Opened(page, "clew-values")
    data = trace["layers.1"].value
    shown = Opened(page).column("0.preview")
    assert (shown > 0).sum() == 1
    assert opened.column("0.bins").sum() == data.size
    assert opened.column("0.low")[0] == pytest.approx(data.min())
    assert opened.column("0.high")[0] == pytest.approx(data.max())
    assert (opened.column("0.rows")[0], opened.column("0.columns")[0]) == data.shape
    np.testing.assert_array_equal(opened.column("0.numbers"), data.ravel())


def test_data_kept_without_statistics_has_them_in_the_report(tmp_path: Path) -> None:
    model = Net()
    with clew.trace(model, capture=["layers.1"]) as t:
        model(torch.randn(2, 4))
    opened = Opened(t.html(tmp_path / "r.html").path.read_text())
    data = t["layers.1"].value
    assert opened.column("0.stat.count").tolist() == [data.size]
    assert opened.column("0.stat.mean")[0] == pytest.approx(data.mean(), rel=1e-5)


def test_pictures_show_what_is_not_finite(tmp_path: Path) -> None:
    model = nn.Identity()
    values = torch.tensor([[0.0, float("nan")], [float("inf"), -float("inf")], [1.0, 0.5]])
    with clew.trace(model, values="full") as t:
        model(values)
    opened = Opened(t.html(tmp_path / "r.html").path.read_text(), "clew-values")
    assert opened.column("0.cells")[:6].tolist() == [3, 0, 1, 2, 255, 129]


def test_past_the_limit_the_middle_is_left_out(tmp_path: Path) -> None:
    model = Net()
    with clew.trace(model) as t:
        for _ in range(20):
            model(torch.ones(2, 4))
            t.step()
    report = t.html(tmp_path / "r.html", events=60)
    assert 60 <= report.events < 70  # the calls around what is kept come along
    (said,) = report.left_out
    missing = len(t) - report.events
    assert said.startswith(f"{missing} of {len(t)} events of steps ")
    assert f"t.html(path, events={len(t)})" in said
    opened = Opened(report.path.read_text())
    assert opened.trace["left_out"] == [said]
    steps = opened.column("0.step")
    assert steps.min() == 0
    assert steps.max() == 20
    assert opened.column("0.parent").max() < report.events
    assert t.html(tmp_path / "all.html", events=len(t)).left_out == ()


def test_a_crash_past_the_limit_is_kept(tmp_path: Path) -> None:
    model = Net()

    def run() -> None:
        for size in [4] * 20 + [5]:
            model(torch.ones(2, size))

    with pytest.raises(RuntimeError), clew.trace(model) as t:
        run()
    opened = Opened(t.html(tmp_path / "r.html", events=10).path.read_text())
    crash = opened.trace["findings"][0]
    assert (crash["severity"], crash["kind"]) == ("error", "crash")
    assert "shapes cannot be multiplied" in crash["text"]
    name = opened.trace["strings"][opened.column("0.name")[crash["row"]]]
    assert name == "aten.addmm.default"


def test_the_page_has_the_findings_of_the_trace(tmp_path: Path) -> None:
    with clew.trace(values="stats") as t:
        torch.where(torch.arange(2.0) > 0, torch.arange(2.0).log(), torch.zeros(2)).sum()
        (torch.ones(2) - 3).log().sum()
    opened = Opened(t.html(tmp_path / "r.html").path.read_text())
    shown = [(f["severity"], f["kind"], f["text"], f["row"]) for f in opened.trace["findings"]]
    assert shown == [
        (f.severity, f.kind, f.text, -1 if f.event is None else f.event.row) for f in t.findings
    ]
    assert [severity for severity, *_ in shown] == ["error", "info"]
    assert opened.trace["all_clear"] == []
    # The absorbed log(0) is not marked, the other logarithm and its sum are.
    names = [t.events[int(row)].name for row in opened.column("0.nonfinite").nonzero()[0]]
    assert names == ["aten.log.default", "aten.sum.default"]
    assert [origin["kind"] for origin in opened.trace["origins"]] == ["produced", "absorbed"]


def test_a_finding_past_the_limit_is_kept(tmp_path: Path) -> None:
    with clew.trace(values="stats") as t:
        for number in range(40):
            torch.full((2,), 20.0 - number).log()
    opened = Opened(t.html(tmp_path / "r.html", events=10).path.read_text())
    name = opened.trace["strings"][opened.column("0.name")[opened.trace["findings"][0]["row"]]]
    assert (opened.trace["rows"] < 80, name) == (True, "aten.log.default")


def test_a_page_may_hold_two_traces(trace: clew.Trace) -> None:
    sides = [trace._side("first"), trace._side("second")]
    page, count, left_out = report_module.report_page(sides)
    assert (count, left_out) == (2 * len(trace), [])
    opened = Opened(page)
    assert [head["name"] for head in opened.head["traces"]] == ["first", "second"]
    np.testing.assert_array_equal(opened.column("0.kind"), opened.column("1.kind"))
    assert len(Opened(page, "clew-values").column("1.tiles")) == 1


def test_redact_leaves_out_sources_and_paths(trace: clew.Trace, tmp_path: Path) -> None:
    full = Opened(trace.html(tmp_path / "full.html").path.read_text())
    assert SECRET in full._data.decode("utf-8", "replace")
    page = trace.html(tmp_path / "r.html", redact=True).path.read_text()
    redacted = Opened(page)
    everything = redacted._data.decode("utf-8", "replace") + json.dumps(redacted.head)
    assert SECRET not in everything
    assert str(Path(__file__).parent) not in everything
    assert redacted.trace["redacted"] is True
    assert "platform" not in redacted.trace["environment"]
    assert "test_report.py" in redacted.trace["files"]


def test_policy_allows_this_script_and_nothing_else(trace: clew.Trace, tmp_path: Path) -> None:
    page = trace.html(tmp_path / "r.html").path.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)


def test_title_and_name(trace: clew.Trace, tmp_path: Path) -> None:
    page = trace.html(tmp_path / "r.html", title="<b>mine</b>").path.read_text()
    assert "<title>&lt;b&gt;mine&lt;/b&gt; · clew</title>" in page
    assert Opened(page).trace["name"] == "<b>mine</b>"
    assert Opened(trace.html(tmp_path / "run.html").path.read_text()).trace["name"] == "run"


def test_existing_file_is_replaced_unless_told_otherwise(trace: clew.Trace, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("<!doctype html>old")
    with pytest.raises(clew.ClewError, match="r.html exists; choose another place"):
        trace.html(path, exist="error")
    assert path.read_text() == "<!doctype html>old"
    trace.html(path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(clew.ClewError, match="exist='maybe' is not one of"):
        trace.html(path, exist="maybe")


def test_what_cannot_be_written_is_said(trace: clew.Trace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(clew.ClewError, match="cannot write .*file/r.html"):
        trace.html(tmp_path / "file" / "r.html")
    with pytest.raises(clew.ClewError, match="events=0: a report holds at least one event"):
        trace.html(tmp_path / "r.html", events=0)


def test_empty_trace_has_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.warns(clew.ClewWarning), clew.trace() as t:
        pass
    with pytest.raises(clew.ClewError, match="nothing was recorded"):
        t.html(tmp_path / "r.html")


def test_missing_bundle_names_the_command(
    trace: clew.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_frame._assets.cache_clear()
    monkeypatch.setattr(page_frame, "_ASSETS", tmp_path / "assets")
    with pytest.raises(clew.ClewError, match="the viewer is not built.*run `make viewer`"):
        trace.html(tmp_path / "r.html")
    page_frame._assets.cache_clear()


def test_command_writes_the_page(
    trace: clew.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trace.save(tmp_path / "run.clew")
    assert main(["html", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'run.html'}: {len(trace)} events")
    out = tmp_path / "x.html"
    assert main(["html", str(folder), "-o", str(out), "--events", "5", "--redact", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"] == str(out)
    assert "more than events=5" in facts["left_out"][0]
    assert Opened(out.read_text()).trace["redacted"] is True


def test_saved_trace_gives_the_same_page(trace: clew.Trace, tmp_path: Path) -> None:
    live = trace.html(tmp_path / "a.html", title="x").path.read_text()
    saved = clew.load(trace.save(tmp_path / "run.clew")).html(tmp_path / "b.html", title="x")
    heads = [Opened(live).trace, Opened(saved.path.read_text()).trace]
    for key in ("strings", "templates", "metas", "files", "rows"):
        assert heads[0][key] == heads[1][key], key


def test_bundle_is_in_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "node_modules", "tests", "__pycache__")
    )
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "clew/views/html/assets/viewer.js" in names
    assert "clew/views/html/assets/viewer.css" in names
