"""What graphs and text cost: work that grows with the events and the text, not with their square.

Work is counted in calls of functions, which no busy machine makes more or fewer.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import clew
from clew.analysis.parameters import Parameters
from clew.views.graph.view import graph_view
from tests.deep_runs import RUNS, fan, long_paths, named, skips

WAYS: dict[str, Callable[[clew.Trace], object]] = {
    "text": lambda t: str(t.graph()),
    "svg": lambda t: t.graph().svg(),
    "dot": lambda t: t.graph(depth=100).dot(),
    "netron": lambda t: t.graph(depth=100).dot(netron=True),
    "mermaid": lambda t: t.graph(depth=100).mermaid(),
    "json": lambda t: t.graph(depth=100).json(),
    "order": lambda t: t.graph(edges="calls").svg(),
    "boxes": lambda t: t.graph(edges="tree").svg(),
    "squashed": lambda t: t.graph(squash="class").svg(),
    "tree": str,
    "code": lambda t: str(t.code()),
    "table": lambda t: str(t.table()),
    "findings": lambda t: t.findings,
}


def work(read: Callable[[clew.Trace], object], trace: clew.Trace) -> int:
    """How many functions are called, those of C included."""
    count = 0

    def counting(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        read(trace)
    finally:
        sys.setprofile(before)
    return count


# Enough calls for a square to show.
CASES = [
    ("nested", "text", 200), ("nested", "tree", 800), ("nested", "code", 200),
    ("nested", "table", 200), ("nested", "findings", 200), ("recursive", "text", 200),
    ("long_names", "text", 100), ("long_paths", "text", 100), ("long_paths", "tree", 100),
    ("other_names", "svg", 100), ("other_names", "order", 60), ("other_names", "boxes", 60),
    ("other_names", "squashed", 100), ("other_names", "code", 100), ("skips", "svg", 250),
    ("skips", "dot", 100), ("skips", "netron", 100), ("skips", "mermaid", 100),
    ("skips", "json", 100), ("fan", "text", 100), ("fan", "svg", 60),
]  # fmt: skip


@pytest.mark.parametrize(("name", "way", "size"), CASES)
def test_twice_the_events_are_about_twice_the_work(name: str, way: str, size: int) -> None:
    make, read = RUNS[name], WAYS[way]
    read(clew.Trace(make(10)))  # whatever is imported on first use
    small, large = (work(read, clew.Trace(make(count))) for count in (size, 2 * size))
    # Boxes side by side that only the frame is tied to stand in a square: lines pass half of it.
    most = 3.0 if name == "fan" and way == "svg" else 2.6
    assert large < most * small


def test_what_is_nested_deep_is_not_pushed_ever_further_to_the_right() -> None:
    small, large = (str(clew.Trace(RUNS["nested"](count)).code()) for count in (400, 800))
    assert len(large) < 2.6 * len(small)
    assert large.splitlines()[-1].endswith("│ (depth 799) [m799] Block()")


def test_parameters_of_long_paths_take_memory_for_their_text() -> None:
    c = long_paths(1500).columns
    text = sum(len(module.path) for module in c.modules)
    tracemalloc.start()
    try:
        parameters = Parameters(c.modules, c.parameters)
        counts = {parameters.inside(path) for path in ("m7", "m7.a.b", c.modules[8].path)}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counts == {3}
    assert parameters.inside("") == parameters.total == 4500
    assert (parameters.inside("m7.a.x"), parameters.inside("m")) == (0, 0)
    assert peak < 8 * text


def test_lines_that_pass_too_many_boxes_are_refused_with_what_to_do() -> None:
    view = graph_view(fan(2000))
    with pytest.raises(
        clew.ClewError, match=r"3,998 lines would pass 175,912 rows of boxes.*depth="
    ):
        view.svg()
    shown = view._repr_mimebundle_()
    assert list(shown) == ["text/plain"]
    assert "\ndeep: 2,002 nodes, 3,998 edges\n" in shown["text/plain"]


def test_a_value_that_many_boxes_take_is_named_beside_them() -> None:
    """Where a line to each of them from outside the frame would be a wall of lines."""
    picture = graph_view(skips(300), depth=1).svg()
    assert picture.count('class="stub') > 200


def test_numbers_in_names_may_be_of_any_length() -> None:
    long = "9" * 5000
    trace = clew.Trace(named(["", *(f"layer{long}{n}" for n in range(9))]))
    assert "layer999" in str(trace.graph())
    assert "layer999" in str(trace)
