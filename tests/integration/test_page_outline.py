"""The page's tree has the groups of the printed tree, and loses no event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

import clew
from clew.views.html.page_outline import PageOutline, page_outline
from clew.views.html.page_texts import event_labels, result_texts, written_ops
from tests.golden import programs
from tests.integration.test_tree_sums import STEP, record


def outline_of(t: clew.Trace) -> PageOutline:
    return page_outline(t._current_run())


def folded(nodes: list[Any]) -> Iterator[tuple[str, int]]:
    """Names and counts of the lines of a printed tree that stand for several calls or steps."""
    for node in nodes:
        if node["count"] > 1 and node["kind"] in ("call", "repeat", "step", "rank"):
            yield node["name"], node["count"]
        yield from folded(node["children"])


def members(outline: PageOutline) -> dict[int, list[int]]:
    """What is directly in each group: events, and groups as numbers below 0."""
    found: dict[int, list[int]] = {}
    for row in np.flatnonzero(outline.group).tolist():
        found.setdefault(int(outline.group[row]), []).append(row)
    for number, group in enumerate(outline.groups, start=1):
        found.setdefault(group.parent, []).append(-number)
    return found


def check(t: clew.Trace) -> None:
    outline = outline_of(t)
    inside = members(outline)
    parent = t._current_run().parent_row

    def rows(group: int) -> list[int]:
        return [row for one in inside[group] for row in (rows(-one) if one < 0 else [one])]

    for number, group in enumerate(outline.groups, start=1):
        assert group.parent < number
        assert len({int(parent[row]) for row in rows(number)}) == 1
        if group.count > 1:
            assert len(inside[number]) == group.count, group
    groups = {(group.label, group.count) for group in outline.groups}
    wanted = set(folded(t.tree(depth=100).to_dict()["children"]))
    assert wanted <= groups


@settings(max_examples=8, deadline=None, derandomize=True)
@given(steps=st.lists(STEP, min_size=1, max_size=2))
def test_any_fold_of_the_printed_tree_is_a_group(steps: list[Any]) -> None:
    t = record(steps, "meta")
    if len(t):
        check(t)


def test_layers_steps_and_the_backward_pass_are_groups() -> None:
    t = programs.training()
    check(t)
    groups = {(g.label, g.kind, g.count) for g in outline_of(t).groups}
    assert ("steps 1 … 2", "step", 2) in groups
    assert ("blocks.0 … blocks.5", "repeat", 6) in groups
    assert ("blocks.5 … blocks.1", "repeat", 5) in groups
    assert {"backward", "optimizer"} <= {label for label, kind, _ in groups if kind == "pass"}


def test_turns_of_a_loop_are_groups_of_their_own() -> None:
    for program in (programs.gated, programs.loops, programs.recurrent, programs.checkpointed):
        check(program())


def test_a_loop_whose_tensors_grow_is_folded_if_it_fills_a_screen() -> None:
    model = programs.nn.Linear(4, 4)
    for turns, folds in ((20, False), (90, True)):
        with programs.torch.no_grad(), clew.trace(model) as t:
            for length in range(1, turns + 1):
                model(programs.torch.ones(length, 4))
        groups = [(g.label, g.count) for g in outline_of(t).groups if g.count > 1]
        assert groups == ([("repeated (sizes vary)", turns)] if folds else [])


def test_captured_gradients_stay_in_the_one_backward_pass() -> None:
    model = programs.Stack()
    with clew.trace(model, capture=["**:grad"]) as t:
        model(programs.torch.ones(2, 4)).sum().backward()
    run, outline = t._current_run(), outline_of(t)
    assert [group.label for group in outline.groups].count("backward") == 1
    gradients = [event.row for event in t.events if event.kind == "grad"]
    assert gradients
    assert all(outline.group[row] for row in gradients)
    labels = event_labels(run, np.arange(len(run)))
    assert "blocks.0.up.weight:grad" in {labels.texts[labels.codes[row]] for row in gradients}


def test_events_are_called_as_in_the_tree() -> None:
    t = programs.stack()
    run = t._current_run()
    rows = np.arange(len(run))
    labels, results = event_labels(run, rows), result_texts(run, rows)
    for event in t.events:
        label = labels.texts[labels.codes[event.row]]
        if event.kind == "op":
            assert f"aten.{label}" in (event.name, event.name.removesuffix(".default"))
        if event.kind == "module" and event.parent is not None and event.parent.module:
            assert event.module == f"{event.parent.module}.{label}"
        looks = [value.look for value in event.outputs.values()]
        more = f", +{len(looks) - 1}" if len(looks) > 1 else ""
        assert results.texts[results.codes[event.row]] == looks[0] + more


def test_ops_are_named_as_they_were_written(native_engine: None) -> None:
    weight, x = programs.torch.ones(4, 4), programs.torch.ones(2, 4)
    with clew.trace() as t:
        y = programs.F.linear(x, weight)
        y = programs.F.linear(y, weight)
        y.relu()
    run = t._current_run()
    rows = np.array([event.row for event in t.ops])
    written = written_ops(run, rows)
    texts, codes = written.names.texts, written.names.codes
    names = [["", *(texts[code] for code in codes)][number] for number in written.of]
    assert [bare for bare in dict.fromkeys(names) if bare] == ["linear"]
    assert len(set(written.of[written.of > 0].tolist())) == 2
    assert names[-1] == ""
