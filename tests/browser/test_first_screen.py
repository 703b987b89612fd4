"""What the page shows before anything is clicked: findings and tree, as Python prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import clew
from clew.events.number_text import measured, time_text
from tests.browser import reports
from tests.browser.contrast import poor
from tests.browser.page import Page

SELECTED = ".tree .row.selected .name"


class Broadcasting(nn.Module):
    """Takes the logarithm of 0, and subtracts a column from a row."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        loss = (self.fc(x) - torch.ones(3)).pow(2).mean()
        return loss + (loss * 0 - 1).log()


def test_findings_are_the_list_that_print_shows(page: Page, tmp_path: Path) -> None:
    model = Broadcasting()
    with clew.trace(model, values="stats") as t:
        model(torch.ones(3, 4))
    severities = [found.severity for found in t.findings]
    assert severities == ["error", "warning"]
    page.open(t.html(tmp_path / "r.html").path)
    assert page.texts(".findings .finding span") == [found.text for found in t.findings]
    looks = page.evaluate("[...document.querySelectorAll('.finding')].map(e => e.className)")
    assert looks == ["finding bad", "finding warn"]
    # It opens at the worst; a click on any goes to its event.
    for at, finding in [(0, t.findings[0]), (1, t.findings[1]), (0, t.findings[0])]:
        if at or page.text(SELECTED) != "log":
            page.click(f".finding >> nth={at}")
        assert finding.event is not None
        assert page.text(".details .address code") == finding.event.address


def test_a_run_without_values_is_not_called_fine(page: Page, tmp_path: Path) -> None:
    """The model's forward pass comes first, not what prepares its data."""
    model, prepare = reports.Net(), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with clew.trace(model) as t:
        prepare(torch.ones(2, 8))
        model(reports.TOKENS)
    page.open(t.html(tmp_path / "r.html").path)
    assert page.text(SELECTED) == "Net"
    names = page.texts(".tree .row .name")
    assert names[names.index("Net") + 1] == "embed"
    colour = "getComputedStyle(document.querySelector('.finding.info')).color"
    dim = "getComputedStyle(document.querySelector('.summary')).color"
    assert page.evaluate(colour) == page.evaluate(dim)
    assert "NaN" not in page.text(".finding.fine")


def test_inf_that_reaches_nothing_is_amber_in_a_list(page: Page, tmp_path: Path) -> None:
    t = reports.masked()
    page.open(t.html(tmp_path / "r.html").path)
    assert page.text(SELECTED) == "Masked"
    assert page.evaluate("document.querySelectorAll('.finding.bad, .row .bad').length") == 0
    page.click("button.finding.mild")
    listed = page.texts(".findings .more li")
    assert len(listed) == t.findings[0].count
    assert "Inf at log" in listed[0]
    assert poor(page) == []
    page.press("d")
    assert poor(page) == []


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))  # noqa: E731
        self.h = nn.ModuleList(block() for _ in range(32))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x * 1e-13


ROWS = """[...document.querySelectorAll('.tree .row:not([hidden])')].map(row =>
    ['name', 'shape', 'stat', 'spent'].map(part => row.querySelector('.' + part).textContent))"""
CLIPPED = """[...document.querySelectorAll('.tree .row:not([hidden]) :is(.stat, .spent)')]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""


def cells(event: clew.Event) -> list[Any]:
    """What a row of the tree says of an event."""
    stats = event.outputs["0" if "0" in event.outputs else ""].stats
    assert stats is not None
    assert stats.mean is not None
    assert stats.std is not None
    # The page has numbers of 32 bits.
    spent = float(np.float32(round((event.duration or 0) * 1e9))) / 1e9
    mean, std = (measured(float(np.float32(n))) for n in (stats.mean, stats.std))
    return [next(iter(event.outputs.values())).look, f"{mean} ± {std}", time_text(spent)]


def test_the_tree_is_folded_and_written_as_the_printed_one(page: Page, tmp_path: Path) -> None:
    model = Layers()
    with clew.trace(model, values="stats") as t:
        model(torch.randn(2, 4))
    assert "h.0 … h.31 ×32  Sequential" in str(t)
    page.open(t.html(tmp_path / "r.html").path, width=2400, height=1500)
    page.evaluate("document.documentElement.style.setProperty('--left', '900px')")
    rows = page.evaluate(ROWS)
    names = [row[0] for row in rows]
    assert names[:3] == ["randn", "Layers", "h.0 … h.31 ×32"]
    assert names[3] == "mul.Tensor"
    assert rows[2][3].startswith("32×")
    assert rows[1][1:] == cells(t["#0"].one)
    assert rows[3][1:] == cells(t["op:mul"][-1])
    assert "e-1" in rows[3][2]
    assert page.evaluate(CLIPPED) == []
    page.click(".tree .row:has-text('h.0 …') .twist")
    opened = page.evaluate(ROWS)
    assert [row[0] for row in opened][3:35] == [f"h.{number}" for number in range(32)]
    for number in (0, 31):
        assert opened[3 + number][1:] == cells(t[f"h.{number}"].one)
    # Classes of one family have one colour: Dropout is no Linear.
    page.click(".tree .row:has-text('h.7S') .twist")
    dots = "[...document.querySelectorAll('.tree .row')].filter(e => /Linear$|Dropout/.test("
    dots += "e.querySelector('.cls').textContent)).map(e => e.querySelector('.dot').className)"
    assert len(set(page.evaluate(dots))) == 2
    page.evaluate("document.documentElement.style.setProperty('--left', '330px')")
    assert page.evaluate(CLIPPED) == []


class Exploding(nn.Module):
    """Layers of which one returns NaN, and all look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x.sum()


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Exploding()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


def test_a_fold_does_not_hide_nan(page: Page, tmp_path: Path) -> None:
    model = Around()
    nn.init.constant_(model.inner.h[2][0].weight, torch.nan)
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 4))
    page.open(t.html(tmp_path / "r.html").path)
    assert page.text(SELECTED) == "t"  # of the weight that holds NaN
    stats = {row[0]: row[2] for row in page.evaluate(ROWS)}
    assert stats["h.0 … h.3 ×4"] == "NaN!"


def test_the_model_is_open_as_far_as_a_screen_shows_it(page: Page, tmp_path: Path) -> None:
    model = Around()
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 4))
    page.open(t.html(tmp_path / "r.html").path)
    names = page.texts(".tree .row .name")
    assert names == ["ones", "Around", "inner", "h.0 … h.3 ×4", "sum", "add.Tensor"]
