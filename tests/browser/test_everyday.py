"""What one does all day with a page: read, search, scrub, link, print, and that on a phone too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import clew
from clew.views.html import report as report_module
from tests.browser import reports
from tests.browser.contrast import poor
from tests.browser.page import Page

SELECTED = ".tree .row.selected .name"
TITLE = ".details h3"
BODY = "document.querySelector('.details .body')"

# Texts that are cut so that the last one can see is a digit, in the tree, the source and the head.
# Where a browser draws an ellipsis, the characters it hides still have their places.
_CUT = """(() => {
  const found = [];
  const cells = ".tree .row > span, .code .line > *, .summary, .details :is(b, dd, td, th, h3)";
  for (const cell of document.querySelectorAll(cells)) {
    const box = cell.getBoundingClientRect();
    if (!box.width || cell.closest("[hidden], .printed")) continue;
    if (/\\d…/.test(cell.textContent)) found.push(cell.textContent);
    if (cell.scrollWidth <= cell.clientWidth) continue;
    if (getComputedStyle(cell).overflow !== "hidden") continue;
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = getComputedStyle(cell).font;
    const padding = parseFloat(getComputedStyle(cell).paddingRight);
    const end = box.right - padding - pen.measureText("…").width;
    let seen = "";
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (let at = 0; at < texts.currentNode.data.length; at++) {
      const range = document.createRange();
      range.setStart(texts.currentNode, at);
      range.setEnd(texts.currentNode, at + 1);
      if (range.getBoundingClientRect().right <= end) seen += texts.currentNode.data[at];
    }
    if (/\\d$/.test(seen)) found.push(seen);
  }
  return found;
})()"""

_SMALL_TARGETS = """[...document.querySelectorAll(
        'button, [role=tab], [role=treeitem], .line.ran, input, summary')]
    .filter(e => !e.closest('[hidden], dialog, .printed') && e.checkVisibility())
    .map(e => [e, (e.closest('.check') ?? e).getBoundingClientRect()])
    .filter(([e, box]) => box.width && (box.height < 40 || box.width < 40))
    .map(([e, box]) => `${e.outerHTML.slice(0, 60)} ${box.width} ${box.height}`)"""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training(3).html(tmp_path_factory.mktemp("reports") / "training.html").path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.pictures().html(tmp_path_factory.mktemp("reports") / "pictures.html").path


def test_numbers_are_whole_or_not_there(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.1.attn.out%232", width=1100)
    for left in (150, 200, 225, 260, 310, 440, 470):
        page.evaluate(f"document.documentElement.style.setProperty('--left', '{left}px')")
        page.until(f"document.querySelector('.tree').offsetWidth === {left}")
        page.until(f"({_CUT}).length === 0")
    # What has no room is in the title.
    page.evaluate("document.documentElement.style.setProperty('--left', '190px')")
    short = "[...document.querySelectorAll('.tree .shape')].find(e => /…$/.test(e.textContent))"
    page.until(f"{short} !== undefined")
    shown, whole = page.evaluate(f"(e => [e.textContent, e.title])({short})")
    assert whole.startswith("f32[")
    assert whole.startswith(shown.removesuffix("…"))


def test_a_link_brings_back_the_same_page(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.0.attn.qkv%231:in.0", theme="light")
    page.press("/")
    page.type("blocks.*.norm")
    page.until("document.querySelector('.search .status').textContent === '9 matches'")
    page.press("Escape")
    page.evaluate("document.querySelector('.splitter.column').focus()")
    page.press("ArrowLeft", "ArrowLeft", "d")
    width = page.evaluate("document.querySelector('.tree').offsetWidth")
    assert width == 360

    def state() -> list[object]:
        return [
            page.text(TITLE),
            page.text(".leaves tr.shown th"),
            page.evaluate("document.getElementById('search').value"),
            page.evaluate("document.documentElement.dataset.theme"),
            page.evaluate("document.querySelector('.tree').offsetWidth"),
            page.evaluate("document.querySelectorAll('.tree .row.marked').length > 0"),
        ]

    before = ["blocks.0.attn.qkv", "0", "blocks.*.norm", "dark", width, True]
    assert state() == before
    page.reload()
    assert state() == before
    page.open(training, at=page.evaluate("location.hash.slice(1)"), theme="light")
    assert state() == before
    # Matches are gone through without searching again; what is gone back to looks as it does now.
    page.press("n")
    assert page.text(TITLE) == "blocks.0.norm"
    page.click(".tree .row:has-text('embed') .name")
    page.press("d")
    page.evaluate("history.back()")
    page.until("document.querySelector('.details h3').textContent === 'blocks.0.norm'")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    # Groups have links too.
    page.click(".tree .row.group:has-text('backward') .name")
    page.reload()
    assert page.text(SELECTED) == "backward"
    assert page.text(TITLE) == "backward"


def test_search_gives_the_keys_back_and_its_list_closes(page: Page, training: Path) -> None:
    closed = "document.getElementById('results').hidden"
    page.open(training)
    page.press("/")
    page.type("blocks.*.norm#0")
    page.until(f"{closed} === false")
    page.press("Enter")
    assert page.evaluate(closed) is True
    assert page.text(TITLE) == "blocks.0.norm"
    page.press("n", "n")
    assert page.text(TITLE) == "blocks.2.norm"
    page.press("p")
    assert page.text(TITLE) == "blocks.1.norm"
    page.press("/")
    assert page.evaluate(closed) is False
    page.click(".results li >> nth=2")
    assert page.evaluate(closed) is True
    assert page.text(TITLE) == "blocks.2.norm"
    page.press("/")
    page.click(".details .address")
    assert page.evaluate(closed) is True
    page.press("Escape")
    assert page.evaluate("document.getElementById('search').value") == ""
    assert page.evaluate("document.querySelectorAll('.tree .row.marked').length") == 0


def test_scrubbing_keeps_its_place(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.0.attn%230:in.0", height=700)
    page.until("document.querySelector('.details .plot.pick') !== null")
    page.evaluate(f"{BODY}.scrollTop = 250")
    top = page.evaluate(f"{BODY}.scrollTop")
    assert top > 100
    page.press("]")
    assert "2 of 3 calls" in page.text(".history h4")
    assert page.text(".leaves tr.shown th") == "0"
    assert page.evaluate(f"{BODY}.scrollTop") == top
    # By a click into a chart, and by its keys.
    page.evaluate("document.querySelector('.details .plot.pick').scrollIntoView({block: 'center'})")
    top = page.evaluate(f"{BODY}.scrollTop")
    width = page.evaluate("document.querySelector('.details .plot.pick').clientWidth")
    page.click(".details .plot.pick", position={"x": width - 8, "y": 40})
    assert "3 of 3 calls" in page.text(".history h4")
    assert page.text(".leaves tr.shown th") == "0"
    page.evaluate("document.querySelector('.details .plot.pick').focus()")
    page.press("ArrowLeft", "ArrowLeft")
    assert "1 of 3 calls" in page.text(".history h4")
    assert page.evaluate(f"{BODY}.scrollTop") == top
    # Another value of the same event leaves it there too; another event begins at the top.
    page.evaluate("document.querySelectorAll('.leaves .link.shape')[1].click()")
    page.until("document.querySelector('.details canvas') !== null")
    assert page.evaluate(f"{BODY}.scrollTop") == top
    page.press("u")
    assert page.evaluate(f"{BODY}.scrollTop") == 0


def test_gradients_carry_paths_and_leave_backward_whole(page: Page, tmp_path: Path) -> None:
    model = reports.Net(layers=1)
    with clew.trace(model, capture=["**:grad"]) as t:
        model(reports.TOKENS).logsumexp(-1).mean().backward()
    page.open(t.html(tmp_path / "r.html").path, height=2000)
    assert page.texts(".tree .row .name").count("backward") == 1
    page.click(".tree .row:has-text('backward') .twist")
    names = page.texts(".tree .row .name")
    assert ":grad" in names
    page.evaluate("location.hash = 'at=' + encodeURIComponent('blocks.0.attn.out.weight#0:grad')")
    page.until(f"document.querySelector('{TITLE}').textContent === 'blocks.0.attn.out.weight:grad'")
    assert page.text(SELECTED) == "blocks.0.attn.out.weight:grad"


def test_charts_have_axes_a_readout_and_a_line_per_rank(
    page: Page, training: Path, tmp_path: Path
) -> None:
    page.open(training, at="at=head%231")
    chart = "document.querySelector('.history .curves')"
    assert page.text(".history .curves .mid:not(.tick)") == "step"
    texts = page.evaluate(f"[...{chart}.querySelectorAll('text')].map(e => e.textContent)")
    assert texts[-3:] == ["0", "1", "2"]
    assert len([text for text in texts if re.fullmatch(r"-?[\d.]+", text)]) >= 6
    assert page.text(".history .readout").startswith("step 1: mean ")
    page.evaluate(f"{chart}.scrollIntoView()")
    page.hover(".history .curves svg", position={"x": 50, "y": 40})
    assert page.text(".history .readout").startswith("step 0: mean ")
    assert "std" in page.text(".history .readout")
    page.hover(".details h3")
    assert page.text(".history .readout").startswith("step 1: mean ")
    two = reports.two_ranks(tmp_path / "run.clew").html(tmp_path / "r.html").path
    page.open(two, at="at=head%230&rank=1")
    lines = f"new Set([...{chart}.querySelectorAll('path')].map(e => e.className.baseVal)).size"
    assert page.evaluate(lines) == 2
    assert "rank 0" in page.text(".history .curves figcaption")
    assert re.search(r"rank 0 \S+, rank 1 ", page.text(".history .readout"))


def test_kept_values_are_pictures_of_all_slices_and_steps(page: Page, pictures: Path) -> None:
    page.open(pictures, at="at=op:aten._softmax.default%231")
    page.until("document.querySelectorAll('.slices canvas').length === 6")
    assert page.texts(".slices figcaption")[:2] == ["head 0, item 0", "head 1, item 0"]
    assert "1–6 of 16" in page.text(".pager")
    page.click(".pager button >> nth=1")
    page.click(".pager button >> nth=1")
    assert page.texts(".slices figcaption")[-1] == "head 7, item 1"
    assert page.texts(".film button") == ["step 0", "step 1", "step 2"]
    assert page.text(".film [aria-pressed=true]") == "step 1"
    page.click(".film button >> nth=2")
    assert "3 of 3 calls" in page.text(".history h4")
    assert page.texts(".slices figcaption")[-1] == "head 7, item 1"
    # Three channels are one picture in colour, which can be taken apart.
    page.open(pictures, at="at=conv%230:in.0")
    page.until("document.querySelectorAll('.slices canvas').length === 2")
    pixel = "document.querySelector('.slices canvas').getContext('2d').getImageData(3, 3, 1, 1)"
    assert page.evaluate(f"new Set([...{pixel}.data].slice(0, 3)).size") > 1
    page.click(".pager button:has-text('as channels')")
    assert page.texts(".slices figcaption")[:4] == ["[0, 0]", "[0, 1]", "[0, 2]", "[1, 0]"]


def test_every_pane_is_reachable_on_a_phone(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.0.attn%230", width=390, height=844)
    panes = {
        "Tree": ".tree .row", "Graph": ".graphs", "Code": ".code .line", "Details": TITLE,
        "Charts": "#timeline",
    }  # fmt: skip
    assert page.texts(".panetabs button") == list(panes)
    for name, inside in panes.items():
        page.click(f".panetabs button:has-text('{name}')")
        seen = [
            other
            for other, place in panes.items()
            if page.evaluate(f"!!document.querySelector({place!r}).checkVisibility()")
        ]
        assert seen == [name]
        box = page.evaluate(f"document.querySelector({inside!r}).getBoundingClientRect().toJSON()")
        assert box["width"] > 60
        assert page.evaluate(_SMALL_TARGETS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert poor(page) == []
    page.reload()
    assert page.evaluate(
        "document.querySelector('.panetabs [aria-selected=true]').textContent"
    ) == ("Charts")
    page.press("4")
    assert page.evaluate(f"{BODY}.checkVisibility()") is True
    assert page.text(TITLE) == "blocks.0.attn"
    page.click(".panetabs button:has-text('Tree')")
    page.click(".tree .row:has-text('head') .name")
    page.click(".panetabs button:has-text('Details')")
    assert page.text(TITLE) == "head"


def test_print_is_a_sheet_not_a_screenshot(page: Page, tmp_path: Path) -> None:
    t = reports.crash()
    page.open(t.html(tmp_path / "r.html").path, theme="dark")
    page.press("d", "d")
    assert page.evaluate("document.querySelector('.printed').checkVisibility()") is False
    page.media("print")
    page.until("document.querySelector('.printed').checkVisibility()")
    page.until("document.querySelector('.printed h2') !== null")
    sheet = page.text(".printed")
    assert t.findings[0].text in sheet
    assert "netNet" not in sheet
    rows = page.texts(".printed .calls td:first-child")
    assert rows[:3] == ["Wrong", "net Net", "embed Embedding"]
    assert "f32[2,6,16]" in page.texts(".printed .calls .shape")
    assert page.text(".printed .body h3") == "addmm"
    assert "shapes cannot be multiplied" in page.text(".printed .body .error")
    assert page.evaluate("document.querySelector('main').checkVisibility()") is False
    assert page.evaluate("getComputedStyle(document.querySelector('.printed')).color") == (
        "rgb(28, 34, 48)"
    )
    assert poor(page) == []
    page.media("screen")
    assert page.evaluate("document.querySelector('main').checkVisibility()") is True
    page.pdf(tmp_path / "r.pdf")
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")


def test_texts_stand_out_wherever_they_are(page: Page, pictures: Path) -> None:
    for theme in ("light", "dark"):
        page.open(pictures, at="at=op:aten._softmax.default%231", theme=theme)
        page.until("document.querySelector('.film') !== null")
        page.press("/")
        page.type("conv")
        page.until("document.getElementById('results').hidden === false")
        assert poor(page) == []
        page.press("Enter", "?")
        assert poor(page) == []
        page.press("Escape")
        page.evaluate("location.hash = 'at=nothing'")
        page.until("document.querySelector('.badlink').hidden === false")
        assert poor(page) == []


def test_focus_can_be_seen_wherever_it_is(page: Page, training: Path) -> None:
    page.open(training, at="at=blocks.0.attn%230")
    page.until("document.querySelector('.details canvas') !== null")
    page.press("/")
    focus = """(e => {
      const style = getComputedStyle(e);
      const seen = parseFloat(style.outlineWidth) >= 1 && style.outlineStyle !== "none"
        || style.boxShadow !== "none" || e.matches(".splitter, .box");
      return [e.localName + "." + (e.getAttribute("class") ?? ""), seen];
    })(document.activeElement)"""
    met = set()
    for _ in range(45):
        name, seen = page.evaluate(focus)
        # After the last element the browser itself has the focus.
        assert seen or name == "body.", name
        met.add(name)
        page.press("Tab")
    assert {"div.list", "div.body", "input."} <= met


def test_statistics_of_a_long_run_come_after_the_first_picture(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "_MOST_AT_ONCE", 10)
    report = reports.training(1).html(tmp_path / "r.html")
    page.open(report.path, at="at=head%230")
    page.until("document.documentElement.dataset.complete !== undefined")
    assert page.text(".stats span") == "min"
    page.evaluate("document.documentElement.style.setProperty('--left', '520px')")
    assert any("±" in text for text in page.texts(".tree .row .stat"))
    # Without them the rest is there.
    text = Path(report.path).read_text()
    at = text.index('id="clew-later">') + 500
    broken = tmp_path / "broken.html"
    broken.write_text(text[:at] + text[at + 400 :])
    page.open(broken, at="at=head%230")
    page.until("document.documentElement.dataset.complete !== undefined")
    assert "The statistics in this page cannot be read" in page.text(".badlink")
    assert page.text(TITLE) == "head"
