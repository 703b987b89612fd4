"""The page of a comparison in a real browser: it opens where two runs part, with both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

import clew
from tests import run_pairs
from tests.browser.contrast import poor
from tests.browser.page import Page
from tests.run_pairs import Port, recorded

TITLE = ".details h3"
SELECTED = ".tree .row.selected"
FIRST = ".tree .row.first"


@pytest.fixture(scope="module")
def eps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one program whose fourth norm differs, with all data."""
    a, b = (recorded(run_pairs.changed(eps=eps), values="full") for eps in (1e-5, 1e-2))
    path = tmp_path_factory.mktemp("pages") / "eps.html"
    clew.diff(a, b).html(path, title="before and <b>after</b>")
    return path


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A port that is right, with a class whose name is no HTML."""
    model = run_pairs.original()
    hostile = type("<img src=x onerror=alert(1)>", (Port,), {})
    path = tmp_path_factory.mktemp("pages") / "port.html"
    clew.diff(recorded(model), recorded(hostile(model))).html(path)
    return path


def sides(page: Page, row: str) -> list[str]:
    return page.texts(f"{row} .name")


def test_opens_where_the_runs_part_with_both_sides(page: Page, eps: Path) -> None:
    page.open(eps)
    assert page.text("h1") == "before and <b>after</b>"
    assert "The runs part at aten.native_layer_norm" in page.text(".verdict h2")
    assert "its inputs agree bit for bit" in page.text(".verdict ul")
    assert sides(page, SELECTED) == sides(page, FIRST) == ["native_layer_norm"] * 2
    assert page.text(TITLE) == "native_layer_norm"
    assert "the runs part here" in page.text(".details .badges")
    lines = page.texts(".card .line.now code")
    assert len(lines) == 2
    assert all("self.up(self.norm(x))" in line for line in lines)
    assert "x = layer(x)" in page.texts(".card .callers")[1]
    settings = page.texts(".details .leaves")[0]
    assert "layers.3.norm" in settings
    assert "1e-05" in settings
    assert "0.01" in settings
    page.until("document.querySelectorAll('.both .b rect').length === 40")
    assert page.evaluate("document.querySelectorAll('.both .a rect').length") == 40
    outer = page.texts(".tree .row.outer .name")
    assert outer[:4] == ["Net", "Net", "layers.0 … 2", "layers.0 … 2"]
    assert "×3" in page.texts(".tree .row.outer .cls")
    assert "of 30 calls beyond noise" in page.text(".calls .bar")
    assert page.evaluate("document.querySelectorAll('.calls .row.beyond:not([hidden])').length") > 2


def test_keys_clicks_search_and_back(page: Page, eps: Path) -> None:
    page.open(eps)
    page.press("]")
    assert page.text(TITLE) == "view"
    page.press("[", "ArrowUp")
    assert page.text(TITLE) == "layers.3.norm"
    page.press("f")
    assert page.text(TITLE) == "native_layer_norm"
    page.click(".tree .row:has-text('layers.0 … 2') .name")
    page.press("ArrowRight", "ArrowDown")
    assert page.text(TITLE) == "layers.0"
    assert "matches, bit for bit" in page.text(".details .badges")
    assert "at=b%3Alayers.0%230" in str(page.evaluate("location.hash"))
    page.click(".calls .row:has-text('layers.1.up') .name")
    assert page.text(TITLE) == "layers.1.up"
    page.evaluate("history.back()")
    page.until("document.querySelector('.details h3').textContent === 'layers.0'")
    page.press("x")
    assert "layers.0 … 2" not in page.texts(".tree .row .name")
    page.press("/")
    page.type("op:relu")
    page.until("document.querySelector('.search .status').textContent === '7 matches'")
    page.press("Enter")
    assert page.text(TITLE) == "relu"
    assert poor(page) == []
    page.press("Escape", "Escape", "d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert poor(page) == []


def test_two_equal_runs_have_a_page_too(page: Page, port: Path) -> None:
    page.open(port)
    assert "No difference beyond noise" in page.text(".verdict.fine h2")
    assert "calls that both runs have" in page.text(".verdict .note")
    assert "100 %" in page.text(".sums")
    assert "harmless" in page.text(".sums")
    assert page.text(TITLE) == "Net ↔ <img src=x onerror=alert(1)>"
    assert page.evaluate("document.images.length") == 0
    assert "layers.0 … 6" in page.texts(".tree .row .name")
    assert "body" in page.texts(".tree .row .name")
    assert page.evaluate("document.querySelectorAll('.calls .row.beyond').length") == 0
    page.click(".calls .row:has-text('layers.6 ↔ body.h.6') .name")
    assert page.text(TITLE) == "layers.6 ↔ body.h.6"
    # Ops that only the port has lead to ops of the original that give the same.
    page.press("/")
    page.type("op:mul")
    page.until("document.querySelector('.search .status').textContent === '7 matches'")
    page.press("Enter")
    assert "a has nothing in this place." in page.text(".card.none")
    page.click(".card.none .link")
    assert page.text(TITLE).startswith("relu")


def test_links_lead_to_rows_and_bad_ones_say_so(page: Page, port: Path) -> None:
    page.open(port, at="at=b%3Abody.h.4%230")
    assert page.text(TITLE) == "layers.4 ↔ body.h.4"
    page.open(port, at="at=b%3Abody.h.44%230")
    assert "The link names b:body.h.44#0, which is not in this page" in page.text(".badlink")
    assert page.text(TITLE).startswith("Net")
