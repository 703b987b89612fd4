"""Graphs in files: what `clew graph` writes, and what Netron and Model Explorer will read."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from tests.golden import programs

CALLS = "encoder.layer.0.linear1\nencoder.layer.0.linear2\nencoder.layer.1.linear1\nhead\n"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.training().save(tmp_path_factory.mktemp("graph") / "run.clew")


def run(*args: object, code: int = 0) -> tuple[str, str]:
    """Run `clew graph`; what it prints and complains of."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            returned = main(["graph", *map(str, args)])
        except SystemExit as left:
            returned = int(left.code or 0)
    assert returned == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def test_without_a_file_the_boxes_are_listed(run_folder: Path) -> None:
    text, _ = run(run_folder, "--depth", 1)
    assert text.splitlines()[0].startswith("Stack: ")
    assert "  blocks.0 … 5  ×6  Block  ← input f32[2,4]" in text
    data = json.loads(run(run_folder, "--depth", 1, "--json")[0])
    assert {node["name"] for node in data["nodes"]} >= {"blocks.0 … 5", "head", "input"}


@pytest.mark.parametrize("name", ["g.svg", "g.png", "g.dot", "g.gv", "g.mmd", "g.json"])
def test_the_ending_says_what_is_written(name: str, run_folder: Path, tmp_path: Path) -> None:
    said, _ = run(run_folder, "--depth", 2, "-o", tmp_path / name)
    assert re.fullmatch(rf"{re.escape(str(tmp_path / name))}: \d+ nodes, \d+ edges\n", said)
    assert (tmp_path / name).stat().st_size > 500
    told = json.loads(run(run_folder, "-o", tmp_path / name, "--json")[0])
    assert told["path"] == str(tmp_path / name)


def test_options_reach_the_graph(run_folder: Path, tmp_path: Path) -> None:
    assert "relu" not in run(run_folder, "--ops", "none")[0]
    assert "gradients ←" in run(run_folder, "--backward")[0]
    assert "×3" not in run(run_folder, "--step", "1")[0]
    assert "×6" not in run(run_folder, "--no-fold", "--depth", "1")[0]
    assert "norm" not in run(run_folder, "--prune", "LayerNorm", "--prune", "Linear")[0]
    assert "norm" not in run(run_folder, "--prune")[0]
    assert "Linear  ×2" in run(run_folder, "--squash", "class")[0]
    assert run(run_folder, "blocks.0")[0].startswith("blocks.0: ")
    run(run_folder, "-o", tmp_path / "g.svg", "--color", "time", "--theme", "dark")
    text = (tmp_path / "g.svg").read_text()
    assert "time: " in text
    assert "prefers-color-scheme" not in text


def test_a_list_of_calls_is_drawn_too(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text(CALLS)
    text, _ = run(tmp_path / "trace.txt")
    assert text.splitlines()[:3] == ["trace.txt: 7 nodes, 3 edges", "encoder", "  layer.0"]
    tree, _ = run(tmp_path / "trace.txt", "--edges", "tree")
    assert "linear1  ← layer.0" in tree
    run(tmp_path / "trace.txt", "-o", tmp_path / "g.svg")
    assert "<svg" in (tmp_path / "g.svg").read_text()


def test_what_cannot_be_drawn_is_said(run_folder: Path, tmp_path: Path) -> None:
    assert "end it in '.svg'" in run(run_folder, "-o", tmp_path / "g.pdf", code=2)[1]
    refused = run(run_folder, "-o", tmp_path / "g.svg", "--dpi", 96, code=2)[1]
    assert "--dpi is for a PNG, and" in refused
    (tmp_path / "empty.txt").write_text("\n")
    assert "empty.txt lists no calls" in run(tmp_path / "empty.txt", code=2)[1]
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    assert "neither a trace nor a list of calls" in run(tmp_path / "bytes.txt", code=2)[1]
    (tmp_path / "trace.txt").write_text(CALLS)
    assert "no address can be looked up" in run(tmp_path / "trace.txt", "head", code=2)[1]
    assert "nothing matches 'block'" in run(run_folder, "block", code=2)[1]


def test_a_saved_trace_is_drawn_without_torch(run_folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from clew.cli.main import main\n"
        f"sys.exit(main(['graph', {str(run_folder)!r}, '-o', {str(tmp_path / 'g.svg')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "g.svg").read_text().startswith("<svg ")


class Shared(nn.Module):
    """A module called twice, with modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.encode(a) - self.encode(b)


def exported(fmt: str, path: Path, **options: Any) -> str:
    model, a, b = Shared(), torch.ones(2, 4), torch.zeros(2, 4)
    with clew.trace(model) as t:
        model(a, b)
    done = t.export(fmt, path, **options)
    assert str(done).endswith(" nodes")
    return path.read_text()


def test_model_explorer_finds_nested_layers_and_every_edge(tmp_path: Path) -> None:
    data = json.loads(exported("model_explorer", tmp_path / "g.json"))
    assert data["label"] == "Shared"
    (graph,) = data["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    spaces = {node["namespace"] for node in graph["nodes"]}
    assert {"", "Shared", "Shared/encode/0", "Shared/encode #1/0"} <= spaces
    for node in graph["nodes"]:
        assert set(node) == {
            "id", "label", "namespace", "attrs", "incomingEdges", "inputsMetadata",
            "outputsMetadata",
        }  # fmt: skip
        for attr in node["attrs"]:
            assert set(attr) == {"key", "value"}
            assert all(isinstance(text, str) for text in attr.values())
        for number, edge in enumerate(node["incomingEdges"]):
            assert edge["sourceNodeId"] in nodes
            assert edge["targetNodeInputId"] == str(number)
            assert edge["sourceNodeOutputId"].isdecimal()
    sub = next(node for node in graph["nodes"] if node["label"] == "sub")
    sources = [nodes[edge["sourceNodeId"]] for edge in sub["incomingEdges"]]
    assert [node["namespace"] for node in sources] == ["Shared/encode/1", "Shared/encode #1/1"]
    assert sub["outputsMetadata"] == [{"id": "0", "attrs": [{"key": "shape", "value": "f32[2,3]"}]}]
    assert graph["groupNodeAttributes"]["Shared/encode"]["class"] == "Sequential"


def test_dot_is_in_the_form_from_which_netron_takes_types(tmp_path: Path) -> None:
    """Its reader wants the node's own name first, then op_code=, then what is called."""
    text = exported("dot", tmp_path / "g.dot", fold=False)
    assert text.startswith('digraph "Shared" {\n')
    types = {}
    for name, label in re.findall(r'^  "([^"]+)" \[label="\{(.*)\}"\];$', text, re.M):
        fields = label.split("|")
        assert fields[0] == name
        assert fields[1].startswith("op_code=")
        code, *called = fields[1].removeprefix("op_code=").split("\\l")
        types[name] = called[0] if code == "call_module" else fields[2].split("\\l")[0]
        for fact in fields[2].split("\\l"):
            assert fact.count(":") <= 1
    assert sorted(types.values()) == [
        "Linear", "Linear", "Linear", "Linear", "aten.sub.Tensor", "input", "input 1", "output",
    ]  # fmt: skip
    ends = re.findall(r'^  "([^"]+)" -> "([^"]+)"', text, re.M)
    assert {end for pair in ends for end in pair} <= set(types)
    assert len(ends) == 7
    # Clusters, which it does not look into, come last and declare nothing.
    assert text.index("subgraph") > text.rindex("->")
    assert exported("dot", tmp_path / "h.dot", depth=1).count("call_module") == 1
