"""torchspy by its old names: the README's blocks, the checklist, and its behaviours."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.compat import torchspy
from clew.compat.torchspy import (
    BaseDebugger,
    CallTracer,
    DebugContext,
    TensorSaver,
    get_debug_context,
    spy_save,
)
from clew.compat.torchspy.trace_graph import (
    Node,
    apply_graph_render_options,
    build_tree,
    construct_graph,
    parse_trace,
    prune_leaves,
    render_graph,
    save_tree_json,
    squash_numeric_indices,
)
from clew.compat.torchspy.trace_to_graph import main


class MyModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj_q = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.proj_q(x)
        spy_save("q", q, self)
        return q


def model_of(layers: int = 2) -> nn.Sequential:
    return nn.Sequential(*(MyModule() for _ in range(layers)))


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.pt"))


# The README's blocks, with only the import lines changed.
SAVING = """
from clew.compat.torchspy import TensorSaver, DebugContext
from clew.compat.torchspy.saver import spy_save

# In your module's forward():
class MyModule(nn.Module):
    def forward(self, x):
        q = self.proj_q(x)
        spy_save("q", q, self)  # Only saves when inside DebugContext
        return q
"""
SETUP = """
# Setup and run
saver = TensorSaver("./debug_tensors")
saver.register_modules(model, target_classes=(MyModule,))

with DebugContext(saver, prefix="step0"):
    output = model(inputs)
# Saves as: step0.{module_path}.q.call0.pt
"""
TRACING = """
from clew.compat.torchspy import CallTracer

tracer = CallTracer("./traces")
tracer.register_hooks(model, target_classes=(nn.Linear,))

output = model(inputs)  # Hooks record call order automatically

tracer.save_trace("forward.txt")
"""


def test_readme_saving_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"nn": nn, "inputs": torch.rand(3, 4)}
    exec(SAVING, names)
    projection = names["MyModule"]()
    projection.proj_q = nn.Linear(4, 4)
    names["model"] = nn.Sequential(nn.ReLU(), projection)
    exec(SETUP, names)
    assert saved(tmp_path / "debug_tensors") == ["step0.1.q.call0.pt"]
    q = torch.load(tmp_path / "debug_tensors" / "step0.1.q.call0.pt", weights_only=True)
    assert torch.equal(q, names["output"].detach())


def test_readme_tracing_module_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layer = nn.ModuleDict({"layer": nn.ModuleList([model_of(2), model_of(1)])})
    names: dict[str, Any] = {"nn": nn, "model": Applied(layer), "inputs": torch.rand(3, 4)}
    exec(TRACING, names)
    names["tracer"].remove_hooks()
    assert (tmp_path / "traces" / "forward.txt").read_text() == (
        "encoder.layer.0.0.proj_q\nencoder.layer.0.1.proj_q\nencoder.layer.1.0.proj_q"
    )


class Applied(nn.Module):
    """An encoder whose layers run one after the other."""

    def __init__(self, encoder: nn.ModuleDict) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder["layer"]:
            x = layer(x)
        return x


# The checklist


def test_checklist_spy_save_does_nothing_outside_a_context(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)
    model = model_of()
    saver.register_modules(model)
    model(torch.rand(1, 4))
    assert get_debug_context() is None
    assert saved(tmp_path) == []


def test_checklist_context_with_prefix_override_nesting_and_getter(tmp_path: Path) -> None:
    outer, inner = TensorSaver(tmp_path / "a"), TensorSaver(tmp_path / "b")
    module = nn.Linear(1, 1)
    inner.register_modules(module)
    with DebugContext(outer, "x") as first:
        assert get_debug_context() is first
        assert (first.saver, first.prefix, first.module_path_override) == (outer, "x", None)
        assert first.debugger is outer
        with DebugContext(inner, module_path_override="there") as second:
            assert get_debug_context() is second
            spy_save("t", torch.ones(1))
            spy_save("u", torch.ones(1), module)
        assert get_debug_context() is first
        spy_save("t", torch.ones(1))
    assert get_debug_context() is None
    assert saved(tmp_path / "a") == ["x.manual.t.call0.pt"]
    assert saved(tmp_path / "b") == ["there.t.call0.pt", "there.u.call0.pt"]


def test_checklist_registration_by_class_name_and_exclusion(tmp_path: Path) -> None:
    model = nn.ModuleDict({"layer1": model_of(), "layer10": model_of(), "head": nn.Linear(1, 1)})
    saver = TensorSaver(tmp_path)
    saver.register_modules(model, (nn.Linear,), ["layer1"], ["layer10"])
    assert sorted(saver.module_paths.values()) == ["layer1.0.proj_q", "layer1.1.proj_q"]
    assert saver.get_module_path(model["head"]) == "unknown"
    # Names are looked for anywhere in a path: "layer1" is in "layer10" too.
    wide = TensorSaver(tmp_path)
    wide.register_modules(model, target_classes=(nn.Linear,), target_names=["layer1"])
    assert len(wide.module_paths) == 4
    nothing = TensorSaver(tmp_path)
    nothing.register_modules(model, target_names=[])
    assert nothing.module_paths == {}


def test_checklist_call_counters_with_reset_and_explicit_index(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)
    saver.save("t", torch.ones(1))
    saver.save("t", torch.ones(1))
    saver.save("t", torch.ones(1), call_idx=7)
    saver.save("other", torch.ones(1))
    assert dict(saver.call_counts) == {"t": 2, "other": 1}
    saver.reset_counts()
    assert saver.call_counts["t"] == 0
    saver.save("t", torch.zeros(1))
    assert saved(tmp_path) == ["other.call0.pt", "t.call0.pt", "t.call1.pt", "t.call7.pt"]
    assert torch.load(tmp_path / "t.call0.pt", weights_only=True).item() == 0


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (torch.rand(3, 4, 5), (3,)),
        (torch.rand(4, 3).T, (3,)),
        (torch.arange(6).reshape(2, 3), (2,)),
        (torch.tensor(-2.0), (1,)),
    ],
)
def test_checklist_norm_only_saving(value: Tensor, shape: tuple[int, ...], tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("n", value, norm_only=True)
    norms = torch.load(tmp_path / "n.call0.pt", weights_only=True)
    expected = value.reshape(shape[0], -1).double().norm(dim=-1)
    assert norms.shape == shape
    assert torch.allclose(norms.double(), expected)


def test_checklist_enabled_flag(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path, enabled=False)
    saver.save("t", torch.ones(1))
    assert saved(tmp_path) == []
    assert saver.call_counts == {}
    saver.enabled = True
    saver.save("t", torch.ones(1))
    assert saved(tmp_path) == ["t.call0.pt"]
    model = nn.ReLU()
    tracer = CallTracer(tmp_path, enabled=False)
    tracer.register_hooks(model)
    model(torch.ones(1))
    assert tracer.call_trace == []
    tracer.enabled = True
    model(torch.ones(1))
    tracer.remove_hooks()
    assert tracer.call_trace == ["root"]


def test_checklist_file_naming(tmp_path: Path) -> None:
    saver, model = TensorSaver(tmp_path), model_of(1)
    saver.register_modules(model)
    with DebugContext(saver, prefix="epoch1.step0"):
        model(torch.rand(1, 4))
        model(torch.rand(1, 4))
    with DebugContext(saver):
        model(torch.rand(1, 4))
        spy_save("loss", torch.ones(()), model)
    assert saved(tmp_path) == [
        "0.q.call0.pt", "epoch1.step0.0.q.call0.pt", "epoch1.step0.0.q.call1.pt",
        "root.loss.call0.pt",
    ]  # fmt: skip


def test_checklist_call_order_trace_with_save_get_reset_and_remove(tmp_path: Path) -> None:
    model = model_of(1)
    tracer = CallTracer(tmp_path / "deep" / "traces")
    tracer.register_hooks(model)
    assert len(tracer.hooks) == len(tracer.module_paths) == 3
    model(torch.rand(1, 4))
    assert tracer.get_trace() == ["0.proj_q", "0", "root"]
    assert tracer.get_trace() is not tracer.call_trace
    path = tracer.save_trace()
    assert path == tmp_path / "deep" / "traces" / "call_trace.txt"
    assert path.read_text() == "0.proj_q\n0\nroot"
    tracer.reset_trace()
    assert tracer.get_trace() == []
    with tracer as entered:
        assert entered is tracer
        model(torch.rand(1, 4))
    assert len(tracer.get_trace()) == 3
    with tracer:
        assert tracer.get_trace() == []
        tracer.remove_hooks()
        assert len(tracer.hooks) == 0
        model(torch.rand(1, 4))
    assert tracer.get_trace() == []
    assert tracer.hooks == []


PATHS = [*(f"layers.{n}.{m}" for n in range(12) for m in ("conv", "attn")), "head"]


def test_checklist_trace_file_to_tree_to_graph(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("\n".join(PATHS))
    tree = squash_numeric_indices(build_tree(parse_trace(tmp_path / "trace.txt")))
    drawing = construct_graph(tree, prune_leaves_flag=False)
    assert "layers.0 … 11  ×12" in str(drawing)
    assert "conv" in drawing.source
    assert drawing.source.startswith("digraph")
    assert "rankdir=TB" in drawing.source
    # Without repetition each layer is a box of its own; pruned, no layer shows what is in it.
    assert drawing.source.count("label=") < 6
    assert construct_graph(tree, False, False).source.count("label=") > 36
    assert "conv" not in construct_graph(tree).source
    assert "head" in construct_graph(tree).source
    by_name = build_tree(["a.block", "b.block"])
    assert construct_graph(by_name, prune_leaves_flag=False).source.count('"block') == 2
    assert construct_graph(by_name, True, False, True).source.count('"block') == 1
    small, large = (render_graph(tree, dpi=dpi) for dpi in (50, 200))
    sizes = [width_and_height(Path(d.render(tmp_path / "g"))) for d in (small, large)]
    assert sizes[1][0] > 3 * sizes[0][0]
    fitted = apply_graph_render_options(construct_graph(tree), 100, figwidth=1, figheight=1)
    assert max(width_and_height(Path(fitted.render(tmp_path / "f.png")))) <= 100
    save_tree_json(tree, json_path=tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    assert {"name", "count", "indices", "children"} == set(data)
    assert data["children"][0]["indices"] == [str(n) for n in range(12)]


def width_and_height(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_checklist_graph_command(tmp_path: Path) -> None:
    lines = [f"encoder.layer.{n}.linear{m}" for n in range(3) for m in (1, 2)]
    (tmp_path / "trace.txt").write_text("\n".join([*lines, "head"]))
    command = [
        sys.executable, "-m", "clew.compat.torchspy.trace_to_graph", "--trace-file",
        str(tmp_path / "trace.txt"), "--out", str(tmp_path / "graph"), "--no-prune-leaves",
        "--dpi", "72", "--figwidth", "4", "--save-json", str(tmp_path / "tree.json"), "--verbose",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert width_and_height(tmp_path / "graph.png")[0] <= 4 * 72 + 1
    assert "×3" in done.stdout
    tree = json.loads((tmp_path / "tree.json").read_text())
    assert [child["name"] for child in tree["children"]] == ["encoder", "head"]


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ([], ["×3", "head"], ["linear1"]),
        (["--no-prune-leaves"], ["×3", "linear1", "linear2"], []),
        (["--no-show-repetition"], ["layer.0", "layer.1", "layer.2"], ["×"]),
        (["--prune-leaves", "--show-repetition", "--squash-name"], ["×3"], ["linear1"]),
    ],
)
def test_the_command_takes_all_options(
    options: list[str],
    shown: list[str],
    hidden: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [f"layer.{n}.linear{m}" for n in range(3) for m in (1, 2)]
    (tmp_path / "trace.txt").write_text("\n".join([*lines, "head"]))
    given = ["--trace-file", str(tmp_path / "trace.txt"), "--out", str(tmp_path / "g.dot")]
    assert main([*given, "--figheight", "3", *options]) == 0
    assert capsys.readouterr().out == ""
    text = (tmp_path / "g.dot").read_text()
    assert [word for word in shown if word not in text] == []
    assert [word for word in hidden if word in text] == []


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    out = str(tmp_path / "g.svg")
    assert main(["--trace-file", str(tmp_path / "none.txt"), "--out", out]) == 2
    assert "none.txt" in capsys.readouterr().err
    assert main(["--trace-file", str(tmp_path / "empty.txt"), "--out", out]) == 2
    assert "trace file is empty" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--trace-file", out])


# Behaviours


def test_every_name_is_there() -> None:
    names = ["BaseDebugger", "CallTracer", "DebugContext", "TensorSaver", "get_debug_context"]
    assert sorted(torchspy.__all__) == [*names, "spy_save"]
    assert set(torchspy.__all__) <= set(dir(torchspy))


def test_every_module_of_the_package_has_its_names() -> None:
    names = {"context": "DebugContext get_debug_context", "saver": "TensorSaver spy_save",
             "tracer": "CallTracer"}  # fmt: skip
    for module, given in names.items():
        found = importlib.import_module(f"clew.compat.torchspy.{module}")
        for name in given.split():
            assert getattr(found, name) is getattr(torchspy, name)


def test_a_debugger_has_a_folder_a_switch_and_paths(tmp_path: Path) -> None:
    debugger = BaseDebugger(str(tmp_path / "a" / "b"))
    assert debugger.output_dir == tmp_path / "a" / "b"
    assert debugger.output_dir.is_dir()
    assert debugger.enabled
    assert debugger.module_paths == {}
    assert not BaseDebugger(debugger.output_dir, enabled=False).enabled
    assert debugger.get_module_path(nn.ReLU()) == "unknown"


def test_the_model_itself_is_root(tmp_path: Path) -> None:
    model, saver = model_of(1), TensorSaver(tmp_path)
    saver.register_modules(model)
    assert saver.get_module_path(model) == "root"
    assert saver.module_paths[id(model[0].proj_q)] == "0.proj_q"


def test_registration_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torchspy.saver"):
        TensorSaver(tmp_path).register_modules(model_of(1), target_classes=(nn.Linear,))
    [record] = caplog.records
    assert "0.proj_q" in record.getMessage()


def test_a_saved_tensor_is_detached_and_on_the_cpu(tmp_path: Path) -> None:
    tensor = torch.rand(2, requires_grad=True) * 2
    TensorSaver(tmp_path).save("t", tensor)
    found = torch.load(tmp_path / "t.call0.pt", weights_only=True)
    assert not found.requires_grad
    assert found.device.type == "cpu"
    assert torch.equal(found, tensor.detach())


def test_an_unregistered_module_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torchspy"), DebugContext(TensorSaver(tmp_path)):
        spy_save("t", torch.ones(1), nn.Linear(1, 1))
    assert "Module path unknown for Linear" in caplog.text
    assert "Skipping save of 't'" in caplog.text
    assert saved(tmp_path) == []


def test_gradients_are_saved_from_hooks(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: spy_save("grad", grad))
    with DebugContext(TensorSaver(tmp_path)):
        (x * 3).sum().backward()
    found = torch.load(tmp_path / "manual.grad.call0.pt", weights_only=True)
    assert found.tolist() == [3, 3]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_every_pass_of_a_compiled_model_is_recorded(backend: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(1, 2))
    tracer.remove_hooks()
    compiled(torch.ones(1, 2))
    assert tracer.get_trace() == ["0", "1", "root"] * 3


def test_a_hook_is_removed_by_itself(tmp_path: Path) -> None:
    model, tracer = model_of(1), CallTracer(tmp_path)
    tracer.register_hooks(model)
    tracer.hooks[0].remove()
    model(torch.rand(1, 4))
    assert tracer.get_trace() == ["0.proj_q", "0"]
    for hook in tracer.hooks:
        hook.remove()
    model(torch.rand(1, 4))
    assert tracer.get_trace() == ["0.proj_q", "0"]
    # Which module has which path is known all the same.
    assert tracer.get_module_path(model) == "root"


def test_hooks_of_one_class_may_follow_those_of_another(tmp_path: Path) -> None:
    model, tracer = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), CallTracer(tmp_path)
    tracer.register_hooks(model, (nn.Linear,))
    tracer.remove_hooks()
    tracer.register_hooks(model, target_classes=nn.ReLU)  # a class is as good as a tuple of one
    assert len(tracer.hooks) == 1
    model(torch.ones(1, 2))
    tracer.remove_hooks()
    assert tracer.get_trace() == ["1"]
    assert sorted(tracer.module_paths.values()) == ["0", "1"]


def test_the_last_registration_says_the_path(tmp_path: Path) -> None:
    model, saver, tracer = model_of(2), TensorSaver(tmp_path), CallTracer(tmp_path)
    for part in (*model, model):
        saver.register_modules(part)
        tracer.register_hooks(part)
    with DebugContext(saver):
        model(torch.rand(1, 4))
    tracer.remove_hooks()
    assert saved(tmp_path) == ["0.q.call0.pt", "1.q.call0.pt"]
    assert tracer.get_trace() == ["0.proj_q", "0", "1.proj_q", "1", "root"]
    saver.register_modules(model[1], target_classes=(MyModule,))
    assert saver.get_module_path(model[1]) == "root"
    assert saver.get_module_path(model[1].proj_q) == "1.proj_q"


@pytest.mark.parametrize("kind", [CallTracer, TensorSaver])
def test_a_subclass_says_which_modules_it_registers(kind: type[Any], tmp_path: Path) -> None:
    class Chosen(kind):
        def _should_register_module(self, module: nn.Module, path: str, *which: Any) -> bool:
            usual: bool = super()._should_register_module(module, path, *which)
            return usual and path.startswith("1")

    model, chosen = model_of(2), Chosen(tmp_path)
    register = chosen.register_hooks if kind is CallTracer else chosen.register_modules
    register(model, (nn.Linear, MyModule), None, ["2"])
    assert sorted(chosen.module_paths.values()) == ["1", "1.proj_q"]
    if kind is CallTracer:
        model(torch.rand(1, 4))
        chosen.remove_hooks()
        assert chosen.get_trace() == ["1.proj_q", "1"]


class Collector:
    """All that a context needs of a saver."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def get_module_path(self, module: Any) -> str:
        return {nn.ReLU: "relu"}.get(type(module), "unknown")

    def save(self, name: str, tensor: Any) -> None:
        self.names.append(name)


def test_a_saver_of_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    saver = Collector()
    with DebugContext(saver, prefix="p") as context:
        assert get_debug_context() is context
        spy_save("a", torch.ones(1), nn.ReLU())
        context._save("b", torch.ones(1))
        context._save("c", torch.ones(1), module=nn.Tanh())
    with DebugContext(saver, "p", module_path_override="there") as context:
        context._save("d", torch.ones(1), nn.Tanh())
    assert get_debug_context() is None
    assert saver.names == ["p.relu.a", "p.manual.b", "p.there.d"]
    assert [record.getMessage()[:31] for record in caplog.records] == [
        "Module path unknown for Tanh: r"
    ]


def test_a_saver_of_another_kind_in_compiled_code(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    saver, model = Collector(), MyModule()
    with DebugContext(saver):
        torch.compile(model, backend="eager", fullgraph=True)(torch.rand(1, 4))
    assert saver.names == []
    assert "Skipping save of 'q'" in caplog.text


def test_a_context_that_cannot_be_entered_is_not_open() -> None:
    class Broken(Collector):
        module_paths = 3

    with pytest.raises(TypeError), DebugContext(Broken()):
        pytest.fail("it was entered")
    assert get_debug_context() is None
    spy_save("t", torch.ones(1))


def test_the_folder_can_be_changed(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path / "a")
    saver.save("t", torch.ones(1))
    saver.output_dir = tmp_path / "b"
    saver.save("t", torch.ones(1))
    assert (saved(tmp_path / "a"), saved(tmp_path / "b")) == (["t.call0.pt"], ["t.call1.pt"])
    assert saver.output_dir == tmp_path / "b"


def test_a_trace_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a.b\n\n  c \n")
    assert parse_trace(tmp_path / "t.txt") == ["a.b", "c"]
    assert parse_trace(os.fspath(tmp_path / "t.txt")) == ["a.b", "c"]
    with pytest.raises(FileNotFoundError):
        parse_trace(tmp_path / "no.txt")
    (tmp_path / "e.txt").write_text("\n")
    with pytest.raises(ValueError, match="trace file is empty"):
        parse_trace(tmp_path / "e.txt")


def test_the_tree_has_names_and_indices() -> None:
    tree = build_tree(PATHS)
    layers = tree.children["layers"]
    assert set(layers.children) == {"conv", "attn"}
    assert layers.indices == {str(n) for n in range(12)}
    assert (layers.count, tree.children["head"].count) == (12, 1)
    assert (layers.first_seen, tree.children["head"].first_seen) == (0, 24)
    assert layers.parents == [tree]
    assert squash_numeric_indices(tree) is tree
    # A number at the beginning is a name.
    assert list(build_tree(["0.conv", "1.conv"]).children) == ["0", "1"]


def test_nodes_are_told_apart_by_identity() -> None:
    one, other = Node("a"), Node("a")
    assert one != other
    assert len({one, other}) == 2
    assert (one.children, one.count, one.first_seen, one.parents) == ({}, 1, 0, [])
    assert one.indices == set()


def test_pruning_takes_the_last_name_and_keeps_indices() -> None:
    pruned = prune_leaves(build_tree([*PATHS, "encoder.blocks.3"]))
    assert set(pruned.children) == {"layers", "head", "encoder"}
    assert pruned.children["layers"].children == {}
    assert pruned.children["layers"].indices == {str(n) for n in range(12)}
    assert "×12" in construct_graph(pruned, prune_leaves_flag=False).source


def test_a_picture_has_the_form_its_name_says(tmp_path: Path) -> None:
    drawing = render_graph(build_tree(PATHS), squash_name=True)
    assert drawing.render(tmp_path / "graph", cleanup=True) == str(tmp_path / "graph.png")
    assert drawing.render(tmp_path / "s.svg").endswith("s.svg")
    assert "<svg" in (tmp_path / "s.svg").read_text()


def test_a_module_that_is_gone_has_no_path(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)
    saver.register_modules(nn.Linear(1, 1))
    gc.collect()
    assert saver.module_paths == {}
