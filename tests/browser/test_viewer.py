"""The viewer in a real browser: it opens, follows, finds, and asks nobody for anything."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import clew
from tests.browser import reports
from tests.browser.contrast import poor
from tests.browser.page import Page

SELECTED = ".tree .row.selected .name"
TITLE = ".details h3"
LINE = ".code .line.now"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training().html(tmp_path_factory.mktemp("reports") / "training.html").path


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.crash().html(tmp_path_factory.mktemp("reports") / "crash.html").path


def test_opens_with_every_pane_filled(page: Page, training: Path) -> None:
    page.open(training)
    assert page.text("h1") == "training"
    assert "2 steps" in page.text(".summary")
    names = page.texts(".tree .row .name")
    assert names[:5] == ["steps 0 … 1 ×2", "step 0", "Net", "embed", "blocks.0 … blocks.2 ×3"]
    assert page.text(SELECTED) == "Net"
    assert page.evaluate("document.querySelectorAll('.graph .box').length") > 5
    assert "model(TOKENS)" in page.text(LINE)
    assert "→ f32[]  Net, logsumexp, mean" in page.text(LINE)
    assert "Net" in page.text(TITLE)
    assert page.evaluate("document.getElementById('timeline').width") > 300
    assert "no crash" in page.text(".findings")
    assert "no NaN or Inf" in page.text(".findings")
    assert poor(page) == []
    page.press("d")
    assert poor(page) == []


def test_tree_opens_and_closes_by_mouse_and_keys(page: Page, training: Path) -> None:
    page.open(training)
    before = len(page.texts(".tree .row"))
    page.click(".tree .row:has-text('blocks.0 …') .twist")
    assert len(page.texts(".tree .row")) == before + 3
    before += 3
    page.click(".tree .row:has-text('blocks.0Block') .twist")
    assert len(page.texts(".tree .row")) == before + 3
    assert "attn" in page.texts(".tree .row .name")
    page.click(".tree .row:has-text('blocks.0Block') .name")
    page.press("ArrowLeft")
    assert len(page.texts(".tree .row")) == before
    page.press("ArrowRight", "ArrowRight")
    assert page.text(SELECTED) == "norm"
    assert page.text(TITLE) == "blocks.0.norm"
    page.press("ArrowLeft", "u")
    assert page.text(TITLE) == "blocks.0 … blocks.2"
    page.press("u")
    assert page.text(TITLE) == "Net"
    page.press("End")
    assert page.text(SELECTED) == "step 1"
    active = "document.getElementById(document.getElementById('tree')"
    active += ".getAttribute('aria-activedescendant')).getAttribute('aria-selected')"
    assert page.evaluate(active) == "true"


def test_backward_and_optimizer_are_groups_of_the_modules(page: Page, training: Path) -> None:
    page.open(training)
    names = page.texts(".tree .row .name")
    assert "backward" in names
    assert "optimizer" in names
    page.click(".tree .row:has-text('backward') .twist")
    assert "blocks.2 … blocks.0 ×3" in page.texts(".tree .row.group .name")


def test_selecting_in_one_pane_moves_all_others(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.1.attn%230", height=1500)
    page.until("document.querySelector('.graph .box.selected') !== null")
    assert page.text(SELECTED) == "attn"
    assert page.text(".graph .box.selected .title") == "▾ attnAttention"
    assert "self.attn(self.norm(x))" in page.text(LINE)
    # From the graph.
    page.click(".graph [aria-label^='norm LayerNorm']")
    assert page.text(SELECTED) == "norm"
    assert page.text(TITLE) == "blocks.1.norm"
    # From the code: the line that calls it, then the next thing on that line.
    page.click(".code .line.now")
    assert page.text(TITLE) in ("blocks.1.attn", "blocks.1.norm", "add.Tensor")
    # From the details: what made the input.
    page.open(training, at="at=blocks.1.attn%230:in.0")
    page.click(".leaves td.from button")
    assert page.text(SELECTED) == "native_layer_norm"
    # From the timeline, zoomed to the first call of the whole model.
    page.open(training, at="at=%230")
    page.press("5", "z")
    page.evaluate("location.hash = 'at=head%230'")
    page.until("document.querySelector('.details h3').textContent === 'head'")
    page.click("#timeline", position={"x": 700, "y": 80})
    assert page.text(SELECTED) == "Net"


@pytest.mark.parametrize(
    ("asked", "matches", "first"),
    [
        ("blocks.*.attn", "6 matches", "blocks.0.attn"),
        ("blocks.[12].attn#1", "2 matches", "blocks.1.attn"),
        ("**.norm", "6 matches", "blocks.0.norm"),
        ("op:aten._softmax*", "12 matches", "_softmax"),
        ("op:_softmax#0", "1 match", "_softmax"),
        ("Attention", "6 matches", "blocks.0.attn"),
        ("no.such.module", "no match", ""),
        ("blocks.[", "this pattern cannot be read", ""),
    ],
)
def test_search_speaks_addresses(
    page: Page, training: Path, asked: str, matches: str, first: str
) -> None:
    page.open(training)
    page.press("/")
    page.type(asked)
    page.until(f"document.querySelector('.search .status').textContent === {matches!r}")
    if first:
        page.press("Enter")
        assert page.text(TITLE) == first
        assert page.text(".results li[aria-selected=true] b") == first
    page.press("Escape", "Escape")
    assert page.evaluate("document.activeElement.id") == "tree"


def test_search_agrees_with_python(page: Page, tmp_path: Path) -> None:
    trace = reports.training(1)
    page.open(trace.html(tmp_path / "r.html").path)
    line = trace["blocks.0.attn"][0].source
    assert line is not None
    asked = ["blocks.*", "**", "blocks.?.attn.qkv", "op:addmm", "op:aten.add*", f"line:{line}"]
    for address in asked:
        page.press("/")
        page.type(address)
        wanted = len(trace[address])
        page.until(f"parseInt(document.querySelector('.search .status').textContent) === {wanted}")
        page.press("Escape", "Escape")


def test_matches_are_gone_through_with_keys(page: Page, training: Path) -> None:
    page.open(training)
    page.press("/")
    page.type("op:_softmax")
    page.until("document.querySelector('.search .status').textContent === '6 matches'")
    page.press("Enter", "Escape", "Escape")
    page.press("/")
    page.type("blocks.*.norm")
    page.until("document.querySelector('.search .status').textContent === '6 matches'")
    page.press("ArrowDown", "ArrowDown")
    assert page.text(TITLE) == "blocks.1.norm"
    page.evaluate("document.getElementById('tree').focus()")
    page.press("n")
    assert page.text(TITLE) == "blocks.2.norm"
    page.press("p", "p")
    assert page.text(TITLE) == "blocks.0.norm"


def test_links_lead_to_events_and_values(page: Page, training: Path) -> None:
    page.open(training, at="at=op:aten._softmax.default%231:in.0")
    assert page.text(TITLE) == "_softmax"
    assert page.text(".leaves tr.shown th") == "0"
    page.press("]")
    where = page.evaluate("decodeURIComponent(location.hash)")
    assert re.fullmatch(r"#at=op:aten\._softmax\.default#[0-9]+:in\.0", where)
    assert where != "#at=op:aten._softmax.default#1:in.0"
    page.evaluate("location.hash = 'at=head%230'")
    page.until("document.querySelector('.details h3').textContent === 'head'")
    page.click(".tree .row:has-text('embed') .name")
    page.press("ArrowDown")
    assert page.text(TITLE) == "blocks.0 … blocks.2"
    page.evaluate("history.back()")
    page.until("document.querySelector('.details h3').textContent === 'head'")
    assert page.evaluate("document.querySelector('.badlink').hidden") is True
    page.evaluate("location.hash = 'at=blocks.77%230'")
    page.until("document.querySelector('.badlink').hidden === false")
    assert "The link names blocks.77#0, which is not in this page" in page.text(".badlink")
    assert page.text(TITLE) == "head"
    page.click(".tree .row:has-text('embed') .name")
    assert page.evaluate("document.querySelector('.badlink').hidden") is True


def test_values_have_histogram_heat_map_and_history(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.0.attn%230")
    page.until("document.querySelector('.details canvas') !== null")
    assert page.evaluate("document.querySelectorAll('.details .histogram rect').length") == 40
    assert page.evaluate("document.querySelectorAll('.tiles canvas').length") == 2
    pixels = "[...new Uint32Array(document.querySelector('.tiles canvas').getContext('2d')"
    assert page.evaluate(f"new Set({pixels}.getImageData(0, 0, 8, 6).data.buffer)]).size") > 10
    assert "1 of 2 calls" in page.text(".history h4")
    page.press("]")
    assert "2 of 2 calls" in page.text(".history h4")
    assert [*page.texts(".stats span")][:3] == ["min", "max", "mean"]
    # Without data there is still where the numbers lie.
    page.open(training, at="at=head%230")
    assert page.evaluate("document.querySelector('.details .range rect') !== null")


def test_crashed_run_opens_at_the_crash(page: Page, crashed: Path) -> None:
    page.open(crashed)
    assert "shapes cannot be multiplied" in page.text(".finding.crash")
    assert page.evaluate("document.querySelector('.finding.crash').getAttribute('role')") == "alert"
    assert page.text(SELECTED) == "addmm"
    assert "shapes cannot be multiplied" in page.text(".details .error")
    assert "shapes cannot be multiplied" in page.text(LINE)
    page.until("document.querySelector('.graph .box.failed.selected') !== null")
    page.press("Home")
    page.click(".finding.crash button")
    assert page.text(SELECTED) == "addmm"


def test_nonfinite_values_are_found_first(page: Page, tmp_path: Path) -> None:
    t = reports.nonfinite()
    page.open(t.html(tmp_path / "r.html").path)
    (finding,) = t.findings
    assert page.text("button.finding.bad").startswith(finding.text)
    assert page.text(SELECTED) == "log"
    page.press("Home")
    page.click("button.finding.bad")
    assert "NaN at log" in page.text(".findings .more")
    assert "log of a value ≤ 0" in page.text(".findings .more")
    page.click(".findings .more button")
    assert page.text(TITLE) == "log"
    assert page.text(".tree .row.selected .stat") == "NaN!"
    assert "no NaN or Inf" not in page.text(".findings")


@pytest.mark.parametrize("where", ["modules", "batch", "weight"])
def test_nan_is_never_beside_an_all_clear(page: Page, tmp_path: Path, where: str) -> None:
    t = reports.nan_from(where)
    page.open(t.html(tmp_path / "r.html").path)
    assert page.text("button.finding.bad").startswith(t.findings[0].text)
    assert page.evaluate("document.querySelector('.finding.fine')") is None
    assert "NaN!" in page.texts(".tree .row .stat")


def test_infinities_that_are_meant_raise_no_alarm(page: Page, tmp_path: Path) -> None:
    """A mask and a log(0) that is chosen away, as in T5: the page opens at the model."""
    t = reports.masked()
    assert {found.kind for found in t.nonfinite()} == {"absorbed"}
    page.open(t.html(tmp_path / "r.html").path)
    assert page.text(SELECTED) == "Masked"
    assert page.evaluate("document.querySelectorAll('.finding.bad, .finding.warn').length") == 0
    assert page.text("button.finding.mild").startswith("Inf that reaches no module's output")
    assert "no NaN or Inf where it matters" in page.text(".finding.fine")
    assert not {"NaN!", "Inf!"} & set(page.texts(".tree .row .stat"))


def test_what_nobody_looked_at_is_not_called_fine(page: Page, tmp_path: Path) -> None:
    model = reports.Net()
    for capture in ([], ["head"]):
        with clew.trace(model, capture=capture) as t:
            model(reports.TOKENS)
        page.open(t.html(tmp_path / f"{len(capture)}.html").path)
        assert "NaN and Inf not checked" in page.text(".finding.info")
        assert "no NaN" not in page.text(".finding.fine")


def test_gaps_are_listed_with_their_remedies(page: Page, tmp_path: Path) -> None:
    model = reports.Net()
    limits = clew.Limits(elements=10)
    with clew.trace(model, values="full", limits=limits) as t:
        model(reports.TOKENS)
    assert t.coverage
    page.open(t.html(tmp_path / "r.html").path)
    page.click("button.finding.warn")
    assert t.coverage[0].remedy in page.text(".findings .more")
    assert page.evaluate("document.querySelector('button.finding.warn').ariaExpanded") == "true"


def test_ranks_lie_beside_each_other(page: Page, tmp_path: Path) -> None:
    page.open(reports.two_ranks(tmp_path / "run.clew").html(tmp_path / "r.html").path, height=1500)
    assert "2 ranks" in page.text(".summary")
    ranks = [name for name in page.texts(".tree .row .name") if "rank" in name]
    assert ranks == ["ranks 0 … 1 ×2", "rank 0", "rank 1"]
    page.evaluate("location.hash = 'at=head%230&rank=1'")
    page.until("document.querySelector('.details h3').textContent === 'head'")
    assert "rank 1" in page.text(".details .facts")
    assert "2 of 2 calls" in page.text(".history h4")


def test_variables_taps_and_gradients_are_shown(page: Page, tmp_path: Path) -> None:
    page.open(reports.variables().html(tmp_path / "r.html").path)
    page.press("/")
    page.type("blocks.0.attn.forward.weights")
    page.until("document.querySelector('.search .status').textContent === '1 match'")
    page.press("Enter")
    assert page.text(TITLE) == "weights"
    assert page.text(".details .badge") == "variable"
    assert "weights ← " in page.text(LINE)
    # The graph shows the op that made it.
    page.until("document.querySelector('.graph .box.selected') !== null")
    assert page.text(".graph .box.selected .title") == "_softmax"
    page.until("document.querySelector('.details .histogram') !== null")
    for address, kind in (("loss", "tap"), ("blocks.0.norm#0:grad", "grad")):
        page.evaluate(f"location.hash = 'at=' + encodeURIComponent({address!r})")
        page.until(f"document.querySelector('.details .badge').textContent === {kind!r}")


def test_redacted_report_has_no_source(page: Page, tmp_path: Path) -> None:
    report = reports.training(1).html(tmp_path / "r.html", redact=True)
    page.open(report.path)
    assert "left out of this report" in page.text(".code .empty")
    assert page.evaluate("document.querySelector('.code .list').hidden") is True


def test_dark_and_light(page: Page, training: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    pen = "document.getElementById('timeline').getContext('2d')"
    bar = f"{pen}.getImageData(40, 24, 1, 1).data.join()"
    page.open(training, theme="light")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.press("d")
    dark = page.evaluate(background)
    assert dark == "rgb(18, 21, 27)"
    page.open(training, theme="dark")
    assert page.evaluate(background) == dark
    page.until(f"{bar} !== '0,0,0,0'")


def test_help_lists_the_keys(page: Page, training: Path) -> None:
    page.open(training)
    page.press("?")
    assert page.evaluate("document.querySelector('dialog.help').open") is True
    assert "search" in page.text("dialog.help")
    page.press("Escape")
    assert page.evaluate("document.querySelector('dialog.help').open") is False


def test_everything_has_a_name_for_screen_readers(page: Page, training: Path) -> None:
    page.open(training)
    nameless = """[...document.querySelectorAll('button, input, canvas, section, nav, [tabindex]')]
        .filter(e => !e.closest('[hidden], label') && !e.textContent.trim() && !e.ariaLabel)
        .map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(nameless) == []
    levels = "[...document.querySelectorAll('[role=treeitem]:not([hidden])')].map(e => e.ariaLevel)"
    assert page.evaluate(levels)[:3] == ["1", "2", "3"]


def test_works_in_a_sandboxed_frame(page: Page, training: Path, tmp_path: Path) -> None:
    host = tmp_path / "host.html"
    inner = html.escape(training.read_text(), quote=True)
    host.write_text(
        f'<iframe sandbox="allow-scripts" width=1200 height=800 srcdoc="{inner}"></iframe>'
    )
    page.open_any(host)
    page.until("document.documentElement.dataset.ready !== undefined", frame=True)
    page.until("document.querySelector('.graph .box') !== null", frame=True)
    assert page.evaluate("document.querySelector('.details h3').textContent", frame=True) == "Net"
    # The page may not reach out of its frame.
    assert page.evaluate("origin", frame=True) == "null"


def test_notebooks_show_it(page: Page, tmp_path: Path) -> None:
    host = tmp_path / "host.html"
    host.write_text(f"<meta charset=utf-8>{reports.training(1)._repr_mimebundle_()['text/html']}")
    page.open_any(host)
    page.until("document.documentElement.dataset.ready !== undefined", frame=True)
    assert page.evaluate("document.querySelector('.details h3').textContent", frame=True) == "Net"
    assert "Attention" in page.text("details pre")


def test_nothing_can_be_loaded(browser: Page, training: Path) -> None:
    browser.open(training)
    blocked = """new Promise(done => {
        document.addEventListener('securitypolicyviolation', e => done(e.effectiveDirective));
        const image = new Image();
        image.onload = () => done('loaded');
        // What was blocked has been told of before this; where nothing was, the test ends.
        image.onerror = () => setTimeout(() => done('asked for'), 10_000);
        image.src = 'https://example.com/x.png';
    })"""
    assert browser.evaluate(blocked) == "img-src"


def test_damaged_report_says_so(browser: Page, training: Path, tmp_path: Path) -> None:
    text = training.read_text()
    at = text.index('id="clew-data">') + 2000
    broken = tmp_path / "broken.html"
    broken.write_text(text[:at] + text[at + 400 :])
    browser.open_any(broken)
    browser.until("document.querySelector('.broken') !== null")
    assert "cannot be opened" in browser.text(".broken h1")
    assert "t.html(path)" in browser.text(".broken")


def test_names_from_strangers_are_only_text(page: Page, tmp_path: Path) -> None:
    model = reports.nn.Sequential()
    model.add_module("<img src=x onerror=alert(1)>", reports.nn.Linear(3, 3))
    with clew.trace(model, name="</script><script>document.title='gotcha'</script>") as t:
        model(reports.torch.ones(1, 3))
    page.open(t.html(tmp_path / "r.html").path)
    assert "gotcha" not in page.evaluate("document.title").replace("document.title='gotcha'", "")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert "<img src=x onerror=alert(1)>" in page.texts(".tree .row .name")


def test_many_events_scroll_in_few_elements(page: Page, tmp_path: Path) -> None:
    report = reports.many(16_000).html(tmp_path / "r.html", events=12_000)
    assert report.left_out
    page.open(report.path)
    assert "Left out" in page.text(".finding.warn")
    assert "t.html(path, events=" in page.text(".finding.warn")
    for _ in range(6):
        page.click(".tree .bar button >> nth=0")
    length = "document.querySelector('.tree .space').offsetHeight / 24"
    assert page.evaluate(length) > 9_000
    assert page.evaluate("document.querySelectorAll('.tree .row').length") < 80
    first = page.texts(".tree .row .name")
    page.wheel("#tree", 100_000)
    page.until("document.getElementById('tree').scrollTop > 90000")
    assert page.texts(".tree .row .name") != first
    page.press("End")
    assert page.evaluate("document.querySelectorAll('.tree .row').length") < 80
