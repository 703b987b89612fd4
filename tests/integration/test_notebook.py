"""What notebooks are given: text, HTML without scripts of its own, the viewer where it fits."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew.events.tensor_text import numbers_text, stats_of
from clew.views import notebook


@pytest.fixture
def trace() -> clew.Trace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with clew.trace(model, values="stats", capture=["0"], name="<small>") as t:
        model(torch.randn(16, 4))
    return t


def outside_frames(page: str) -> str:
    return re.sub(r"<iframe.*?</iframe>", "", page, flags=re.S)


def test_trace_is_text_and_the_viewer(trace: clew.Trace) -> None:
    bundle = trace._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[0].startswith("<small>: 4 module calls")
    assert "\x1b" not in bundle["text/plain"]
    page = bundle["text/html"]
    assert page.startswith('<iframe sandbox="allow-scripts" title="clew"')
    assert "&lt;title&gt;&amp;lt;small&amp;gt; · clew" in page
    static = outside_frames(page)
    assert "script" not in static
    assert "<details>" in static
    assert "Linear" in static


def test_large_trace_is_text_alone(trace: clew.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_LARGEST", 1000)
    page = trace._repr_mimebundle_()["text/html"]
    assert "iframe" not in page
    assert page.startswith("<details open>")
    monkeypatch.setattr(notebook, "_EVENTS", 2)
    assert "iframe" not in trace._repr_mimebundle_()["text/html"]


def test_trace_that_holds_nothing_is_text() -> None:
    with pytest.warns(clew.ClewWarning), clew.trace() as t:
        pass
    assert "iframe" not in t._repr_mimebundle_()["text/html"]


def test_selection_is_a_table(trace: clew.Trace) -> None:
    bundle = trace["*"]._repr_mimebundle_()
    lines = bundle["text/plain"].splitlines()
    assert lines[0] == "<Selection '*': 3 calls>"
    assert lines[1].startswith("  0#0  f32[16,8]  [")
    assert bundle["text/html"].count("<tr>") == 4
    assert "<td" in bundle["text/html"]


def test_long_selection_says_what_is_left_out() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        for _ in range(40):
            model(torch.ones(1, 2))
    bundle = t[""]._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[-1] == "  ... 10 more; take a part with [30:]"
    assert "… 10 more" in bundle["text/html"]


class Odd(nn.Module):
    """A model whose class, error and source hold what HTML would take for tags."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            raise RuntimeError("<b>bad & worse</b>")
        return x * 2


Odd.__name__ = "Odd<i>"


def static_html(thing: Any) -> str:
    """What a notebook shows of something: the same by either way, without scripts or raw text."""
    page = thing._repr_html_()
    assert page == thing._repr_mimebundle_()["text/html"]
    assert "<script" not in page
    assert "javascript:" not in page
    ET.fromstring(f"<div>{page.replace('&nbsp;', ' ')}</div>")
    for raw in ("<b>bad", "Odd<i>"):
        assert raw not in page
    return str(page)


def two_steps_and_a_crash(t: Any, model: nn.Module) -> None:
    for step in range(2):
        model(torch.full((2, 3), float(step)))
        t.step()
    model(torch.ones(4))


def test_everything_shown_as_html_is_static_and_escaped() -> None:
    model = Odd()
    with pytest.raises(RuntimeError), clew.trace(model, values="stats") as t:
        two_steps_and_a_crash(t, model)
    tree, code = static_html(t.tree()), static_html(t.code())
    assert tree.startswith("<pre")
    assert "Odd&lt;i&gt;" in tree
    assert "x * 2" in code
    table = static_html(t.table())
    assert table.count("<tr>") == 1 + len(t.events)
    assert "&lt;b&gt;bad &amp; worse&lt;/b&gt;" in table
    series = static_html(t.series("op:aten.mul.Tensor"))
    assert series.count("<tr>") == 3
    assert "<td" in series
    assert "0 ± 0" in series
    assert "2 ± 0" in series
    assert "f32[2,3]" in series
    crash = static_html(t.crash)
    assert "RuntimeError: &lt;b&gt;bad &amp; worse&lt;/b&gt;" in crash
    assert t.crash is not None
    assert html.escape(repr(t.crash.event)) in crash
    assert html.escape(t.crash.note.splitlines()[1]) in crash
    selection = static_html(t["op:aten.mul.Tensor"])
    assert selection.count("<tr>") == 3


def test_a_long_table_and_a_long_series_say_what_is_left_out() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model, values="stats") as t:
        for _ in range(40):
            model(torch.ones(1, 2))
            t.step()
    assert static_html(t.table()).count("<tr>") == 41
    left_out = len(t.events) - 40
    assert f"… {left_out:,} rows in the middle; t.to_pandas() has all" in static_html(t.table())
    assert "… 10 more; series.stack() has the data" in static_html(t.series(""))


def test_value_is_a_line_and_a_histogram(trace: clew.Trace) -> None:
    kept = trace["0"].output
    bundle = kept._repr_mimebundle_()
    assert bundle["text/plain"] == str(kept)
    assert bundle["text/html"].count("<rect") == 32
    without = trace["2"].output._repr_mimebundle_()
    assert "<svg" not in without["text/html"]
    assert "f32[16,2]" in without["text/html"]


def test_value_prints_its_numbers(trace: clew.Trace) -> None:
    kept, counted = trace["0"].output, trace["2"].output
    assert re.fullmatch(r"f32\[16,8\] [▁▂▃▄▅▆▇█]{10} \[-\S+, \S+\] μ \S+ σ \S+", str(kept)), str(
        kept
    )
    assert re.fullmatch(r"f32\[16,2\] \[-\S+, \S+\] μ \S+ σ \S+", str(counted)), str(counted)
    assert repr(kept) == "<Value f32[16,8]>"
    assert kept.look == "f32[16,8]"


def test_value_of_metadata_alone_is_its_look() -> None:
    with clew.trace() as t:
        torch.ones(2, 3) + 1
    assert str(t["op:add"].output) == "f32[2,3]"


def test_what_is_not_finite_is_said() -> None:
    array = np.array([1.0, np.nan, np.inf, 3.0])
    assert numbers_text(None, array) == "█▁▁▁▁▁▁▁▁█ [1, 3] μ 2 σ 1 NaN ×1 Inf ×1"
    assert numbers_text(None, np.full(3, np.nan)) == "NaN ×3"
    assert numbers_text(None, np.zeros(4)) == "0"


def test_statistics_of_kept_data() -> None:
    found = stats_of(np.array([[0, 3], [4, 0]], dtype=np.int32))
    assert (found.min, found.max, found.norm, found.zeros, found.count) == (0, 4, 5, 2, 4)
    assert stats_of(np.array([3 + 4j])).max == 5


def test_everything_a_trace_gives_is_data_with_a_line_for_notebooks(trace: clew.Trace) -> None:
    model = nn.Linear(4, 8)
    with clew.trace(model), clew.trace(model) as nested:
        model(torch.ones(1, 4))
    with pytest.raises(RuntimeError), clew.trace(model) as failed:
        model(torch.ones(1, 3))
    op, gap, crash = trace.ops[0], nested.coverage[0], failed.crash
    value = trace["0"].output
    chain = trace.why_shape("0", 1)
    memory = trace.memory()
    assert memory.peak is not None
    for thing in (
        trace, trace.events, trace.modules, op, op.source, value, value.stats, trace["0"],
        trace.series("0"), trace.tree(), trace.code(), trace.table(), trace.graph(), gap, crash,
        chain, chain.links[0], chain.dimension, memory, memory.devices[0], memory.peak,
        memory.peak.kinds[0], memory.devices[0].steps[0],
    ):  # fmt: skip
        assert "\n" not in repr(thing)
        assert "\x1b" not in thing._repr_mimebundle_()["text/plain"]
        assert json.loads(json.dumps(thing.to_dict()))
    assert trace["0"].to_dict()["events"][0]["address"] == "0#0"
    assert trace.series("0").to_dict()["values"][0]["shape"] == [16, 8]
    assert gap.to_dict()["remedy"] == gap.remedy
    assert crash is not None
    assert crash.to_dict()["event"]["name"] == "aten.addmm.default"


def test_a_chain_of_a_dimension_is_shown_as_text_in_full(trace: clew.Trace) -> None:
    chain = trace.why_shape("0", 1)
    assert chain._repr_mimebundle_()["text/plain"] == str(chain)
    assert html.escape(str(chain).splitlines()[0]) in static_html(chain)


def test_where_the_memory_went_is_shown_as_text_in_full(trace: clew.Trace) -> None:
    memory = trace.memory()
    assert memory._repr_mimebundle_()["text/plain"] == str(memory)
    assert html.escape(str(memory).splitlines()[0]) in static_html(memory)
