"""How long drawing a graph takes: the layout of large ones, and a traced model folded or not."""

from __future__ import annotations

import random
from collections.abc import Callable

import clew
from bench.timing import seconds_of
from bench.workloads import Workload
from clew.views.graph.layout.nested import lay_out
from clew.views.graph.layout.shapes import Box, Link


def layout_seconds(count: int) -> float:
    """The time to lay out a chain of so many boxes with skips among them, as models have."""
    chance = random.Random(0)
    boxes = [Box(f"b{n}", chance.uniform(40, 160), chance.uniform(16, 40)) for n in range(count)]
    links = [Link(f"b{n}", f"b{n + 1}", (50.0, 12.0)) for n in range(count - 1)]
    links += [Link(f"b{n}", f"b{n + chance.randint(2, 8)}") for n in range(0, count - 8, 3)]
    return seconds_of(lambda: lay_out(boxes, links))


def drawing_seconds(work: Workload) -> dict[str, float]:
    """The time from a trace to its SVG, layers folded and not, every op a box."""
    with clew.trace(work.model) as t:
        work.run()
    len(t.ops)  # made ready to read, which is not drawing
    drawn: dict[str, Callable[[], object]] = {
        "folded": lambda: t.graph(depth=3).svg(),
        "unfolded": lambda: t.graph(depth=9, fold=False, ops="all").svg(),
    }
    return {name: min(seconds_of(draw) for _ in range(2)) for name, draw in drawn.items()}
