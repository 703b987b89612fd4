"""The graph that a page carries: closed at any depth it is that of `t.graph()`; rows have boxes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew.analysis.fold import Folds
from clew.analysis.graph import FlowModel, Graph, Node, Options, build, build_flow
from clew.analysis.graph.data_edges import Carried
from clew.analysis.graph.part import forward_passes
from clew.views.html import page_graph
from clew.views.html.page_graph import PageGraph
from clew.views.html.payload import Packer
from tests.browser import reports
from tests.golden import programs

TRACES = {
    "training": reports.training, "crash": reports.crash, "masked": reports.masked,
    "stack": programs.stack,
}  # fmt: skip


class Columns(Packer):
    """The packer of a page, from which the columns can be had back."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: dict[str, Any] = {}

    def add(self, name: str, column: Any, differences: bool = False) -> None:
        super().add(name, column, differences)
        self.columns[name] = np.asarray(column)


def packed(t: clew.Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    run = t._current_run()
    columns = Columns()
    head = PageGraph(run, np.append(np.arange(len(run)), -1)).pack(columns, "")
    return head, columns.columns


def whole(t: clew.Trace) -> tuple[FlowModel, list[int], Folds]:
    folds = Folds(t._current_run())
    rows = forward_passes(folds.structure)[0]
    return build_flow(Options(60, ops="major"), rows, folds), rows, folds


def closed_at(
    model: FlowModel, depth: int
) -> tuple[set[str], dict[tuple[str, str, str], set[str]]]:
    """Boxes and edges of a model with its frames closed as `t.graph(depth=)` draws them."""
    nodes = {node.id: node for node in model.graph.nodes}

    def is_open(node: Node) -> bool:
        if not node.children or node.kind == "repeat":
            return bool(node.children)
        calls = any(nodes[child].kind in ("call", "repeat") for child in node.children)
        return node.level < depth and (calls or node.level == 0)

    home: dict[str, str] = {}
    for node in model.graph.nodes:
        above = node.parent
        shown = above is None or (home[above] == above and is_open(nodes[above]))
        home[node.id] = node.id if shown or above is None else home[above]
    edges: dict[tuple[str, str, str], set[str]] = {}
    for carried in [*model.carried, *model.borders]:
        ends = home[carried.source], home[carried.target]
        if ends[0] != ends[1] and ends[1] == carried.target and not is_open(nodes[ends[1]]):
            edges.setdefault((*ends, carried.kind), set()).update(labels(carried))
    return {name for name in nodes if home[name] == name}, edges


def labels(carried: Carried) -> set[str]:
    return {carried.texts[value] for value in carried.values}


def drawn(graph: Graph) -> tuple[set[str], dict[tuple[str, str, str], set[str]]]:
    edges = {(e.source, e.target, e.kind): set(e.labels) for e in graph.edges if e.kind != "next"}
    return {node.id for node in graph.nodes}, edges


@pytest.mark.parametrize("name", TRACES)
def test_a_closed_frame_has_the_edges_of_a_box(name: str) -> None:
    model, rows, folds = whole(TRACES[name]())
    for depth in range(5):
        boxes, edges = closed_at(model, depth)
        there = {ends: said for ends, said in edges.items() if ends[2] != "next"}
        assert (boxes, there) == drawn(build(folds.structure.run, Options(depth), rows, folds))


@pytest.mark.parametrize("name", TRACES)
def test_a_node_has_a_row_for_each_run_of_the_repeats_around_it(name: str) -> None:
    model, _, _ = whole(TRACES[name]())
    nodes = {node.id: node for node in model.graph.nodes}
    assert any(node.count > 1 for node in nodes.values()) or name == "masked"
    for node in nodes.values():
        counts, at = [], node
        while True:
            counts.append(at.count)
            if at.parent is None:
                break
            at = nodes[at.parent]
        assert len(model.rows.get(node.id, [0])) == prod(counts)


def test_steps_of_one_structure_share_a_model() -> None:
    t = reports.training(3)
    head, columns = packed(t)
    (part,) = head["parts"]
    assert part["passes"] == 3
    model = part["models"][0]
    rows = columns[model["prefix"] + "rows"].reshape(3, model["used"])
    run = t._current_run()
    for step, there in enumerate(rows):
        assert set(run.step[there].tolist()) == {step}
        assert [run.name(row) for row in there] == [run.name(row) for row in rows[0]]


def test_batches_of_several_sizes_go_through_one_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    with clew.trace(model) as t:
        for size in (2, 5, 9):
            model(torch.ones(size, 3)).sum().backward()
            t.step()
    head, _ = packed(t)
    assert [part["passes"] for part in head["parts"]] == [3]


def test_a_very_long_pass_is_split_after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with torch.no_grad(), clew.trace(model) as t:
        for _ in range(6):
            model(torch.ones(2, 3))
    assert [part["passes"] for part in packed(t)[0]["parts"]] == [1]
    monkeypatch.setattr(page_graph, "_LONG_PASS", 20)
    assert sorted(part["passes"] for part in packed(t)[0]["parts"]) == [6]


def test_structures_beyond_those_drawn_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_graph, "_MOST_PARTS", 2)
    model = nn.Linear(3, 3)
    with clew.trace(model) as t:
        for extra in range(4):
            x = torch.ones(2, 3)
            for _ in range(extra):
                x = x + 1
            model(x).sum().backward()
            t.step()
    head, _ = packed(t)
    assert (len(head["parts"]), head["left_out"]) == (2, 2)
