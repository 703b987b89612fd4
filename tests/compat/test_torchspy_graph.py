"""torchspy's pictures of traces of nested models: a box for each module, whatever the options."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.compat.torchspy import CallTracer
from clew.compat.torchspy.trace_graph import Node, build_tree, construct_graph, save_tree_json
from clew.compat.torchspy.trace_to_graph import main
from tests.models import build, gpt2, quiet


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.q(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(4), Attention()
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(self.norm(x)))


class Net(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def traced(model: nn.Module, folder: Path, **inputs: Any) -> Path:
    quiet()
    tracer = CallTracer(folder)
    tracer.register_hooks(model)
    model(**inputs)
    tracer.remove_hooks()
    return tracer.save_trace()


def shape(dot: str) -> list[str]:
    """The boxes of a picture, each with those that it leads to."""
    labels = dict(re.findall(r'^ *(\w+) \[label="([^"]*)"', dot, re.MULTILINE))
    edges = re.findall(r"^ *(\w+) -> (\w+)", dot, re.MULTILINE)
    found = []
    for box, label in labels.items():
        below = ", ".join(labels[end] for start, end in edges if start == box)
        found.append(f"{label} → {below}" if below else label)
    return found


def drawn(trace: Path, *options: str) -> list[str]:
    out = trace.with_suffix(".dot")
    assert main(["--trace-file", str(trace), "--out", str(out), *options]) == 0
    return shape(out.read_text())


def picture(paths: list[str], **options: bool) -> list[str]:
    return shape(construct_graph(build_tree(paths), **options).source)


def test_blocks_in_blocks_are_drawn_once(tmp_path: Path) -> None:
    for layers, blocks in ((1, "blocks.0"), (2, "blocks.0 … 1 ×2"), (12, "blocks.0 … 11 ×12")):
        trace = traced(Net(layers), tmp_path, x=torch.ones(1, 4))
        pruned = [f"(root) → embed, {blocks}, head", "embed", f"{blocks} → attn", "attn", "head"]
        assert drawn(trace) == drawn(trace, "--squash-name") == pruned
        assert drawn(trace, "--no-prune-leaves") == [
            f"(root) → embed, {blocks}, head", "embed", f"{blocks} → norm, attn, mlp", "norm",
            "attn → q, o", "q", "o", "mlp → 0 … 1 ×2", "0 … 1 ×2", "head",
        ]  # fmt: skip
    trace = traced(Net(2), tmp_path, x=torch.ones(1, 4))
    assert drawn(trace, "--no-show-repetition") == [
        "(root) → embed, blocks.0, blocks.1, head", "embed", "blocks.0 → attn", "attn",
        "blocks.1 → attn", "attn", "head",
    ]  # fmt: skip


def test_gpt2_with_the_options_that_are_usual(tmp_path: Path) -> None:
    model, inputs = gpt2(layers=3)
    trace = traced(model, tmp_path, **inputs)
    assert drawn(trace) == [
        "(root) → transformer, lm_head", "transformer → h.0 … 2 ×3", "h.0 … 2 ×3 → attn, mlp",
        "attn", "mlp", "lm_head",
    ]  # fmt: skip
    pytest.importorskip("resvg_py")
    assert main(["--trace-file", str(trace), "--out", str(tmp_path / "g.png")]) == 0
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["bert", "t5", "mixtral", "clip", "whisper", "resnet", "swin"])
def test_real_models_with_all_options(name: str, tmp_path: Path) -> None:
    model, inputs = build(name)
    trace = traced(model, tmp_path, **inputs)
    paths = set(trace.read_text().splitlines())
    switches = ("--no-prune-leaves", "--no-show-repetition", "--squash-name")
    for chosen in product((False, True), repeat=3):
        options = [switch for switch, given in zip(switches, chosen, strict=True) if given]
        boxes = drawn(trace, *options)
        assert boxes
        if options == list(switches[:2]):
            # Containers that are not called, such as a ModuleList, have no line and no box.
            titles = [box.partition(" →")[0].split(".")[0] for box in boxes]
            assert len(boxes) >= len(paths)
            assert {path.split(".")[0] for path in paths} - {"root"} <= set(titles)
    assert main(["--trace-file", str(trace), "--out", str(tmp_path / "g.svg")]) == 0
    assert (tmp_path / "g.svg").read_text().count("data-node") == len(drawn(trace))


def test_sequentials_in_sequentials(tmp_path: Path) -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(block, nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1))
    trace = traced(model, tmp_path, input=torch.ones(1, 2))
    assert drawn(trace) == ["(root) → 0 … 1 ×2, 2", "0 … 1 ×2", "2"]
    assert drawn(trace, "--no-prune-leaves") == [
        "(root) → 0 … 1 ×2, 2", "0 … 1 ×2 → 0 … 1 ×2", "0 … 1 ×2", "2",
    ]  # fmt: skip


def test_layers_are_squashed_however_their_calls_are_mixed() -> None:
    paths = [f"encoder.layers.{n}.{name}" for name in ("adaln", "transition") for n in (0, 1)]
    assert picture(paths) == ["encoder → layers.0 … 1 ×2", "layers.0 … 1 ×2"]
    assert picture(paths, prune_leaves_flag=False) == [
        "encoder → layers.0 … 1 ×2", "layers.0 … 1 ×2 → adaln, transition", "adaln", "transition",
    ]  # fmt: skip


def test_layers_that_differ_inside_stay_apart_also_without_their_leaves() -> None:
    kinds = ["attn", "conv"] * 4
    paths = [f"enc.layers.{n}.{kind}" for n, kind in enumerate(kinds)] + ["enc.norm", "head.out"]
    even, odd = "layers.0, 2, 4 … ×4", "layers.1, 3, 5 … ×4"
    assert picture(paths) == [f"enc → {even}, {odd}", even, odd, "head"]
    assert f"{odd} → conv" in picture(paths, prune_leaves_flag=False)


def test_a_part_of_a_tree_is_drawn() -> None:
    tree = build_tree([f"enc.layers.{n}.attn.{name}" for n in range(2) for name in "qk"])
    encoder = construct_graph(tree.children["enc"]).source
    assert shape(encoder) == ["enc → layers.0 … 1 ×2", "layers.0 … 1 ×2 → attn", "attn"]
    layers = tree.children["enc"].children["layers"]
    assert shape(construct_graph(layers, prune_leaves_flag=False).source) == [
        "layers.0 … 1 ×2 → attn", "attn → q, k", "q", "k",
    ]  # fmt: skip


def test_a_tree_is_drawn_as_it_is_now() -> None:
    tree = build_tree(["enc.layers.0.attn", "enc.layers.1.attn", "head", "root"])
    del tree.children["head"]
    tree.children["enc"].children["added"] = Node("added", indices={"0", "2", "7"})
    tree.children["enc"].children["layers"].indices.add("2")
    assert shape(construct_graph(tree, prune_leaves_flag=False).source) == [
        "(root) → enc", "enc → layers.0 … 1 ×2, layers.2, added.0, 2, 7 ×3",
        "layers.0 … 1 ×2 → attn", "attn", "layers.2", "added.0, 2, 7 ×3",
    ]  # fmt: skip
    moved = Node(
        "root", {"mine": Node("mine", {"layers": tree.children["enc"].children["layers"]})}
    )
    assert shape(construct_graph(moved, prune_leaves_flag=False).source) == [
        "mine → layers.0 … 2 ×3", "layers.0 … 2 ×3 → attn", "attn",
    ]  # fmt: skip


def test_a_tree_made_by_hand_is_drawn() -> None:
    heads = Node("heads", indices={"0", "1"})
    layers = Node("layers", {"attn": Node("attn", {"heads": heads})}, indices={"0", "1", "10"})
    tree = Node("root", {"layers": layers, "out": Node("out")})
    assert shape(construct_graph(tree, prune_leaves_flag=False).source) == [
        "layers.0, 1, 10 ×3 → attn", "attn → heads.0 … 1 ×2", "heads.0 … 1 ×2", "out",
    ]  # fmt: skip
    assert shape(construct_graph(tree).source) == ["layers.0, 1, 10 ×3 → attn", "attn", "out"]
    assert shape(construct_graph(Node("root")).source) == []
    assert shape(construct_graph(Node("alone")).source) == ["alone"]


def test_json_counts_indices(tmp_path: Path) -> None:
    save_tree_json(build_tree(["a.0.b", "a.1.b", "a.10.c", "a.2.c"]), tmp_path / "t.json")
    lines = (tmp_path / "t.json").read_text().splitlines()
    assert [line.strip(" ,") for line in lines if "count" in line] == [
        '"count": 0', '"count": 4', '"count": 0', '"count": 0',
    ]  # fmt: skip
