"""The tree of module calls: what is a line of it, and what a line says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.analysis.tree.tree_model import TreeNode, walk
from clew.views.strict_json import as_json
from clew.views.text.cells import op_names
from clew.views.text.style import Style
from tests.golden import programs
from tests.printed_tree import check_data, check_text, read_tree

CORPUS = Path(__file__).parents[1] / "corpus" / "traces"
PLAIN = Style()


def corpus(name: str) -> clew.Trace:
    return clew.load(CORPUS / f"{name}.clew")


def named(nodes: list[dict[str, Any]]) -> list[str]:
    return [f"{n['name']} ×{n['count']}" if n["count"] > 1 else n["name"] for n in nodes]


def training(steps: int, *, eval_after: int | None = None, longer_at: int = -1) -> clew.Trace:
    """Equal steps of a small model: data, forward, loss, backward, optimizer."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model) as t:
        for step in range(steps):
            if eval_after is not None and step >= eval_after:
                model.eval()
            x = torch.zeros(2, 4) + 1
            loss = model(x).sum()
            if step == longer_at:
                loss = loss * 2
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    return t


# Sums


@pytest.mark.parametrize("trace", sorted(path.stem for path in CORPUS.glob("*.clew")))
def test_every_tree_of_the_corpus_sums(trace: str) -> None:
    t = corpus(trace)
    for fold in (True, False):
        for depth in (None, 0, 1, 2):
            tree = t.tree(depth=depth, fold=fold, rows=None if depth is not None else 10_000)
            check_data(t, tree.to_dict())
            if trace != "deep" or depth is not None:  # whose leads are not lines all the way
                check_text(t, tree.text(PLAIN))


def test_ops_between_two_calls_are_not_counted_into_both() -> None:
    class D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    model = D()
    with torch.no_grad(), clew.trace(model) as t:
        model(torch.ones(2, 3)).sum().exp().sin()
        model(torch.ones(2, 3))
    check_text(t, str(t))
    assert "repeated" not in str(t)


def test_ops_that_only_look_at_memory_in_another_way_are_shown() -> None:
    (root,) = programs.recurrent().tree().to_dict()["children"]
    assert named(root["children"]) == ["ops", "repeated ×4"]
    select, cell = root["children"][1]["children"]
    assert select["op_counts"] == {"aten.select.int": 4}
    assert (cell["name"], cell["ops"], cell["calls"]) == ("cell", 24, 4)


def test_numbers_are_totals_of_all_that_is_folded() -> None:
    t = training(6)
    (steps,) = t.tree().to_dict()["children"]
    assert (steps["count"], steps["ops"], steps["calls"]) == (6, len(t.ops), len(t.modules))
    call = next(node for node in steps["children"] if node["kind"] == "call")
    ops = [event for event in t.ops if event.parent is not None]
    assert (call["calls"], call["ops"]) == (24, len(ops))
    assert (call["modules"], call["parameters"]) == (1, 30)
    durations = [event.duration or 0.0 for event in t.modules if event.module == ""]
    assert call["seconds"] == pytest.approx(sum(durations))


def test_a_failure_below_the_depth_stands_beside_the_rest() -> None:
    t = programs.crash()
    tree = t.tree(depth=0)
    (root,) = tree.to_dict()["children"]
    assert [(node["kind"], node["ops"]) for node in root["children"]] == [("rest", 21), ("call", 6)]
    check_data(t, tree.to_dict())
    check_text(t, tree.text(PLAIN))


def test_a_failing_op_of_the_backward_pass_is_under_it() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad @ torch.ones(3, 3)

    with pytest.raises(RuntimeError), clew.trace() as t:
        Fails.apply(torch.ones(2, 2, requires_grad=True)).sum().backward()
    backward = t.tree().to_dict()["children"][-1]
    assert backward["kind"] == "backward"
    assert backward["children"][-1]["kind"] == "failure"
    assert "mat1 and mat2" in backward["children"][-1]["error"]
    check_data(t, t.tree().to_dict())


def test_what_a_call_runs_backward_is_counted_once() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            (slope,) = torch.autograd.grad(self.fc(x).sum(), x, create_graph=True)
            return slope.square().sum()

    model = Penalty()
    with clew.trace(model) as t:
        model(torch.ones(2, 3)).backward()
    check_data(t, t.tree().to_dict())
    check_text(t, str(t))


# Steps


def test_equal_steps_are_one_line_with_backward_and_optimizer_inside() -> None:
    t = training(20)
    text = str(t)
    assert re.search(r"^steps 0 … 19 ×20 \(train\) ", text, re.MULTILINE)
    assert re.search(r"^├─ backward  loss.backward\(\) ", text, re.MULTILINE)
    assert re.search(r"^└─ optimizer  optimizer.step\(\) ", text, re.MULTILINE)
    assert len(read_tree(text).lines) == 1


def test_headings_of_steps_stay_without_folding() -> None:
    names = named(training(5).tree(fold=False).to_dict()["children"])
    assert names == [f"step {number}" for number in range(5)]


def test_a_step_that_differs_stands_apart() -> None:
    names = named(training(6, longer_at=3).tree().to_dict()["children"])
    assert names == ["steps 0 … 2 ×3", "step 3", "steps 4 … 5 ×2"]


def test_train_and_eval_steps_are_not_one() -> None:
    steps = training(5, eval_after=3).tree().to_dict()["children"]
    assert named(steps) == ["steps 0 … 2 ×3", "steps 3 … 4 ×2"]
    assert [step["mode"] for step in steps] == ["train", "eval"]
    assert "steps 3 … 4 ×2 (eval)" in str(training(5, eval_after=3))


def test_ops_before_the_first_call_belong_to_their_own_step() -> None:
    for fold in (True, False):
        for step in training(3, longer_at=0).tree(fold=fold).to_dict()["children"]:
            kinds = [node["kind"] for node in step["children"]]
            assert kinds == ["ops", "call", "ops", "backward", "optimizer"]
            each = {
                name: n // step["count"] for name, n in step["children"][0]["op_counts"].items()
            }
            assert each == {"aten.zeros.default": 1, "aten.add.Tensor": 1}


def test_ops_are_not_merged_across_steps() -> None:
    with clew.trace() as t:
        x = torch.ones(3)
        t.step()
        x.exp()
        t.step()
    steps = t.tree().to_dict()["children"]
    assert [list(step["children"][0]["op_counts"]) for step in steps] == [
        ["aten.ones.default"],
        ["aten.exp.default"],
    ]


def test_steps_with_other_sizes_fold_only_where_there_is_no_room() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def grown(count: int) -> clew.Trace:
        with torch.no_grad(), clew.trace(model) as t:
            for size in range(count):
                model(torch.ones(size + 1, 4))
                t.step()
        return t

    assert len(grown(4).tree().to_dict()["children"]) == 4
    (heading,) = grown(40).tree().to_dict()["children"]
    assert (heading["name"], heading["sizes_vary"]) == ("steps 0 … 39", True)


def test_what_was_shown_in_an_earlier_step_is_not_shown_again() -> None:
    t = training(3, longer_at=1)
    calls = [step["children"][1] for step in t.tree().to_dict()["children"]]
    assert [call["same_as"] for call in calls] == [None, "step 0", "step 0"]
    assert "├─ Sequential (as step 0) " in str(t)
    check_data(t, t.tree().to_dict())
    unfolded = [step["children"][1] for step in t.tree(fold=False).to_dict()["children"]]
    assert [len(call["children"]) for call in unfolded] == [3, 3, 3]


def test_a_call_with_a_nan_inside_is_shown_again() -> None:
    class Absorbs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.log().nan_to_num()

    model = nn.Sequential(Absorbs(), nn.ReLU())
    with torch.no_grad(), clew.trace(model, values="stats") as t:
        for number in (1.0, -1.0, 1.0):
            model(torch.full((3,), number))
            if number < 0:
                torch.ones(1)
            t.step()
    calls = [step["children"][1] for step in t.tree().to_dict()["children"]]
    assert [call["same_as"] for call in calls] == [None, None, "step 0"]


def test_passes_that_differ_are_not_counted_as_if_they_were_alike() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        (a * 2).sum().backward()
        (b.exp() * b).sum().backward()
    backward = t.tree().to_dict()["children"][-1]
    assert (backward["count"], backward["passes"]) == (1, 2)
    check_data(t, t.tree().to_dict())


# Ranks


def test_ranks_that_ran_the_same_are_one_line() -> None:
    (ranks,) = corpus("equal_ranks").tree().to_dict()["children"]
    assert (ranks["name"], ranks["count"], ranks["numbers"]) == ("ranks 0 … 1", 2, [0, 1])
    text = str(corpus("equal_ranks"))
    assert ": 2 ranks, 2 steps, 20 module calls, 238 ops, " in text.splitlines()[0]
    assert re.search(r"^ranks 0 … 1 ×2 .* 2×119 ", text, re.MULTILINE)


def test_ranks_that_differ_have_a_heading_each() -> None:
    t = corpus("unequal_ranks")
    assert named(t.tree().to_dict()["children"]) == ["rank 0", "rank 1", "rank 2"]
    unfolded = corpus("equal_ranks").tree(fold=False).to_dict()["children"]
    assert named(unfolded) == ["rank 0", "rank 1"]


def test_gaps_and_crashes_of_every_rank_are_said() -> None:
    t = corpus("missing_rank")
    assert t.coverage
    assert f"not seen: {len(t.coverage)} thing" in str(t)
    assert t.tree().to_dict()["coverage"] == [str(gap) for gap in t.coverage]
    run = corpus("equal_ranks")._current_run()
    for rank, (columns, _) in zip(run.ranks, run.parts, strict=True):
        columns.environment["crash"] = f"ValueError: rank {rank} fell"
    text = str(clew.Trace(run))
    for rank in (0, 1):
        assert f"✗ rank {rank} ended by ValueError: rank {rank} fell; see t.crash" in text


# Ops in running order, and what a narrow terminal leaves out


def test_ops_are_in_running_order() -> None:
    model = nn.Linear(3, 3)
    with torch.no_grad(), clew.trace(model) as t:
        model(torch.ones(2, 3))
    assert "└─ · t, addmm " in str(t.tree(ops="aten"))


def test_the_most_telling_ops_stay_longest_still_in_order() -> None:
    counts = [(f"aten.{name}.default", 1) for name in ("view", "exp", "t", "mm", "sin", "mm_")]
    assert op_names(counts, 1) == [
        "view, exp, t, mm, sin, mm_",
        "view, exp, mm, sin, mm_, +1",
        "exp, mm, sin, mm_, +2",
        "exp, mm, mm_, +3",
        "mm, mm_, +4",
        "mm, +5",
    ]


class Logits(nn.Module):
    """Takes two tensors and returns two by name, as a language model does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 60)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        logits = self.embed(ids) * mask.unsqueeze(-1)
        return {"loss": logits.sum(), "logits": logits}


@pytest.mark.parametrize("width", range(40, 121, 5))
def test_what_a_narrow_terminal_leaves_out_is_marked(width: int) -> None:
    model = Logits()
    ids = torch.ones(2, 7, dtype=torch.long)
    with torch.no_grad(), clew.trace(model, values="stats") as t:
        model(ids, mask=ids)
    text = t.tree().text(Style(width=width, bounded=True))
    title, root = text.splitlines()[1:3]
    flow = "i64[2,7], mask i64[2,7] → loss f32[], logits f32[2,7,60]"
    assert flow in root or re.search(r"\+1|…", root)
    for column in ("value", "ops", "params", "time", "source"):
        left_out = title.split("in → out")[0]
        shown = title.split("in → out")[1]
        assert column in shown or re.search(rf"… .*\b{column}|…$", left_out.strip()), text


@pytest.mark.parametrize("width", [50, 80])
def test_inputs_for_which_there_is_no_room_are_marked(width: int) -> None:
    text = programs.training().tree().text(Style(width=width, bounded=True))
    assert "  … → f32[2,4]" in text
    assert "  → " not in text


def test_a_class_for_which_there_is_no_room_is_marked() -> None:
    text = programs.training().tree().text(Style(width=50, bounded=True))
    (line, *_) = (line for line in text.splitlines() if "blocks.0" in line)
    assert re.search(r"blocks.0 … ×6 …  ", line)


# Values


def test_a_value_column_where_statistics_were_taken() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3)
    with torch.no_grad(), clew.trace(model, values="stats") as t:
        y = model(x)
    (root, *_) = t.tree().to_dict()["children"]
    assert root["stats"]["mean"] == pytest.approx(float(y.mean()), abs=1e-6)
    assert root["stats"]["std"] == pytest.approx(float(y.std(correction=0)), abs=1e-6)
    assert f"{root['stats']['mean']:.3g} ± {root['stats']['std']:.3g}" in str(t)
    assert " value " in str(t).splitlines()[1]
    assert " value " not in str(programs.stack()).splitlines()[1]


def test_statistics_of_a_line_are_of_all_it_stands_for() -> None:
    model = nn.Identity()
    values = [[0.0, 1.0, 7.0], [2.0, -1.0, 0.5], [3.0, torch.nan, 1e6], [4.0, 5.0, torch.inf]]
    with clew.trace(model, values="stats") as t:
        for numbers in values:
            model(torch.tensor(numbers))
            t.step()
    (steps,) = t.tree().to_dict()["children"]
    call = next(node for node in steps["children"] if node["kind"] == "call")
    everything = torch.tensor(values, dtype=torch.float64)
    expected = everything[everything.isfinite()]
    counts = (call["stats"]["nan"], call["stats"]["inf"], call["stats"]["count"])
    assert counts == (1, 1, 10)
    assert call["stats"]["mean"] == pytest.approx(float(expected.mean()))
    assert call["stats"]["std"] == pytest.approx(float(expected.std(correction=0)))
    assert (call["stats"]["min"], call["stats"]["max"]) == (-1.0, 1e6)


def test_what_is_not_finite_is_red() -> None:
    model = nn.Sequential(nn.ReLU())
    with clew.trace(model, values="stats") as t:
        model(torch.tensor([1.0, torch.nan, torch.inf, torch.nan]))
    text = t.tree().text(Style(color=True))
    assert text.count("\x1b[31;1mNaN ×2 Inf ×1\x1b[0m") >= 2


# Deep nesting


def test_calls_nested_320_deep_are_shown() -> None:
    t = corpus("deep")
    lines = str(t).splitlines()
    assert len(lines) <= 60
    assert re.fullmatch(
        r"… \d+ lines below depth \d+ left out; t.tree\(depth=319\) shows all", lines[-2]
    )
    whole = str(t.tree(depth=319)).splitlines()
    assert len(whole) == 2 + 321 + 1
    assert max(map(len, whole)) < 120
    assert whole[-2].startswith("…319 ")
    for fold in (True, False):
        data = json.loads(as_json(t.tree(fold=fold).to_dict(), indent=2))
        depth, nodes = 0, data["children"]
        while nodes:
            depth, nodes = depth + 1, nodes[-1]["children"]
        assert depth == 320


# Data


def test_nodes_are_frozen_and_say_what_they_are() -> None:
    view = programs.stack().tree()
    node: TreeNode = next(iter(walk(view._tree.roots)))
    assert repr(node) == "<TreeNode call Stack: 44 ops, 26 calls>"
    with pytest.raises(AttributeError):
        node.ops = 3  # type: ignore[misc]


def test_the_data_has_numbers_and_places() -> None:
    data = programs.stack().tree().to_dict()
    (root,) = data["children"]
    assert (data["name"], data["parameters"]) == ("Stack", 519)
    assert (root["event"], root["rank"], root["step"], root["address"]) == (0, 0, 0, "#0")
    assert root["inputs"] == [{"path": "0", "tensor": "f32[2,4]"}]
    assert root["source"]["file"].endswith("programs.py")
    assert root["source"]["line"] == 100
    blocks, head = root["children"]
    assert (blocks["count"], blocks["modules"], blocks["parameters"]) == (6, 6, 504)
    assert all(isinstance(node["seconds"], float) for node in (root, blocks, head))


def test_the_depth_that_was_asked_for_holds_for_the_data_too() -> None:
    (root,) = programs.stack().tree(depth=0).to_dict()["children"]
    assert root["children"] == []
    (root,) = programs.stack().tree(depth=1).to_dict()["children"]
    assert [node["children"] for node in root["children"]] == [[], []]


def test_a_command_says_its_own_way_to_see_more() -> None:
    t = corpus("crash")
    shell = Style(shell=True)
    for rows, more in ((None, "--depth 2 shows all"), (5, "--depth 2 without --rows shows all")):
        text = t.tree(depth=0 if rows is None else None, rows=rows).text(shell)
        assert more in text
        assert "; see `clew crash`" in text
        assert "t.tree" not in text
        assert "t.crash" not in text
    assert "`clew info` lists them" in corpus("missing_rank").tree().text(shell)
