"""The charts of the lower pane in a real browser: they show what the trace has, and lead there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import clew
from tests.browser import reports
from tests.browser.contrast import poor
from tests.browser.page import Page
from tests.processes import HANG_GUARD

TITLE = ".details h3"
TIP = ".tabpanel:not([hidden]) .tip"
NAN, INF = (214, 0, 40), (255, 128, 0)
TABS = ("timeline", "layers", "memory", "gradients", "totals")


@pytest.fixture(scope="module")
def run() -> clew.Trace:
    return reports.training()


@pytest.fixture(scope="module")
def training(run: clew.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.html(tmp_path_factory.mktemp("reports") / "training.html").path


def show(page: Page, tab: str) -> None:
    page.click(f"#tab-{tab}")
    # A chart is drawn in the next frame.
    page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


def focus(page: Page, canvas: str) -> None:
    page.evaluate(f"document.getElementById('{canvas}').focus()")


def colours(page: Page, canvas: str, points: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The colours of some points of a canvas."""
    code = f"""(() => {{
        const canvas = document.getElementById('{canvas}');
        const copy = new OffscreenCanvas(canvas.width, canvas.height);
        const pen = copy.getContext('2d', {{ willReadFrequently: true }});
        pen.drawImage(canvas, 0, 0);
        return {json.dumps(points)}.map(([x, y]) => [...pen.getImageData(x, y, 1, 1).data]);
    }})()"""
    return [tuple(found[:3]) for found in page.evaluate(code)]


def counts(page: Page, table: str) -> dict[str, str]:
    """The calls in a table of totals, by name."""
    names = page.texts(f"{table} tbody th button")
    return dict(zip(names, page.texts(f"{table} tbody td:nth-child(4)"), strict=True))


def sum_of_calls(table: str) -> str:
    """An expression for all calls in a table of totals."""
    cells = f"[...document.querySelectorAll('{table} tbody td:nth-child(4)')]"
    return f"{cells}.reduce((sum, cell) => sum + Number(cell.textContent), 0)"


def is_grey(colour: tuple[int, ...]) -> bool:
    return max(colour) - min(colour) < 40


def tips(page: Page, canvas: str, apart: int = 3) -> set[str]:
    """All figures that moving over a canvas shows."""
    found = page.evaluate(
        f"""(() => {{
        const canvas = document.getElementById('{canvas}');
        const tip = canvas.closest('.surface').querySelector('.tip');
        const box = canvas.getBoundingClientRect();
        const seen = new Set();
        for (let y = 6; y < box.height; y += 8) for (let x = 1; x < box.width; x += {apart}) {{
          const at = {{ clientX: box.left + x, clientY: box.top + y }};
          canvas.dispatchEvent(new PointerEvent('pointermove', at));
          if (!tip.hidden) seen.add([...tip.children].map(e => e.textContent).join(' | '));
        }}
        return [...seen];
    }})()"""
    )
    return {str(one) for one in found}


def test_tabs_by_mouse_keys_and_in_both_themes(page: Page, training: Path) -> None:
    page.open(training)
    chosen = "document.querySelector('[role=tab][aria-selected=true]').id"
    assert page.evaluate(chosen) == "tab-timeline"
    page.click("#tab-memory")
    page.press("ArrowRight", "ArrowRight")
    assert page.evaluate(chosen) == "tab-totals"
    assert page.evaluate("document.activeElement.id") == "tab-totals"
    page.press("Home")
    assert page.evaluate(chosen) == "tab-timeline"
    nameless = """[...document.querySelector('.lower').querySelectorAll(
        'button, input, select, canvas, [tabindex]')]
        .filter(e => !e.closest('[hidden], label') && !e.textContent.trim() && !e.ariaLabel)
        .map(e => e.outerHTML.slice(0, 80))"""
    for tab in TABS:
        show(page, tab)
        assert len(page.texts(".lower [role=tabpanel]")) == 1
        assert page.evaluate(nameless) == []
        assert poor(page) == []
        page.evaluate("document.getElementById('tree').focus()")
        page.press("5")
        assert page.evaluate("document.activeElement.closest('.tabpanel') !== null")
        page.evaluate("document.getElementById('tree').focus()")
        page.press("d")
        assert poor(page) == []


def test_layers_by_steps_have_the_figures_of_the_calls(
    page: Page, run: clew.Trace, training: Path
) -> None:
    page.open(training)
    show(page, "layers")
    focus(page, "layers")
    modules = list(dict.fromkeys(call.module for call in run.modules))
    page.press(*["ArrowDown"] * modules.index("blocks.1.attn"), "ArrowRight")
    stats = run["blocks.1.attn#1"].output.stats
    assert stats is not None
    assert page.text(TIP).startswith("blocks.1.attn Attentionstep 1")
    assert f"std {stats.std:.4g} · |max| {max(-stats.min, stats.max):.4g}" in page.text(TIP)
    assert "no NaN, no Inf" in page.text(TIP)
    page.press("Enter")
    assert page.text(TITLE) == "blocks.1.attn"
    assert "step 1" in page.text(".details .facts")
    # Every cell is there, for the mouse too.
    page.evaluate("document.querySelector('.lower .bar button[title^=Taller]').click()")
    page.until("document.getElementById('layers').clientHeight > 400")
    shown = tips(page, "layers", 40)
    for path in modules[1:]:
        assert any(tip.startswith(f"{path} ") and "step 0" in tip for tip in shown), path
    # Larger numbers are lighter.
    rows = [modules.index(path) for path in ("blocks.1.attn", "blocks.1.norm")]
    low, high = map(sum, colours(page, "layers", [(300, 17 + 16 * row + 2) for row in rows]))
    assert low < high
    page.evaluate(
        "(() => { const s = document.querySelector('.lower select'); s.value = 'time';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    assert page.text(".chart .legendline b") == "time"
    page.click(".lower .check input")
    page.until("document.querySelector('#panel-layers .extent').offsetHeight < 260")


class Going(nn.Module):
    """Works until it is told to divide by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.fault = nn.Identity()
        self.last = nn.Linear(3, 2)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.fault(self.first(x) / self.scale))


def test_nan_and_what_was_not_taken_are_no_colours_of_values(page: Page, tmp_path: Path) -> None:
    model = Going()
    with clew.trace(model, level="modules", values="stats") as t:
        for step in range(3):
            model.scale = 0.0 if step == 2 else 1.0
            model(torch.zeros(2, 3) if step == 2 else torch.ones(2, 3))
            t.step()
    assert t["last#2"].output.stats.nan + t["last#2"].output.stats.inf > 0
    page.open(t.html(tmp_path / "nan.html").path)
    show(page, "layers")
    first, last = 17 + 16 + 3, 17 + 3 * 16 + 3
    at = [(230 + 64 * step + 12, y) for y in (first, last) for step in range(3)]
    wrong = [colour in (NAN, INF) for colour in colours(page, "layers", at)]
    assert wrong == [False, False, False, False, False, True]
    focus(page, "layers")
    page.press("ArrowDown", "ArrowDown", "ArrowDown", "End")
    assert "NaN" in page.text(TIP)
    # Statistics of one module only: the others are striped in grey.
    with clew.trace(model, level="modules", capture=["first"]) as t:
        for _ in range(2):
            model(torch.ones(2, 3))
            t.step()
    page.open(t.html(tmp_path / "some.html").path)
    show(page, "layers")
    assert all(map(is_grey, colours(page, "layers", [(x, last) for x in range(232, 290)])))
    assert not any(map(is_grey, colours(page, "layers", [(232, first), (288, first)])))
    focus(page, "layers")
    page.press("ArrowDown", "ArrowDown")
    assert "statistics not taken" in page.text(TIP)


def test_one_step_has_bars_by_depth(page: Page, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        model[2].weight.mul_(100)
    with clew.trace(model, values="stats") as t:
        model(torch.randn(8, 4))
    page.open(t.html(tmp_path / "r.html").path)
    show(page, "layers")
    assert "log scale" in page.text("#panel-layers .legendline")
    accent = "getComputedStyle(document.querySelector('[role=tab][aria-selected=true]')).color"
    expected = tuple(int(part) for part in str(page.evaluate(accent))[4:-1].split(","))

    def length(row: int) -> int:
        points = [(x, 17 + 16 * row + 4) for x in range(240, 1380)]
        return colours(page, "layers", points).count(expected)

    # The last layer has far larger numbers than the ReLU.
    assert length(3) > length(2) > 0


def test_memory_shows_the_peak_and_the_largest(page: Page, run: clew.Trace, training: Path) -> None:
    page.open(training)
    show(page, "memory")
    peak = run.memory().peak
    assert peak is not None
    said = page.text("#panel-memory .legendline")
    for group in peak.kinds:
        assert group.name in said
    assert f"in step {peak.event.step}, after {peak.event.address}" in page.text(".lower .tools")
    page.click(".lower .peak")
    where = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('at')")
    assert where == peak.event.address
    # Every event has a point; go along to the peak.
    page.evaluate(
        f"""(() => {{
        const canvas = document.getElementById('memory');
        canvas.focus();
        for (let i = 0; i <= {peak.event.row}; i++)
          canvas.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'ArrowRight' }}));
    }})()"""
    )
    sizes = page.texts(f"{TIP} table td:first-child")
    assert 0 < len(sizes) <= 10
    for group in peak.kinds:
        size = f"{group.bytes} B" if group.bytes < 1024 else f"{group.bytes / 1024:.4g}"[:3]
        assert f"{group.name} {size}" in page.text(TIP)
    page.press("Home", "Enter")
    assert page.text(TITLE) != ""
    # Of a range chosen in the timeline, that part alone.
    show(page, "timeline")
    page.click("#timeline", position={"x": 1390, "y": 48})
    show(page, "memory")
    assert all("step 1" in tip for tip in tips(page, "memory", 50))
    page.click(".lower .norange")
    assert any("step 0" in tip for tip in tips(page, "memory", 50))


def test_gradients_by_depth_and_how_to_get_them(
    page: Page, run: clew.Trace, training: Path, tmp_path: Path
) -> None:
    page.open(training, at="at=head%231")
    show(page, "gradients")
    assert page.text(".lower .tools output") == "step 1"
    focus(page, "gradients")
    page.press("Home")
    assert page.text(TIP).startswith("embed.weightstep 1gradient RMS ")
    page.press("End")
    lines = page.texts(f"{TIP} div")
    assert lines[0] == "head.bias"
    # SGD without momentum: the update is the gradient times the learning rate.
    norm = float(lines[2].split("norm ")[1].split(" ")[0])
    weight = float(lines[4].split("weight norm ")[1].split(" ")[0])
    ratio = float(lines[4].split("|update| / |weight| ")[1])
    assert ratio == pytest.approx(0.1 * norm / weight, rel=0.01)
    page.press("ArrowDown")
    assert page.text(".lower .tools output") == "step 0"
    page.press("Enter")
    assert "step 0" in page.text(".details .facts")
    with clew.trace(reports.Net(layers=1)) as t:
        reports.Net(layers=1)(reports.TOKENS)
    page.open(t.html(tmp_path / "r.html").path)
    show(page, "gradients")
    assert "capture=['**:grad', '**:param']" in page.text("#panel-gradients")
    assert page.evaluate("document.getElementById('gradients').checkVisibility()") is False


def test_timeline_puts_the_backward_pass_under_its_modules(page: Page, training: Path) -> None:
    page.open(training)
    page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    shown = tips(page, "timeline")
    for module in ("Net", "blocks.2 Block", "blocks.0.attn Attention"):
        for step in (0, 1):
            assert any(tip.startswith(f"{module} | backward of step {step}") for tip in shown)
    assert any(tip.startswith("Net Net | ") and "forward · step 1" in tip for tip in shown)
    # Bands: passes of one step in different colours, on one line.
    band = set(colours(page, "timeline", [(x, 60) for x in range(2, 1380)]))
    assert len(band) >= 4
    # The strip of the whole run: its first fifth is of the first step, a click goes elsewhere.
    page.drag_in("#timeline", (2, 8), (250, 8))
    assert not any("step 1" in tip for tip in tips(page, "timeline"))
    page.click("#timeline", position={"x": 1385, "y": 8})
    assert not any("step 0" in tip for tip in tips(page, "timeline"))
    focus(page, "timeline")
    page.press("0")
    # From a bar of the backward pass to its first op.
    page.evaluate(
        """(() => {
        const canvas = document.getElementById('timeline');
        const tip = canvas.closest('.surface').querySelector('.tip');
        const box = canvas.getBoundingClientRect();
        for (let y = 75; y < box.height; y += 8) for (let x = 1; x < box.width; x += 2) {
          const at = { clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerId: 1 };
          canvas.dispatchEvent(new PointerEvent('pointermove', at));
          if (!tip.textContent.startsWith('blocks.1 Blockbackward')) continue;
          canvas.setPointerCapture = () => {};
          canvas.dispatchEvent(new PointerEvent('pointerdown', at));
          canvas.dispatchEvent(new PointerEvent('pointerup', at));
          return;
        }
    })()"""
    )
    assert page.text(".details .badge.backward") == "backward"
    assert "blocks.1" in page.text(".details .facts")


def test_dragging_a_range_adds_up_what_ran_in_it(
    page: Page, run: clew.Trace, training: Path
) -> None:
    page.open(training, at="at=%231")
    page.press("5", "z")
    page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    # The model's second call alone: a tenth of its time is in sight on each side of it.
    page.drag_in("#timeline", (113, 120), (1287, 120))
    page.until("document.querySelectorAll('.side tbody tr').length > 3")
    assert "chosen" in page.text(".lower .chosen")
    page.click(".side .choice button:has-text('Op')")
    page.until("document.querySelector('.side thead th').textContent.startsWith('Op')")
    all_ops = [event for event in run.events if event.kind == "op"]
    ops = [event for event in all_ops if event.step == 1 and event.phase == "forward"]
    inside = [event for event in ops if event.module is not None]
    names = [event.name.removeprefix("aten.").removesuffix(".default") for event in inside]
    rows = counts(page, ".side")
    for name in ("bmm", "native_layer_norm", "embedding", "_softmax"):
        assert rows[name] == str(names.count(name))
    focus(page, "timeline")
    page.press("Escape")
    page.until("document.querySelector('.side').hidden")
    # A click on the band of a step does the same for the step.
    page.press("0")
    assert {tip.split(" · ")[0] for tip in tips(page, "timeline") if "totals" in tip} == {
        "step 0", "step 1", "forward", "backward", "optimizer",
    }  # fmt: skip
    page.click("#timeline", position={"x": 1390, "y": 48})
    page.until("document.querySelectorAll('.side tbody tr').length > 3")
    page.until(f"{sum_of_calls('.side')} === {sum(event.step == 1 for event in all_ops)}")


def test_where_it_goes_adds_up_all_events(page: Page, run: clew.Trace, training: Path) -> None:
    page.open(training)
    show(page, "totals")
    page.click("#tab-totals")
    page.click(".lower .choice button:has-text('Op')")
    page.until("document.querySelector('.totals thead th').textContent.startsWith('Op')")
    names = page.texts(".totals tbody th button")
    calls = [int(text) for text in page.texts(".totals tbody td:nth-child(4)")]
    assert sum(calls) == len([event for event in run.events if event.kind == "op"])
    assert len(names) == len({event.name for event in run.events if event.kind == "op"})
    page.click(".totals thead th:nth-child(4) button")
    assert page.evaluate("document.querySelectorAll('.totals th')[3].ariaSort") == "descending"
    assert [int(text) for text in page.texts(".totals tbody td:nth-child(4)")] == sorted(calls)[
        ::-1
    ]
    page.press("Enter")
    assert list(map(int, counts(page, ".totals").values())) == sorted(calls)
    page.click(".lower .choice button:has-text('Class')")
    page.until("document.querySelector('.totals thead th').textContent.startsWith('Class')")
    rows = counts(page, ".totals")
    assert rows["Attention"] == "6"
    assert rows["Net"] == "2"
    page.click(".lower .choice button:has-text('Line')")
    page.until("document.querySelector('.totals thead th').textContent.startsWith('Line')")
    lines = page.texts(".totals tbody th")
    assert any("reports.py:" in line and "weights @ v" in line for line in lines)
    page.click(".totals tbody th button")
    assert page.text(TITLE) != ""


def test_every_rank_has_a_track_that_closes_and_scrolls(page: Page, tmp_path: Path) -> None:
    page.open(reports.two_ranks(tmp_path / "run.clew").html(tmp_path / "r.html").path, height=700)
    page.until("document.querySelectorAll('.lower .chip').length === 2")
    holder = "document.querySelector('#panel-timeline .holder')"
    assert page.evaluate(f"{holder}.scrollHeight > {holder}.clientHeight")
    assert page.texts(".lower .chip") == ["▾ rank 0", "▾ rank 1"]
    page.wheel("#timeline", 400)
    page.until(f"{holder}.scrollTop > 0")
    assert any(" in head" in tip or "head " in tip for tip in tips(page, "timeline"))
    page.click(".lower .chip >> nth=0")
    page.click(".lower .chip >> nth=1")
    assert page.texts(".lower .chip") == ["▸ rank 0", "▸ rank 1"]
    page.until(f"{holder}.scrollHeight <= {holder}.clientHeight")
    show(page, "layers")
    assert page.texts(".lower option")[-2:] == ["rank 0", "rank 1"]


TEXTS = [
    (["moment", 90e9, 10e9, 300e9], "1:30"),
    (["moment", 5e9, 5e9, 300e9], "0:05"),
    (["moment", 3725e9, 5e9, 4000e9], "62:05"),
    (["moment", 61.25e9, 0.05e9, 62e9], "1:01.25"),
    (["moment", 1.5e9, 0.5e9, 3e9], "1.5 s"),
    (["moment", 0.5e9, 0.5e9, 3e9], "0.5 s"),
    (["moment", 250e3, 50e3, 900e3], "250 µs"),
    (["percent", 0], "0 %"),
    (["percent", 1e-9], "< 0.01 %"),
    (["percent", 0.9999], "> 99.9 %"),
    (["percent", 1], "100 %"),
]


def test_numbers_of_axes_read_as_no_others() -> None:
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [node, str(Path(__file__).parent / "chart_text.mjs")],
        input=json.dumps([asked for asked, _ in TEXTS]),
        capture_output=True, text=True, timeout=HANG_GUARD, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [answer for _, answer in TEXTS]
