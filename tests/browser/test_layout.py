"""The page lays out graphs as `t.graph()` does: the same boxes and links give the same picture."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clew.views.graph.layout.nested import lay_out
from clew.views.graph.layout.shapes import Box, Link, Picture
from tests.processes import HANG_GUARD

STUB = (60.0, 16.0)


def graph(draw: random.Random, count: int, links: int, near: int) -> tuple[list[Box], list[Link]]:
    """Boxes nested at random; links from earlier to later ones, some back, some with a lane."""
    boxes = [Box(str(n), draw.uniform(20, 160), draw.uniform(10, 60)) for n in range(count)]
    for number in range(count, count + draw.randint(0, count // 3)):
        start = draw.randrange(len(boxes))
        end = min(len(boxes), start + draw.randint(1, 6))
        title = draw.uniform(20, 200)
        boxes[start:end] = [Box(str(number), title, 20.0, tuple(boxes[start:end]))]
    found = {}
    for _ in range(links):
        source = draw.randrange(count)
        target = min(count - 1, max(0, source + draw.randint(-near // 8, near)))
        if source != target:
            label = (draw.uniform(10, 120), 12.0) if draw.random() < 0.5 else None
            lane = draw.choice(["", "", "", "order"])
            found[source, target] = Link(str(source), str(target), label, lane, lane == "order")
    return boxes, list(found.values())


def plain(box: Box) -> dict[str, Any]:
    size = (box.width, box.height)
    return {"id": int(box.id), "size": size, "inside": [plain(inner) for inner in box.inside]}


def drawn_by_the_page(
    graphs: list[tuple[list[Box], list[Link]]], right: bool
) -> list[dict[str, Any]]:
    asked = [
        {
            "boxes": [plain(box) for box in boxes],
            "links": [
                {
                    "source": int(link.source), "target": int(link.target), "label": link.label,
                    "lane": link.lane, "minor": link.minor,
                }
                for link in links
            ],
            "stub": STUB,
            "right": right,
        }
        for boxes, links in graphs
    ]  # fmt: skip
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [node, str(Path(__file__).parent / "layout.mjs")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def numbers(picture: Picture) -> list[float]:
    """Every coordinate of a picture, in a fixed order."""
    found = [picture.width, picture.height]
    for name in sorted(picture.boxes, key=int):
        rect = picture.boxes[name]
        found += [rect.x, rect.y, rect.width, rect.height]
    for route in picture.routes:
        if route is not None:
            found += [coordinate for point in route.points for coordinate in point]
            for rect in filter(None, (route.label, route.stub)):
                found += [rect.x, rect.y, rect.width, rect.height]
    return [round(number, 3) + 0.0 for number in found]


def numbers_of_page(picture: dict[str, Any]) -> list[float]:
    sides = ("x", "y", "width", "height")
    found = [picture["width"], picture["height"]]
    for _, rect in sorted(picture["boxes"]):
        found += [rect[side] for side in sides]
    for route in filter(None, picture["routes"]):
        found += [coordinate for point in route["points"] for coordinate in point]
        for rect in filter(None, (route["label"], route["stub"])):
            found += [rect[side] for side in sides]
    return [round(number, 3) + 0.0 for number in found]


@pytest.mark.parametrize("right", [False, True])
def test_the_page_and_python_draw_the_same_picture(right: bool) -> None:
    draw = random.Random(11)
    graphs = [graph(draw, draw.randint(1, 30), draw.randint(0, 45), 8) for _ in range(40)]
    # Lines that are too long to follow become stubs, in both.
    chain = [Box(str(n), 40.0, 20.0) for n in range(100)]
    links = [Link(str(n), str(n + 1)) for n in range(99)]
    graphs.append((chain, [*links, Link("3", "90", (50.0, 12.0)), Link("10", "20")]))
    wanted = [lay_out(*one, right=right, stub_size=lambda name: STUB) for one in graphs]
    assert any(r is not None and r.stub is not None for p in wanted for r in p.routes)
    found = drawn_by_the_page(graphs, right)
    differ = [
        number
        for number, (one, two) in enumerate(zip(wanted, found, strict=True))
        if numbers(one) != numbers_of_page(two)
    ]
    assert differ == []
