"""Graphs in files: what `clew graph` writes, and what Netron and Model Explorer will read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from tests.golden import programs
from tests.processes import HANG_GUARD

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
    assert text.splitlines()[0].startswith("Stack, step 0 of 3: ")
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
    assert "×3" in run(run_folder, "")[0]
    assert "×3" not in run(run_folder, "", "--step", "1")[0]
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=HANG_GUARD)
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


def test_mermaid_is_what_the_graph_gives(tmp_path: Path) -> None:
    t = programs.stack()
    t.export("mermaid", tmp_path / "g.mmd", depth=1)
    assert (tmp_path / "g.mmd").read_text() == t.graph(depth=1).mermaid()


MODEL = """
from torch import nn

class {name}(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1
"""
PROGRAM = """
import sys, threading
import torch
from torch import nn
import clew
from first.model import First
from second.model import Second

model = nn.Sequential(First(2, 2), Second(2, 2))
with clew.trace(model) as t:
    model(torch.ones(3, 2))
    # Nothing but code of libraries is on the stack of this call.
    thread = threading.Thread(target=nn.ReLU(), args=[torch.ones(3)])
    thread.start()
    thread.join()
t.save(sys.argv[1])
"""


@pytest.fixture(scope="module")
def placed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a program in a folder of its own, two files of which have the same name."""
    folder = tmp_path_factory.mktemp("placed")
    for name in ("first", "second"):
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(MODEL.format(name=name.title()))
    (folder / "program.py").write_text(PROGRAM)
    run = folder / "run.clew"
    subprocess.run([sys.executable, folder / "program.py", run], check=True, timeout=HANG_GUARD)
    return run


def drawings(t: clew.Trace, folder: Path) -> dict[str, str]:
    view = t.graph(ops="all", depth=3)
    t.export("model_explorer", folder / "explorer.json")
    t.export("dot", folder / "exported.dot")
    return {
        "svg": view.svg(),
        "dot": view.dot(),
        "netron": view.dot(netron=True),
        "mermaid": view.mermaid(),
        "json": view.json(),
        "text": str(view),
        "model_explorer": (folder / "explorer.json").read_text(),
        "exported dot": (folder / "exported.dot").read_text(),
    }


def test_no_drawing_says_where_on_the_machine_a_program_lies(
    placed_run: Path, tmp_path: Path
) -> None:
    t = clew.load(placed_run)
    stdlib, packages = (sysconfig.get_paths()[name] for name in ("stdlib", "purelib"))
    torch_folder = os.path.dirname(os.path.dirname(torch.__file__))
    # They are in the trace, so they could be said.
    files = {place.file for place in t._current_run().columns.places}
    assert any(file.startswith(stdlib) for file in files)
    assert any(file.startswith(torch_folder) for file in files)
    for name, text in drawings(t, tmp_path).items():
        for place in (str(placed_run.parent), stdlib, packages, torch_folder, sys.prefix):
            assert place not in text, (name, place)


def test_drawings_tell_files_apart_by_short_names(placed_run: Path) -> None:
    graph = clew.load(placed_run).graph(ops="all", depth=3).model
    sources = {node.name: node.source for node in graph.nodes if node.source}
    assert sources["0"] == sources["Sequential"] == "program.py:11"
    added = [node.source for node in graph.nodes if node.cls == "aten.add.Tensor"]
    assert added == ["first/model.py:6", "second/model.py:6"]
    line = threading.Thread.run.__code__.co_firstlineno
    (relu,) = [node.source for node in graph.nodes if node.name == "ReLU"]
    assert relu is not None
    assert relu.startswith("threading.py:")
    assert int(relu.partition(":")[2]) > line
