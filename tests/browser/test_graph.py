"""The graph of the page in a real browser: it is that of `t.graph()`, and boxes open and close."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import clew
from tests.browser import reports
from tests.browser.page import Page

SVG = "{http://www.w3.org/2000/svg}"
TITLE = ".details h3"
SHEET = "document.querySelector('.graph .drawn').getAttribute('transform')"
Facts = tuple[Counter[str], Counter[str], Counter[str]]


class Cached(nn.Module):
    """A cache that begins empty, one module called twice, a skip, one class that has no family."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("cache", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        cache = torch.cat([torch.empty(0), self.drop(self.mix(x))])
        kept = torch.cat([self.cache, cache]).relu()
        return self.mix(kept) + x


def cached() -> clew.Trace:
    model = Cached().eval()
    with clew.trace(model) as t:
        model(torch.ones(2, 4))
    return t


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training().html(tmp_path_factory.mktemp("graphs") / "training.html").path


def drawn_by_python(graph: clew.GraphView) -> Facts:
    """Boxes, edges with their kinds and the labels of a picture."""
    found = list(ElementTree.fromstring(graph.svg()).iter())
    boxes = Counter(e.get("data-node", "") for e in found if e.get("data-node"))
    edges = Counter(f"{e.get('data-edge')} {e.get('class')}" for e in found if e.get("data-edge"))
    labels = [e.text or "" for e in found if e.get("class", "").startswith("label")]
    return boxes, edges, Counter(labels)


def drawn_by_page(page: Page) -> Facts:
    boxes = "[...document.querySelectorAll('.graph [data-node]')].map(e => e.dataset.node)"
    edges = """[...document.querySelectorAll('.graph [data-edge]')].map(
        e => `${e.dataset.edge} edge ${['data', 'view', 'write', 'order'].find(
            kind => e.classList.contains(kind))}`)"""
    return (
        Counter(page.evaluate(boxes)),
        Counter(page.evaluate(edges)),
        Counter(page.texts(".graph .label")),
    )


def box(name: str) -> str:
    """The selector of a box by the beginning of what it is called."""
    return f".graph .box[aria-label^={json.dumps(name, ensure_ascii=False)}]"


def open_graph(page: Page, path: Path, at: str = "at=%230", **options: str) -> None:
    page.open(path, at, **options)
    page.until("document.querySelector('.graph .box.selected') !== null")


def fill(page: Page) -> None:
    """Give the graph the whole page and show all of it, so that every box can be clicked."""
    page.evaluate("document.getElementById('graph').focus()")
    page.press("w", "f")


@pytest.mark.parametrize("trace", [reports.training, reports.crash, reports.masked, cached])
def test_the_page_draws_what_python_draws(
    page: Page, tmp_path: Path, trace: Callable[[], clew.Trace]
) -> None:
    t = trace()
    open_graph(page, t.html(tmp_path / "r.html").path)
    assert drawn_by_page(page) == drawn_by_python(t.graph())
    page.click("[aria-label^='Collapse all']")
    assert drawn_by_page(page) == drawn_by_python(t.graph(depth=1))


def test_empty_tensors_draw_no_edge(page: Page, tmp_path: Path) -> None:
    open_graph(page, cached().html(tmp_path / "r.html").path)
    assert "f32[0]" not in page.texts(".graph .label")
    assert "empty" not in page.texts(".graph .box .title")
    # Both calls of the module that is shared have a box.
    assert page.texts(".graph .box.is-call .title").count("▸ mix") == 2


def test_one_of_the_layers_is_picked(page: Page, training: Path) -> None:
    open_graph(page, training)
    fill(page)
    stack = box("blocks.0 … 2 Block")
    picked = f"{stack} > .picker .picked"
    assert "×3" in page.text(f"{stack} .title")
    assert page.text(picked) == "1 / 3"
    page.click(f"{stack} > .picker [data-by='1']")
    page.until(f"document.querySelector({json.dumps(TITLE)}).textContent === 'blocks.1'")
    assert page.text(picked) == "2 / 3"
    # What is selected in the stack moves along, by the stack's control and by the one above.
    page.click(box("norm LayerNorm"))
    assert page.text(TITLE) == "blocks.1.norm"
    page.click(f"{stack} > .picker [data-by='1']")
    assert page.text(TITLE) == "blocks.2.norm"
    page.click(".graphs .stepper [aria-label='blocks.0 … 2: the one before']")
    assert page.text(TITLE) == "blocks.1.norm"
    page.evaluate("document.getElementById('graph').focus()")
    page.press("PageDown", "PageDown")
    assert page.text(TITLE) == "blocks.0.norm"
    # Any other way to a layer picks it too.
    page.evaluate("location.hash = 'at=blocks.2.attn.out%230'")
    page.until(f"document.querySelector({json.dumps(picked)}).textContent === '3 / 3'")


def test_steps_are_picked_and_backward_is_shown_at_its_forward(page: Page, training: Path) -> None:
    open_graph(page, training)
    steps = ".graphs .stepper:first-child"
    assert page.text(steps) == "step 0‹1 / 2›"
    page.click(f"{steps} [aria-label$='next']")
    page.until(f"document.querySelector('{steps}').textContent === 'step 1‹2 / 2›'")
    assert page.text(".details .address").startswith("#1")
    # An op of the backward pass has no box of its own.
    page.press("/")
    page.type("op:aten._softmax_backward_data#1")
    page.until("document.querySelector('.search .status').textContent === '1 match'")
    page.press("Enter")
    page.until("document.querySelector('.graph .box.selected .title').textContent === '_softmax'")
    assert page.text(".graphs .stepper:nth-child(2)") == "blocks.0 … 2‹2 / 3›"


def test_ranks_share_a_graph(page: Page, tmp_path: Path) -> None:
    path = reports.two_ranks(tmp_path / "run.clew").html(tmp_path / "r.html").path
    open_graph(page, path, "at=head%230&rank=1")
    assert page.text(".graphs .stepper") == "rank 1‹2 / 2›"
    page.click(".graphs .stepper button")
    page.until("document.querySelector('.graphs .stepper').textContent === 'rank 0‹1 / 2›'")
    assert "rank 0" in page.text(".details .facts")


def test_a_selection_closes_what_it_opened(page: Page, training: Path) -> None:
    open_graph(page, training)
    fill(page)
    boxes = "document.querySelectorAll('.graph .box').length"
    begun = page.evaluate(boxes)
    assert page.texts(f"{box('qkv Linear')}[aria-expanded=false]")
    page.evaluate("location.hash = 'at=' + encodeURIComponent('op:aten.addmm.default#2')")
    page.until("document.querySelector('.graph .box.selected .title').textContent === 'addmm'")
    assert page.evaluate(boxes) == begun + 1
    # The person opens a box, which selects it: the one opened for the selection before closes.
    page.press("f")
    page.double_click(f"{box('embed Embedding')} .title")
    page.until(f"document.querySelector(`{box('embed Embedding')}[aria-expanded=true]`)")
    page.until(f"{boxes} === {begun + 1}")
    assert page.texts(f"{box('qkv Linear')}[aria-expanded=false]")
    page.evaluate("location.hash = 'at=head%230'")
    page.until("document.querySelector('.graph .box.selected .title').textContent === '▸ head'")
    assert page.evaluate(boxes) == begun + 1
    assert page.texts(f"{box('embed Embedding')}[aria-expanded=true]")
    page.click(f"{box('embed Embedding')} .twist")
    assert page.evaluate(boxes) == begun
    page.press("f")
    # Closing the frame that holds the selection hides it, and the frame stays closed.
    page.double_click(f"{box('attn Attention')} .title")
    page.until(f"{boxes} < {begun}")
    page.click(".graphs .check input")
    page.evaluate("location.hash = 'at=blocks.0.attn.out%230'")
    page.until("document.querySelector('.graph .box.selected .title').textContent === '▸ out'")
    assert "split" in page.texts(".graph .box.is-op .title")


def test_drag_pans_wheel_zooms_at_the_pointer_fit_shows_all(page: Page, training: Path) -> None:
    open_graph(page, training)
    page.evaluate("location.hash = 'at=embed%230'")
    page.until(f"document.querySelector({json.dumps(TITLE)}).textContent === 'embed'")
    rect = (
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector({}).getBoundingClientRect())"
    )
    place = rect.format(json.dumps(box("embed Embedding")))
    left, top, _, _ = page.evaluate(rect.format("'#graph'"))
    x, y, _, _ = page.evaluate(place)
    # Dragging, even from a box, moves everything and selects nothing.
    page.drag((x + 9, y + 9), (x + 30, y + 20), (x + 49, y + 39))
    assert page.evaluate(place)[:2] == pytest.approx([x + 40, y + 30], abs=0.5)
    assert page.text(TITLE) == "embed"
    # A place of the picture, and where on the screen the pointer is.
    spot = f"""(m => [m.a * {left + 200} + m.e, m.d * {top + 100} + m.f])(
        document.querySelector('.graph .drawn').getScreenCTM().inverse())"""
    under = page.evaluate(spot)
    page.evaluate(
        "document.querySelector('.graph').dispatchEvent(new WheelEvent('wheel', {deltaY: -200, "
        f"clientX: {left + 200}, clientY: {top + 100}, bubbles: true, cancelable: true}}))"
    )
    assert "scale(1.6" in page.evaluate(SHEET)
    assert page.evaluate(spot) == pytest.approx(under, abs=0.2)
    assert page.evaluate("document.querySelector('.minimap').classList.contains('idle')") is False
    # The map moves the picture: its end comes into sight.
    output = f"document.querySelector({json.dumps(box('mean'))}).getBoundingClientRect().bottom"
    bottom = "document.getElementById('graph').getBoundingClientRect().bottom"
    assert page.evaluate(f"{output} > {bottom}")
    x, y, width, height = page.evaluate(rect.format("'.minimap'"))
    map_ = (x + width / 2, y + height - 3)
    page.drag(map_, map_)
    assert page.evaluate(f"{output} < {bottom}")
    page.click("[aria-label='Fit (f)']")
    inside = """[...document.querySelectorAll('.graph .box')].every(e => {
        const [a, b] = [e, document.getElementById('graph')].map(x => x.getBoundingClientRect());
        return a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
    })"""
    assert page.evaluate(inside)
    assert page.evaluate("document.querySelector('.minimap').classList.contains('idle')") is True
    # To the right, what takes a value stands right of what made it.
    shown = drawn_by_page(page)
    page.click("[aria-label^='Lead down']")
    assert drawn_by_page(page) == shown
    one, two = (page.evaluate(rect.format(json.dumps(box(n)))) for n in ("embed", "norm"))
    assert one[0] + one[2] < two[0]


def test_boxes_are_reached_with_the_keyboard(page: Page, training: Path) -> None:
    open_graph(page, training)
    page.press("2")
    active = "document.activeElement.getAttribute('aria-label')"
    assert "arrows move" in page.evaluate(active)
    page.press("ArrowDown")
    assert page.evaluate(active).startswith("embed Embedding, f32[2,6,8]")
    assert page.text(TITLE) == "embed"
    page.press("ArrowRight", "ArrowDown")
    assert page.text(TITLE) == "blocks.0.norm"
    page.press("ArrowDown")
    assert page.text(TITLE) == "blocks.0.attn.qkv"
    expanded = "document.querySelector('.graph .box.selected').getAttribute('aria-expanded')"
    assert page.evaluate(expanded) == "false"
    page.press("Enter")
    assert page.evaluate(expanded) == "true"
    page.press("Enter")
    assert page.evaluate(expanded) == "false"
    page.press("ArrowUp")
    assert page.text(TITLE) == "blocks.0.norm"
    assert page.evaluate("document.activeElement.tabIndex") == 0
    page.press("c")
    assert page.evaluate("document.querySelectorAll('.graph .box.open').length") == 1


def test_colours_have_a_meaning_and_a_legend(page: Page, training: Path, tmp_path: Path) -> None:
    open_graph(page, training)
    assert page.texts(".graph-legend span") == ["norm", "linear", "embedding"]
    choices = page.texts(".graphs select[aria-label='Colour by'] option")
    assert choices == ["class", "time", "parameters", "bytes", "std", "NaN share"]
    fills = """new Set([...document.querySelectorAll('.graph .box.is-call > rect.call')].map(
        e => getComputedStyle(e).fill)).size"""
    for value, name in (("time", "time"), ("params", "parameters"), ("stats.std", "std")):
        page.evaluate(
            f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')); }})"
            "(document.querySelector('.graphs select[aria-label=\"Colour by\"]'))"
        )
        legend = page.text(".graph-legend")
        assert legend.startswith(name)
        assert any(character.isdigit() for character in legend)
        assert page.evaluate(fills) > 1
    # Classes of other families differ in colour, in t.graph() and here.
    open_graph(page, cached().html(tmp_path / "r.html").path)
    fill = "getComputedStyle(document.querySelector({} + ' > rect')).fill".format
    linear, dropout = fill(json.dumps(box("mix Linear"))), fill(json.dumps(box("drop Dropout")))
    assert page.evaluate(f"{linear} !== {dropout}")
    assert page.evaluate(linear) == "rgb(219, 234, 254)"
    page.press("d")
    assert page.evaluate(linear) == "rgb(28, 51, 94)"


def test_the_picture_is_saved(page: Page, training: Path) -> None:
    open_graph(page, training)
    shown = drawn_by_page(page)
    for theme, paper in (("light", "#ffffff"), ("dark", "#0f141a")):
        open_graph(page, training, theme=theme)
        name, path = page.download("[aria-label='Save the picture as SVG']")
        assert name == "training.svg"
        text = path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        found = list(root.iter())
        assert Counter(e.get("data-node") for e in found if e.get("data-node")) == shown[0]
        assert Counter(e.text for e in found if e.get("class", "").startswith("label")) == shown[2]
        style = root.findtext(f"{SVG}style") or ""
        assert f".clew .paper{{fill:{paper}}}" in style
        # It needs nothing from anywhere: no variables of the page, no files, no scripts.
        assert not [word for word in ("var(", "url(", "href", "<script", "@import") if word in text]
        assert "picker" not in text
    name, path = page.download("[aria-label='Save the picture as PNG']")
    data = path.read_bytes()
    assert name == "training.png"
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2 * int(root.get("width", "")), 2 * int(root.get("height", "")))
    assert len(data) > 5_000


class Plain(nn.Module):
    """Very many modules that are no repeat: every one has another size."""

    def __init__(self, count: int) -> None:
        super().__init__()
        draw = random.Random(0)
        sizes = [draw.randint(1, 9) for _ in range(count + 1)]
        self.all = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for module in self.all:
            x = module(x)
        return x


def test_very_many_boxes_are_shown_in_part(page: Page, tmp_path: Path) -> None:
    model = Plain(400)
    with clew.trace(model) as t:
        model(torch.ones(1, model.all[0].in_features))
    path = t.html(tmp_path / "r.html").path
    open_graph(page, path, "at=all.350%230")
    title = "document.querySelector('.graph .box.selected .title').textContent"
    assert page.evaluate(title).endswith("all.350")
    assert 100 < page.evaluate("document.querySelectorAll('.graph .box').length") < 300
    assert "before" in page.text(".graph .rest")
