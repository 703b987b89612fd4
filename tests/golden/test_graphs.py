"""What graphs look like as text: DOT, Mermaid, the list of boxes, and what an SVG is made of."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import torch

import clew
from clew.views.graph.view import GraphView
from tests.golden import programs

Check = Callable[[str, str], None]
SVG = "{http://www.w3.org/2000/svg}"


def stack() -> GraphView:
    return programs.stack(width=16).graph(depth=2, show=("params",))


def training() -> GraphView:
    return programs.training().graph(backward=True, show=("params",))


def elements(svg: str) -> str:
    """The parts of a picture in order: what they are for, and what they say."""
    lines = []
    for part in ET.fromstring(svg).iter():
        tag = part.tag.removeprefix(SVG)
        if tag == "g":
            facts = part.get("data-node"), part.get("data-edge"), part.get("class")
            lines.append(" ".join(filter(None, facts)))
        elif tag in ("rect", "path"):
            lines.append(f"  {tag} {part.get('class')}")
        elif tag == "text" and (part.text or len(part)):
            lines.append(f"  text {' '.join(''.join(part.itertext()).split())}")
    return "\n".join(lines)


def test_list_of_boxes(golden: Check) -> None:
    golden("graph_stack", str(stack()))
    golden("graph_training", str(training()))


def test_dot(golden: Check) -> None:
    golden("graph_stack_dot", stack().dot())
    text = training().dot(netron=True)
    golden("graph_training_netron", text)


def test_mermaid(golden: Check) -> None:
    golden("graph_stack_mermaid", stack().mermaid())
    golden("graph_training_mermaid", training().mermaid())


def test_svg(golden: Check) -> None:
    golden("graph_stack_svg", elements(stack().svg()))
    golden("graph_training_svg", elements(training().svg()))


def test_names_are_escaped_everywhere() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module('a<b>&"c"|{d}', torch.nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return next(iter(self.children()))(x)

    model = Odd()
    with clew.trace(model) as t:
        model(torch.ones(1, 2))
    view = t.graph()
    assert 'a<b>&"c"|{d}' in "".join(ET.fromstring(view.svg()).itertext())
    assert 'label="a<b>&\\"c\\"|{d}' in view.dot()
    assert "<b>a#lt;b#gt;#amp;#quot;c#quot;|{d}</b>" in view.mermaid()
    assert view.dot(netron=True).count("|op_code=call_module\\lLinear\\l|") == 1


def test_one_theme_has_its_own_paper_and_auto_has_both_colours() -> None:
    auto, light, dark = (stack().svg(theme=theme) for theme in ("auto", "light", "dark"))
    assert "prefers-color-scheme:dark" in auto
    assert 'class="paper"' not in auto
    assert "prefers-color-scheme" not in light + dark
    assert 'class="paper"' in light
    assert light != dark
