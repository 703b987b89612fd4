"""The graph of real runs: which boxes there are, and what leads from one to another."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew.analysis.graph import Edge, Graph, Options, build, read_calls
from clew.views.graph.svg import Drawing
from clew.views.graph.view import graph_view
from tests.golden import programs
from tests.models import build as build_model
from tests.models import gpt2, quiet


def traced(model: nn.Module, *inputs: Any, **options: Any) -> clew.Trace:
    with clew.trace(model, **options) as t:
        model(*inputs)
    return t


def graph(t: clew.Trace, **options: Any) -> Graph:
    return build(t._current_run(), Options(**options))


def links(found: Graph, *kinds: str) -> set[tuple[str, str]]:
    """The edges of some kinds (all but those to the next run), by the names of their ends."""
    wanted = kinds or ("data", "view", "write", "order", "backward", "inside")
    name = {node.id: node.name for node in found.nodes}
    return {(name[e.source], name[e.target]) for e in found.edges if e.kind in wanted}


def edge(found: Graph, source: str, target: str) -> Edge:
    name = {node.id: node.name for node in found.nodes}
    return next(e for e in found.edges if (name[e.source], name[e.target]) == (source, target))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def test_edges_follow_the_data_and_carry_its_looks() -> None:
    x = torch.ones(2, 4)
    found = graph(traced(Residual(), x))
    assert links(found) == {
        ("input", "norm"), ("input", "add"), ("norm", "up"), ("up", "relu"), ("relu", "down"),
        ("down", "add"), ("add", "output"),
    }  # fmt: skip
    assert edge(found, "up", "relu").labels == ("f32[2,8]",)
    assert [node.name for node in found.nodes if node.children] == ["Residual"]


def test_edges_of_a_module_come_from_what_was_taken_inside_it() -> None:
    class Ignores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Residual()

        def forward(self, x: Tensor, unused: Tensor) -> Tensor:
            return self.body(x)

    x, unused = torch.ones(2, 4), torch.zeros(3)
    found = graph(traced(Ignores(), x, unused), depth=1)
    assert links(found) == {("input", "body"), ("body", "output")}


def test_what_hands_its_input_on_is_on_the_way() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Identity(), nn.Linear(4, 4)).eval()
    found = graph(traced(model, torch.ones(2, 4)))
    assert links(found) == {
        ("input", "0"), ("0", "1"), ("1", "2"), ("2", "3"), ("3", "output"),
    }  # fmt: skip


def test_views_and_writes_are_told_apart() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.act = nn.ReLU(inplace=True)
            self.flat = nn.Flatten(0)

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.fc(x))
            y[0].mul_(2)
            return self.flat(y)

    found = graph(traced(Writes(), torch.ones(2, 4)))
    assert edge(found, "fc", "act").kind == "write"
    assert edge(found, "act", "mul_").kind == "write"
    assert edge(found, "mul_", "flat").kind == "view"


def test_ops_between_calls_are_boxes_views_are_not_unless_asked_for() -> None:
    t = traced(Residual(), torch.ones(2, 4))
    assert {n.name for n in graph(t).nodes if n.kind == "op"} == {"relu", "add"}
    assert not [n for n in graph(t, ops="none").nodes if n.kind == "op"]
    major = {n.name for n in graph(t, ops="major").nodes if n.kind == "op"}
    assert major == {"relu", "add", "addmm", "native_layer_norm"}
    everything = graph(t, ops="all")
    assert {"t", "addmm", "native_layer_norm"} <= {n.name for n in everything.nodes}
    assert ("up", "down") in links(graph(t, ops="none"))


def test_empty_tensors_are_no_boxes_and_lead_nowhere() -> None:
    class Grows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            cache = torch.empty(0).relu()
            return torch.cat([cache, x]).sum() + x[:0].sum()

    found = graph(traced(Grows(), torch.ones(3)))
    assert links(found) == {
        ("input", "cat"), ("cat", "sum"), ("input", "sum"), ("sum", "add"), ("add", "output"),
    }  # fmt: skip


def test_repeated_layers_are_one_box_and_differing_layers_another() -> None:
    found = graph(programs.stack(), depth=1)
    (blocks,) = [n for n in found.nodes if n.cls == "Block"]
    assert (blocks.name, blocks.count, len(blocks.events)) == ("blocks.0 … 5", 6, 6)
    assert blocks.modules == 6
    apart = graph(programs.stack(width=16), depth=1)
    assert [(n.name, n.count) for n in apart.nodes if n.cls == "Block"] == [
        ("blocks.0 … 2", 3), ("blocks.3", 1), ("blocks.4 … 5", 2),
    ]  # fmt: skip
    assert len([n for n in graph(programs.stack(), fold=False).nodes if n.cls == "Block"]) == 6


def test_a_loop_that_begins_with_a_loop_is_a_frame_in_a_frame() -> None:
    model, x = nn.Linear(4, 4), torch.ones(1, 4)
    with clew.trace(model) as t:
        for _ in range(3):
            for _ in range(4):
                model(x).exp()
            x.sin()
    found = graph(t)
    outer, inner = [node for node in found.nodes if node.kind == "repeat"]
    assert (outer.count, outer.parent, inner.count, inner.parent) == (3, None, 4, outer.id)
    drawn = {node.id for node in found.nodes}
    assert all(edge.source in drawn and edge.target in drawn for edge in found.edges)
    assert t.graph().svg().startswith("<svg ")


def test_of_a_repeat_edges_go_in_and_out_and_to_the_next_run() -> None:
    found = graph(programs.stack())
    assert {("input", "norm"), ("input", "add"), ("add", "head")} <= links(found, "data")
    assert links(found, "next") == {("add", "norm")}


def test_a_loop_over_several_calls_and_ops_is_framed_once() -> None:
    x = torch.ones(2, 4)
    found = graph(traced(programs.Gated(), x), depth=1)
    (frame,) = [n for n in found.nodes if n.kind == "repeat"]
    assert (frame.name, frame.count) == ("layers.0 … 4", 5)
    inside = {found[child].name for child in frame.children}
    assert inside == {"layers.0", "mul", "add"} or inside == {"layers.0 … 4", "mul", "add"}


def test_depth_counts_modules_below_the_outermost() -> None:
    quiet()
    model, inputs = gpt2(12)
    with clew.trace(model.eval()) as t:
        model(**inputs)
    names = {depth: {n.name for n in graph(t, depth=depth).boxes} for depth in (0, 1, 2, 3)}
    assert names[0] == {"GPT2LMHeadModel", "input_ids", "labels", "output"}
    assert {"transformer", "lm_head"} <= names[1]
    assert {"wte", "wpe", "h.0 … 11", "ln_f", "lm_head"} <= names[2]
    assert {"ln_1", "attn", "ln_2", "mlp"} <= names[3]
    assert len(graph(t, depth=2).boxes) < 20


def test_pruning_leaves_out_calls_without_calls_inside() -> None:
    t = programs.stack()
    assert [n.name for n in graph(t, prune=True).nodes if n.kind == "call"] == [
        "Stack",
        "blocks.0 … 5",
    ]
    by_class = graph(t, prune=("LayerNorm", "head"))
    assert not {"norm", "head"} & {n.name for n in by_class.nodes}
    assert ("input", "up") in links(by_class)
    assert ("add", "output") in links(by_class)


def test_squashing_makes_one_box_of_a_class_or_a_name() -> None:
    t = programs.stack()
    by_class = graph(t, squash="class", depth=2)
    (linear,) = [n for n in by_class.nodes if n.cls == "Linear" and n.count > 1]
    assert (linear.name, linear.count) == ("Linear", 2)
    apart = graph(programs.stack(width=16), squash="name", depth=1)
    assert [(n.name, n.count) for n in apart.nodes if n.cls == "Block"] == [("blocks", 6)]


def test_calls_can_be_linked_by_order_or_as_a_tree() -> None:
    t = traced(Residual(), torch.ones(2, 4))
    order = graph(t, edges="calls")
    assert links(order, "order") == {("norm", "up"), ("up", "down")}
    tree = graph(t, edges="tree")
    assert links(tree) == {("Residual", "norm"), ("Residual", "up"), ("Residual", "down")}
    assert not [n for n in tree.nodes if n.parent is not None]


def test_gradients_flow_back_when_asked_for() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.ones(3, 4)
    with clew.trace(model) as t:
        F.mse_loss(model(x), torch.zeros(3, 2)).backward()
    assert not links(graph(t), "backward")
    found = graph(t, backward=True)
    assert links(found, "backward") == {("mse_loss", "2"), ("2", "1"), ("1", "0")}
    assert "ones_like" not in {n.name for n in found.nodes}


def test_a_module_called_twice_has_two_boxes() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(4, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.encode(a) - self.encode(b)

    a, b = torch.ones(2, 4), torch.zeros(2, 4)
    found = graph(traced(Siamese(), a, b))
    assert [n.count for n in found.nodes if n.name == "encode"] == [1, 1]
    assert links(found) >= {("input", "encode"), ("input 1", "encode"), ("encode", "sub")}


def test_without_ops_calls_are_linked_by_what_is_known_and_else_by_order() -> None:
    found = graph(traced(Residual(), torch.ones(2, 4), level="modules"))
    assert ("norm", "up") in links(found, "data")
    assert ("up", "down") in links(found, "order")


def test_nodes_say_what_is_known_of_them() -> None:
    found = graph(traced(Residual(), torch.ones(2, 4), values="stats"))
    up = next(n for n in found.nodes if n.name == "up")
    assert (up.cls, up.path, up.parameters, up.ops) == ("Linear", "up", 40, 2)
    assert up.outputs == ("f32[2,8]",)
    assert up.bytes == 64
    assert up.seconds is not None
    assert up.stats is not None
    assert up.stats["count"] == 16
    assert up.source is not None
    assert re.fullmatch(r"test_graph\.py:\d+", up.source)
    assert up.address == "up#0"


def test_a_crash_is_drawn_where_it_happened() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    with pytest.raises(RuntimeError), clew.trace(model) as t:
        model(torch.ones(2, 4))
    failed = [n for n in graph(t).nodes if n.error]
    assert [n.name for n in failed] == ["Sequential", "1"]
    assert "failed" in t.graph().svg()


def test_the_graph_of_one_part_and_of_one_step() -> None:
    t = programs.training()
    part = t.graph("blocks.0")
    assert part.model.title == "blocks.0"
    assert {"norm", "up", "down"} <= {n.name for n in part.model.boxes}
    assert next(n for n in part.model.nodes if n.path == "blocks.0").count == 3
    assert next(n for n in t.graph(step=1).model.nodes if n.path == "").count == 1
    with pytest.raises(clew.ClewError, match="nothing ran in step 9; there are steps 0 to 2"):
        t.graph(step=9)


def averaged_training(passes: int, steps: str) -> clew.Trace:
    """Keep averages of weights, of which each has a `lerp_` of its own, and train with Adam.

    `steps` is `"none"` to leave the optimizer out, and `"marked"` to mark them.
    """
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.ones(2, 4)
    with clew.trace(model) as t:
        for _ in range(passes):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if steps != "none":
                optimizer.step()
            with torch.no_grad():
                for mean, parameter in zip(average, model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)
            if steps == "marked":
                t.step()
    return t


@pytest.mark.parametrize(
    ("steps", "part"),
    [("marked", "step 0 of 4"), ("found", "step 0 of 4"), ("none", "first forward")],
)
def test_of_a_training_run_one_forward_is_drawn(steps: str, part: str) -> None:
    view = averaged_training(4, steps).graph()
    drawn = [n.name for n in view.model.boxes if n.kind not in ("input", "output")]
    assert drawn == ["0 … 7", "pow", "mean"]
    assert [n.count for n in view.model.boxes if n.name == "0 … 7"] == [8]
    assert view.model.part == part
    assert str(view).startswith(f"Sequential, {part}: ")
    assert view.to_dict()["part"] == part
    assert part in view.svg()
    assert f'label="{part}"' in view.dot()
    assert view.mermaid().startswith(f'---\ntitle: "Sequential, {part}"\n---\n')


def test_a_step_that_is_asked_for_has_all_its_forwards() -> None:
    model = nn.Linear(4, 4)
    with clew.trace(model) as t:
        for _ in range(2):
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
            t.step()
    assert len(t.graph(fold=False).model.tops) == len(["input", "Linear", "sum"])
    assert t.graph().model.part == "first forward, step 0 of 2"
    asked = t.graph(step=1, fold=False)
    assert [n.name for n in asked.model.nodes].count("sum") == 3
    assert asked.model.part == ""


def test_the_first_step_with_a_forward_is_drawn() -> None:
    model = nn.Linear(4, 4)
    with clew.trace(model) as t:
        torch.ones(3) + 1
        t.step()
        model(torch.ones(2, 4))
        t.step()
        model(torch.ones(2, 4))
    view = t.graph()
    assert view.model.part == "step 1 of 3"
    assert "Linear" in {n.name for n in view.model.nodes}


def test_a_run_without_calls_or_with_a_single_forward_is_drawn_whole() -> None:
    with clew.trace() as t:
        (torch.ones(3) + 1).exp()
    assert {"add", "exp"} <= {n.name for n in t.graph().model.nodes}
    assert t.graph().model.part == ""
    whole = traced(Residual(), torch.ones(2, 4)).graph()
    assert whole.model.part == ""
    assert whole.mermaid().startswith("flowchart")


def test_unequal_ranks_are_drawn_from_their_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, layers in enumerate((3, 9)):
        monkeypatch.setenv("RANK", str(rank))
        model = nn.Sequential(*(nn.Linear(4 + rank, 4 + rank) for _ in range(layers)))
        with clew.trace(model, out=tmp_path / "run.clew"):
            model(torch.ones(2, 4 + rank))
    t = clew.load(tmp_path / "run.clew")
    assert t.graph().model.part == "rank 0 of 2"
    assert "0 … 2" in {n.name for n in t.graph().model.nodes}
    for address, rank in (("8", 1), ("1", 0), ("1@1", 1)):
        view = t.graph(address)
        (call,) = (n for n in view.model.nodes if n.kind == "call")
        assert call.path == address[0]
        assert call.inputs == (f"f32[2,{4 + rank}]",)
        assert call.events == tuple(e.id for e in t[address] if e.rank == rank)
        assert view.model.part == f"rank {rank} of 2"


def test_a_saved_trace_has_the_same_graph(tmp_path: Path) -> None:
    t = programs.training()
    saved = clew.load(t.save(tmp_path / "run.clew"))
    assert saved.graph(backward=True).to_dict() == t.graph(backward=True).to_dict()


def test_json_is_the_model(tmp_path: Path) -> None:
    view = traced(Residual(), torch.ones(2, 4)).graph()
    text = view.json(tmp_path / "g.json")
    assert json.loads((tmp_path / "g.json").read_text()) == json.loads(text)
    data = json.loads(text)
    assert set(data) == {"schema", "title", "part", "nodes", "edges"}
    ids = [node["id"] for node in data["nodes"]]
    assert len(set(ids)) == len(ids)
    children = {child for node in data["nodes"] for child in node["children"]}
    assert children == {node["id"] for node in data["nodes"] if node["parent"] is not None}
    boxes = {node["id"] for node in data["nodes"] if not node["children"]}
    assert {end for e in data["edges"] for end in (e["source"], e["target"])} <= boxes


MODELS = ("gpt2", "t5", "mixtral", "resnet", "transformer", "lstm", "functional", "clip")


@pytest.mark.parametrize("name", MODELS)
def test_pictures_of_real_models_have_no_overlaps(name: str) -> None:
    model, inputs = build_model(name)
    with clew.trace(model) as t:
        model(**inputs)["loss"].backward()
    for options in ({}, {"depth": 3, "backward": True}, {"depth": 2, "fold": False}):
        found = t.graph(**options).model
        drawing = Drawing(found, color="class", direction="down", theme="auto", show=())
        rects = drawing.picture.boxes
        boxes = [rects[node.id] for node in found.boxes]
        assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
        for node in found.nodes:
            assert node.parent is None or rects[node.parent].contains(rects[node.id])
        labels = {r.label for r in drawing.picture.routes if r is not None and r.label}
        assert not any(label.overlaps(box) for label in labels for box in boxes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": "some"}, "ops='some' is not one of None, 'between', 'major', 'all', 'none'"),
        ({"squash": "depth"}, "squash='depth' is not one of None, 'class', 'name'"),
        ({"edges": "flow"}, "edges='flow' is not one of 'data', 'calls', 'tree'"),
        ({"depth": -1}, "depth=-1 is not a number from 0 up"),
        ({"direction": "up"}, "direction='up' is not one of 'down', 'right'"),
        ({"theme": "blue"}, "theme='blue' is not one of 'auto', 'light', 'dark'"),
        ({"show": ["flops"]}, "show='flops' is not one of 'params', 'time', 'ops', 'bytes'"),
    ],
)
def test_wrong_options_are_named_with_the_right_ones(options: Any, message: str) -> None:
    with pytest.raises(clew.ClewError, match=message):
        programs.stack().graph(**options)


def test_colours_by_a_statistic_need_statistics() -> None:
    with pytest.raises(clew.ClewError, match="record them with clew.trace\\(values='stats'\\)"):
        programs.stack().graph(color="stats.nan").svg()
    with pytest.raises(clew.ClewError, match="color='heat' is not one of 'class', 'time'"):
        programs.stack().graph(color="heat").svg()


def test_nan_stands_out_in_its_colour() -> None:
    class Divides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x / x).sum()

    t = traced(Divides(), torch.zeros(2), values="stats")
    assert "stats.nan_share: 1 – 1" in t.graph(color="stats.nan_share").svg()
    # The mean of NaN is no number, and no place on a scale.
    assert "stats.std" in t.graph(color="stats.std").svg()
    text = t.graph(color="stats.nan").svg()
    assert "q6" in text.split("</style>")[1]
    assert "stats.nan: 0 – 2" in text or "stats.nan: 1 – 2" in text


def test_a_png_has_the_size_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    view = programs.stack().graph()

    def size(path: Path) -> tuple[int, int]:
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])

    plain = size(view.png(tmp_path / "a.png", dpi=96))
    double = size(view.png(tmp_path / "b.png", dpi=192))
    assert abs(double[0] - 2 * plain[0]) <= 2
    wide = size(view.png(tmp_path / "c.png", dpi=100, width=3))
    assert abs(wide[0] - 300) <= 1
    fits = size(view.png(tmp_path / "d.png", dpi=100, width=3, height=1))
    assert fits[0] <= 301
    assert abs(fits[1] - 100) <= 1


def test_programs_that_drew_with_graphviz_find_its_words(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    view = programs.stack().graph()
    assert view.source == view.dot()
    assert view.render(tmp_path / "model.v2") == str(tmp_path / "model.v2.png")
    assert (tmp_path / "model.v2.png").read_bytes().startswith(b"\x89PNG")
    assert view.render(tmp_path / "model", format="svg") == str(tmp_path / "model.svg")
    assert view.render(os.fspath(tmp_path / "g.DOT"), cleanup=True) == str(tmp_path / "g.DOT")
    assert (tmp_path / "g.DOT").read_text() == view.source
    with pytest.raises(clew.ClewError, match=r"cannot tell from .*model\.pdf what to write"):
        view.render(tmp_path / "model", format="pdf")


def test_a_graph_knows_how_large_its_pictures_are(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    view = graph_view(read_calls(["a.b", "c"]), dpi=50, width=2)

    def width(path: Path) -> int:
        return int.from_bytes(path.read_bytes()[16:20])

    assert abs(width(view.save(tmp_path / "a.png")) - 100) <= 1
    assert abs(width(view.png(tmp_path / "b.png", dpi=100, width=3)) - 300) <= 1
    view.dpi, view.width = 25, 4
    assert abs(width(view.png(tmp_path / "c.png")) - 100) <= 1


def test_a_missing_rasteriser_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(clew.ClewError, match='pip install "clew\\[png\\]"'):
        programs.stack().graph().png(tmp_path / "a.png")


def test_notebooks_show_the_picture() -> None:
    bundle = programs.stack().graph()._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg ")
    assert bundle["text/plain"].startswith("Stack: ")


def test_files_are_written_by_their_ending(tmp_path: Path) -> None:
    view = programs.stack().graph()
    starts: dict[str, Callable[[str], bool]] = {
        "g.svg": lambda text: text.startswith("<svg "),
        "g.dot": lambda text: text.startswith("digraph "),
        "g.mmd": lambda text: text.startswith("flowchart TB"),
        "g.json": lambda text: text.startswith("{"),
    }
    for name, is_right in starts.items():
        assert is_right(view.save(tmp_path / name).read_text())
    with pytest.raises(clew.ClewError, match="cannot tell from .*g.pdf what to write"):
        view.save(tmp_path / "g.pdf")
