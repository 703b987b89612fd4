"""torchspy by its old names: the README's blocks, its behaviours, and none of its faults."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.compat.torchspy import (
    BaseDebugger,
    CallTracer,
    DebugContext,
    TensorSaver,
    get_debug_context,
)
from clew.compat.torchspy.saver import spy_save
from clew.compat.torchspy.trace_graph import (
    apply_graph_render_options,
    build_tree,
    construct_graph,
    parse_trace,
    prune_leaves,
    render_graph,
    save_tree_json,
    squash_numeric_indices,
)


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


# The README


def test_readme_saving_tensors(tmp_path: Path) -> None:
    model, inputs = model_of(), torch.rand(3, 4)
    saver = TensorSaver(tmp_path / "debug_tensors")
    saver.register_modules(model, target_classes=(MyModule,))
    with DebugContext(saver, prefix="step0"):
        model(inputs)
    assert saved(tmp_path / "debug_tensors") == ["step0.0.q.call0.pt", "step0.1.q.call0.pt"]
    q = torch.load(tmp_path / "debug_tensors" / "step0.0.q.call0.pt", weights_only=True)
    assert torch.equal(q, model[0].proj_q(inputs).detach())


def test_readme_tracing_module_calls(tmp_path: Path) -> None:
    model, inputs = model_of(), torch.rand(3, 4)
    tracer = CallTracer(tmp_path / "traces")
    tracer.register_hooks(model, target_classes=(nn.Linear,))
    model(inputs)
    path = tracer.save_trace("forward.txt")
    tracer.remove_hooks()
    assert path == tmp_path / "traces" / "forward.txt"
    assert path.read_text() == "0.proj_q\n1.proj_q"


def test_readme_trace_graph_command(tmp_path: Path) -> None:
    lines = [f"encoder.layer.{n}.linear{m}" for n in range(3) for m in (1, 2)]
    (tmp_path / "trace.txt").write_text("\n".join([*lines, "head"]))
    command = [
        sys.executable, "-m", "clew.compat.torchspy.trace_to_graph", "--trace-file",
        str(tmp_path / "trace.txt"), "--out", str(tmp_path / "graph"), "--no-prune-leaves",
        "--dpi", "72", "--figwidth", "4", "--save-json", str(tmp_path / "tree.json"), "--verbose",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    assert "×3" in done.stdout
    tree = json.loads((tmp_path / "tree.json").read_text())
    assert [child["name"] for child in tree["children"]] == ["encoder", "head"]


def test_graph_command_says_what_is_wrong(tmp_path: Path) -> None:
    from clew.compat.torchspy.trace_to_graph import main

    (tmp_path / "empty.txt").write_text("\n")
    out = str(tmp_path / "g.svg")
    assert main(["--trace-file", str(tmp_path / "none.txt"), "--out", out]) == 2
    assert main(["--trace-file", str(tmp_path / "empty.txt"), "--out", out]) == 2


# Saving


def test_nothing_happens_outside_a_context(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)
    model = model_of()
    saver.register_modules(model)
    model(torch.rand(1, 4))
    assert get_debug_context() is None
    assert saved(tmp_path) == []


def test_contexts_nest_and_the_inner_one_counts(tmp_path: Path) -> None:
    outer, inner = TensorSaver(tmp_path / "a"), TensorSaver(tmp_path / "b")
    with DebugContext(outer, "x") as first:
        assert get_debug_context() is first
        assert first.debugger is outer
        with DebugContext(inner, module_path_override="there"):
            spy_save("t", torch.ones(1))
        spy_save("t", torch.ones(1))
    assert saved(tmp_path / "a") == ["x.manual.t.call0.pt"]
    assert saved(tmp_path / "b") == ["there.t.call0.pt"]


def test_calls_are_counted_reset_and_given(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)
    saver.save("t", torch.ones(1))
    saver.save("t", torch.ones(1))
    saver.save("t", torch.ones(1), call_idx=7)
    assert saver.call_counts["t"] == 2
    saver.reset_counts()
    saver.save("t", torch.zeros(1))
    assert saved(tmp_path) == ["t.call0.pt", "t.call1.pt", "t.call7.pt"]
    assert torch.load(tmp_path / "t.call0.pt", weights_only=True).item() == 0


def test_a_saver_that_is_not_enabled_saves_nothing(tmp_path: Path) -> None:
    TensorSaver(tmp_path, enabled=False).save("t", torch.ones(1))
    assert saved(tmp_path) == []


def test_registration_by_class_name_and_exclusion(tmp_path: Path) -> None:
    model = nn.ModuleDict({"layer1": model_of(), "layer10": model_of(), "head": nn.Linear(1, 1)})
    saver = TensorSaver(tmp_path)
    saver.register_modules(model, (nn.Linear,), ["layer1"], ["layer10"])
    assert sorted(saver.module_paths.values()) == ["layer1.0.proj_q", "layer1.1.proj_q"]
    assert saver.get_module_path(model["head"]) == "unknown"
    everything = BaseDebugger(tmp_path)
    everything._register(model, (nn.Module,), None, None)
    assert everything.get_module_path(model) == "root"


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (torch.rand(3, 4, 5), (3,)),
        (torch.rand(4, 3).T, (3,)),
        (torch.arange(6).reshape(2, 3), (2,)),
        (torch.tensor(-2.0), (1,)),
    ],
)
def test_norm_only_of_any_tensor(value: Tensor, shape: tuple[int, ...], tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("n", value, norm_only=True)
    norms = torch.load(tmp_path / "n.call0.pt", weights_only=True)
    expected = value.reshape(shape[0], -1).double().norm(dim=-1)
    assert norms.shape == shape
    assert torch.allclose(norms.double(), expected)


def test_an_unregistered_module_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torchspy"), DebugContext(TensorSaver(tmp_path)):
        spy_save("t", torch.ones(1), nn.Linear(1, 1))
    assert "Module path unknown" in caplog.text
    assert saved(tmp_path) == []


# Faults that are gone


@pytest.mark.parametrize(
    "value", [[torch.ones(1), (torch.ones(2),)], {"a": torch.ones(1)}, 3, "text", None]
)
def test_defect_containers_and_constants_can_be_saved(value: Any, tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("v", value)
    assert saved(tmp_path) == ["v.call0.pt"]


def test_defect_nothing_is_raised_in_the_users_forward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = TensorSaver(tmp_path)
    saver.save("meta", torch.empty(2, device="meta"))
    saver.save("a/b/../c", torch.ones(1))
    saver.save("x" * 500, torch.ones(1))
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*.pt"))
    assert "a%2Fb%2F%2E%2E%2Fc.call0.pt" in saved(tmp_path)


def test_defect_a_view_saves_its_own_elements(tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("v", torch.rand(1000, 1000)[0, :1])
    assert (tmp_path / "v.call0.pt").stat().st_size < 10_000


def test_defect_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    TensorSaver(tmp_path / "run").save("t", torch.zeros(1))
    second = TensorSaver(tmp_path / "run")
    second.save("t", torch.ones(1))
    assert second.output_dir == tmp_path / "run-2"
    assert torch.load(tmp_path / "run" / "t.call0.pt", weights_only=True).item() == 0


def test_defect_threads_started_inside_are_seen(tmp_path: Path) -> None:
    saver, model = TensorSaver(tmp_path), model_of(1)
    saver.register_modules(model)
    with DebugContext(saver):
        thread = threading.Thread(target=lambda: model(torch.rand(1, 4)))
        thread.start()
        thread.join()
    assert saved(tmp_path) == ["0.q.call0.pt"]


def test_defect_compiles_in_one_graph_with_and_without_a_context(tmp_path: Path) -> None:
    torch._dynamo.reset()
    saver, model, x = TensorSaver(tmp_path), model_of(1), torch.rand(2, 4)
    saver.register_modules(model)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = compiled(x)
    with DebugContext(saver, "c"):
        assert torch.equal(compiled(x), expected)
    assert saved(tmp_path) == ["c.0.q.call0.pt"]


def kernels_of(program: Callable[[], Any]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        program()
    return {event.name for event in profiler.events() if event.name.startswith("aten::")}


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def test_defect_the_fused_path_stays_on(tmp_path: Path) -> None:
    model, x = encoder(), torch.rand(1, 3, 8)
    with torch.no_grad():
        before = kernels_of(lambda: model(x))
        tracer = CallTracer(tmp_path)
        tracer.register_hooks(model)
        during = kernels_of(lambda: model(x))
        tracer.remove_hooks()
    assert "aten::_transformer_encoder_layer_fwd" in before
    assert during == before
    assert tracer.get_trace() == ["layers.0", "layers.1", "root"]


def test_defect_a_failing_module_is_in_the_trace(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2))
    tracer.remove_hooks()
    assert tracer.get_trace() == ["0", "1", "root"]


def test_defect_registering_twice_records_once(tmp_path: Path) -> None:
    model = model_of(1)
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    tracer.register_hooks(model)
    model(torch.rand(1, 4))
    tracer.remove_hooks()
    model(torch.rand(1, 4))
    assert tracer.get_trace() == ["0.proj_q", "0", "root"]
    tracer.reset_trace()
    assert tracer.get_trace() == []


def test_defect_the_block_ends_recording(tmp_path: Path) -> None:
    model = model_of(1)
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    with tracer:
        model(torch.rand(1, 4))
    model(torch.rand(1, 4))
    tracer.remove_hooks()
    assert len(tracer.get_trace()) == 3


def test_defect_a_tracer_that_is_dropped_is_gone(tmp_path: Path) -> None:
    model = model_of(1)
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    reference = weakref.ref(tracer)
    del tracer
    gc.collect()
    assert reference() is None
    model(torch.rand(1, 4))
    assert not torch.nn.modules.module._global_forward_hooks


# The graph


PATHS = [*(f"layers.{n}.{m}" for n in range(12) for m in ("conv", "attn")), "head"]


def test_a_trace_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a.b\n\n  c \n")
    assert parse_trace(tmp_path / "t.txt") == ["a.b", "c"]
    with pytest.raises(FileNotFoundError):
        parse_trace(tmp_path / "no.txt")
    (tmp_path / "e.txt").write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        parse_trace(tmp_path / "e.txt")


def test_the_tree_has_names_and_indices(tmp_path: Path) -> None:
    tree = squash_numeric_indices(build_tree(PATHS))
    layers = tree.children["layers"]
    assert set(layers.children) == {"conv", "attn"}
    assert layers.indices == {str(n) for n in range(12)}
    assert layers.first_seen == 0
    assert layers.parents == [tree]
    assert set(prune_leaves(tree).children) == {"layers", "head"}
    save_tree_json(tree, tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["children"][0]["indices"] == [str(n) for n in range(12)]


def test_the_picture_counts_repeated_layers(tmp_path: Path) -> None:
    tree = build_tree(PATHS)
    drawing = apply_graph_render_options(construct_graph(tree, prune_leaves_flag=False), 96, 5, 5)
    assert "×12" in str(drawing.view)
    assert drawing.source.startswith("digraph")
    assert drawing.render(tmp_path / "graph.png") == str(tmp_path / "graph.png")
    assert render_graph(tree, squash_name=True).render(tmp_path / "s.svg").endswith("s.svg")
    assert "<svg" in (tmp_path / "s.svg").read_text()
