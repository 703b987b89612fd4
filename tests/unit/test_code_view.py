"""The code view as a tree: lines agree with events, ranks stay apart, values are told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from clew.views.text.code_data import DEEPEST
from clew.views.text.style import Style

TESTS = Path(__file__).parents[1]
TRACES = sorted((TESTS / "corpus" / "traces").glob("*.clew"))
TWO_RANKS = TESTS / "no_torch" / "run.clew"
UNEQUAL = TESTS / "corpus" / "traces" / "unequal_ranks.clew"
PLAIN = Style()

Data = dict[str, Any]


def corpus(name: str) -> clew.Trace:
    return clew.load(TESTS / "corpus" / "traces" / f"{name}.clew")


def walk(data: Data, nodes: list[Data] | None = None) -> Iterator[tuple[Data, tuple[Data, ...]]]:
    """Every node with the nodes above it, whatever the depth; what was put off is followed."""
    pending = [(node, ()) for node in reversed(data["nodes"] if nodes is None else nodes)]
    while pending:
        node, above = pending.pop()
        yield node, above
        below = node.get("children", [])
        if "deeper" in node:
            assert not below
            below = data["deeper"][node["deeper"]]
        pending += [(child, (*above, node)) for child in reversed(below)]


def of_kind(data: Data, kind: str) -> list[Data]:
    return [node for node, _ in walk(data) if node["kind"] == kind]


def runs_of(path: Path) -> Iterator[clew.Trace]:
    """A trace, and what is left of it when only one phase is wanted."""
    t = clew.load(path)
    yield t
    for phase in sorted({event.phase for event in t.events}):
        yield t.only(phase=phase)


# Lines


@pytest.mark.parametrize("path", [*TRACES, TWO_RANKS], ids=lambda path: path.stem)
def test_every_op_stands_once_at_the_line_that_its_event_names(path: Path) -> None:
    for t in runs_of(path):
        events = {(event.rank, event.id): event for event in t.ops}
        own = {p.file for p in t._current_run().columns.places if not p.library}
        shown: Counter[tuple[int, int]] = Counter()
        for node, above in walk(t.code(succinct=False).to_dict()):
            if node["kind"] != "op":
                continue
            rank = next((n["rank"] for n in above if n["kind"] == "rank"), t.ranks[0])
            (number,) = node["events"]
            shown[rank, number] += 1
            source = events[rank, number].source
            line = next((n for n in reversed(above) if n["kind"] == "line"), None)
            if line is None:
                assert source is None or source.file not in own
            else:
                assert source is not None
                assert (line["file"], line["line"]) == (source.file, source.line)
            forward = events[rank, number].forward
            assert node["forward"] == (None if forward is None else forward.id)
        assert shown == Counter(dict.fromkeys(events, 1))


def test_ops_of_a_backward_written_in_python_stand_at_their_own_lines() -> None:
    t = corpus("autograd_function")
    for succinct in (True, False):
        text = t.code(succinct=succinct).text(PLAIN)
        own = text.split("square = x * x  # programs.py:172 in Cube.backward")[1]
        assert own.splitlines()[1].startswith("│ │ # mul.Tensor(f32[2,3], f32[2,3]) -> f32[2,3]")
        # The forward of the first call has no other backward ops.
        forward = text.split("return x * x * x  # programs.py:167 in Cube.forward")[1]
        assert "↩" not in "".join(forward.splitlines()[1:3])


def test_a_backward_op_that_is_asked_for_stands_at_the_line_of_its_forward_op() -> None:
    t = corpus("steps")
    name = next(e.name for e in t.ops if e.forward is not None and "backward" in e.name)
    data = t.code(f"op:{name}").to_dict()
    for node, above in walk(data):
        if node["kind"] == "op":
            event = next(e for e in t.ops if e.id == node["events"][0])
            assert event.source is not None
            assert (above[-1]["line"], above[-1]["kind"]) == (event.source.line, "line")
    assert "# ↩ " in t.code(f"op:{name}").text(PLAIN)


def test_what_lies_in_a_chosen_call_is_not_shown_again() -> None:
    t = corpus("shared")
    numbers = [n for node in of_kind(t.code("**").to_dict(), "op") for n in node["events"]]
    assert len(numbers) == len(set(numbers))


def test_runs_of_a_line_are_counted_through_a_fold() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return x

    model = Twice()
    with clew.trace(model) as t:
        model(torch.ones(1, 2))
    lines = of_kind(t.code().to_dict(), "line")
    (line,) = (line for line in lines if line["text"] == "x = x + layer(x)")
    assert (line["run"], line["runs"]) == (1, 6)
    (repeat,) = of_kind(t.code().to_dict(), "repeat")
    assert repeat["count"] == len(repeat["runs"]) == 5


# Ranks


@pytest.mark.parametrize("path", [TWO_RANKS, UNEQUAL], ids=["two", "unequal"])
@pytest.mark.parametrize("address", ["0", "1", "#0", "2#1", None])
def test_each_rank_has_its_own_rows(path: Path, address: str | None) -> None:
    t = clew.load(path)
    chosen = list(t.events if address is None else t[address])
    data = t.code(address).to_dict()
    assert [node["rank"] for node in data["nodes"]] == sorted({e.rank for e in chosen})
    for node in data["nodes"]:
        alone = t.only(rank=node["rank"]).code(address)
        assert node["children"] == alone.to_dict()["nodes"]


def test_the_calls_that_are_left_out_are_counted_per_rank() -> None:
    for path in (TWO_RANKS, UNEQUAL):
        t = clew.load(path)
        for node in t.code("0").to_dict()["nodes"]:
            told = 0
            for inner, _ in walk({"deeper": []}, node["children"]):
                told += inner["kind"] == "module"
                told += inner["count"] if inner["kind"] == "repeat" else 0
            assert told == len([e for e in t["0"] if e.rank == node["rank"]])


def test_ranks_that_read_the_same_are_written_once() -> None:
    t = clew.load(UNEQUAL)
    headings = [line for line in t.code("2#0").text(PLAIN).splitlines() if line[0] == "r"]
    assert headings == ["ranks 0 … 1 ×2", "rank 2"]
    assert [node["rank"] for node in t.code("2#0").to_dict()["nodes"]] == [0, 1, 2]
    # Their batches differ, and with them the statistics.
    headings = [
        line for line in str(corpus("equal_ranks").code("2#0")).splitlines() if line[0] == "r"
    ]
    assert headings == ["rank 0", "rank 1"]


# Values


def test_statistics_follow_the_shapes() -> None:
    text = corpus("nan_modules").code().text(PLAIN)
    assert "[made.fc] Linear(f32[1,2]) -> f32[1,2]  2 ± 1\n" in text
    assert "# [made] -> f32[1,2]  0.405 ± 0  NaN ×1\n" in text
    assert "[weight.norm] BatchNorm1d(f32[3,2]) -> f32[3,2]  NaN ×3 Inf ×3\n" in text
    colored = corpus("nan_modules").code().text(Style(color=True))
    assert "\x1b[31;1mNaN ×3 Inf ×3\x1b[0m" in colored


def test_statistics_are_numbers_in_the_data() -> None:
    t = corpus("nan_op")
    ops = of_kind(t.code(succinct=False).to_dict(), "op")
    (first, *_) = (node for node in ops if node["op"] == "aten.log.default" and node["step"] == 1)
    event = next(e for e in t.ops if e.id == first["events"][0])
    assert event.outputs[""].stats is not None
    (value,) = first["output_values"]
    assert value["shape"] == [1, 2]
    assert value["stats"] == event.outputs[""].stats.to_dict()
    assert value["stats"]["nan"] > 0
    assert isinstance(first["seconds"], float)


def test_a_statistic_without_a_number_is_null_in_the_data() -> None:
    data = corpus("nan_modules").code().to_dict()
    (batch,) = (node for node in of_kind(data, "module") if node["module"] == "batch")
    stats = batch["output_values"][0]["stats"]
    assert (stats["mean"], stats["nan"], stats["count"]) == (None, 2, 2)
    json.dumps(data, allow_nan=False)


def test_what_is_not_finite_is_told_where_runs_and_ops_are_left_out() -> None:
    t = corpus("nan_op")
    assert "… ×2 more like this: steps 1 … 2  NaN ×" in t.code().text(PLAIN)
    (repeat,) = of_kind(t.code().to_dict(), "repeat")
    assert repeat["nan"] > 0
    x = torch.zeros(2, requires_grad=True)
    with clew.trace(values="stats") as t:
        (x.sqrt() * 0).sum().backward()
    (line,) = (line for line in str(t.code()).splitlines() if "↩ backward: " in line)
    assert line.endswith("expand  NaN ×2")


def test_memory_that_nobody_wrote_has_no_numbers() -> None:
    with clew.trace(values="stats") as t:
        x = torch.empty(3)
        x.fill_(float("nan"))
        torch.empty_like(x).zero_()
    lines = t.code().text(PLAIN).splitlines()
    assert [line.rpartition("]")[2] for line in lines if "empty" in line and "# empty" in line] == [
        "",
        "",
    ]
    assert any(line.endswith("-> f32[3]  NaN ×3") for line in lines)


# Depth


def test_calls_may_be_nested_to_any_depth() -> None:
    t = corpus("deep")
    assert len(t.code().text(PLAIN).splitlines()) > 320
    data = t.code().to_dict()
    assert [n for node in of_kind(data, "op") for n in node["events"]] == [op.id for op in t.ops]
    again = json.loads(json.dumps(data))
    assert again == data
    assert _levels(again) < 256


def _levels(data: Any) -> int:
    """How deep lists and dicts lie in each other."""
    deepest, pending = 0, [(data, 1)]
    while pending:
        item, depth = pending.pop()
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        deepest = max(deepest, depth)
        pending += [(one, depth + 1) for one in inner]
    return deepest


def test_nothing_is_put_off_before_the_limit() -> None:
    data = corpus("deep").code().to_dict()
    depths = [len(above) for node, above in walk(data) if "deeper" in node]
    assert depths == [DEEPEST * n - 1 for n in range(1, len(depths) + 1)]
    assert len(data["deeper"]) == len(depths) > 2
    assert corpus("shared").code().to_dict()["deeper"] == []


# Commands


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_a_long_list_names_the_way_to_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    x = torch.ones(1)
    with clew.trace() as t:
        for size in range(50): x.new_zeros(size)  # noqa: E701  # fmt: skip
    assert str(t.code()).endswith("│ # … 20 more; succinct=False shows them")
    folder = t.save(tmp_path / "run.clew")
    assert command(capsys, "code", folder).endswith("│ # … 20 more; --all shows them\n")
    (more,) = of_kind(t.code().to_dict(), "more")
    assert (more["count"], len(more["events"])) == (20, 20)


def test_json_is_the_tree_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    printed = command(capsys, "code", UNEQUAL, "0", "--json")
    expected = clew.load(UNEQUAL).code("0").to_dict()
    assert json.loads(printed) == {"schema": 1, **json.loads(json.dumps(expected))}
