"""What is wrong with torchspy and not here: one test for each fault that was seen in it."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import re
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

import clew
from clew.analysis.graph.call_list import read_calls
from clew.compat.torchspy import (
    CallTracer,
    DebugContext,
    TensorSaver,
    get_debug_context,
    spy_save,
)  # fmt: skip
from clew.compat.torchspy.trace_graph import build_tree, construct_graph, parse_trace
from tests.compat.test_torchspy import model_of, saved
from tests.processes import HANG_GUARD, answers


def kernels_of(program: Callable[[], Any]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        program()
    return {event.name for event in profiler.events() if event.name.startswith("aten::")}


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


class Twice(nn.Module):
    """Runs a block in each of its branches, and one of them again."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left = nn.Sequential(left)
        self.right = nn.Sequential(right)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(self.right(self.left(x)))


def traced(model: nn.Module, x: Tensor, folder: Path) -> list[str]:
    tracer = CallTracer(folder)
    tracer.register_hooks(model)
    try:
        model(x)
    finally:
        tracer.remove_hooks()
    return tracer.get_trace()


# The list of calls


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


def test_defect_calls_are_nested_again_when_a_module_runs_twice(tmp_path: Path) -> None:
    lines = traced(Twice(nn.ReLU(), nn.Tanh()), torch.ones(1), tmp_path)
    assert lines == ["left.0", "left", "right.0", "right", "left.0", "left", "root"]
    calls = read_calls(lines)
    paths = [row.path for row in calls.columns.modules]
    nested = [
        (paths[subject], None if parent < 0 else paths[calls.columns.subject[parent]])
        for subject, parent in zip(calls.columns.subject, calls.columns.parent, strict=True)
    ]
    assert nested == [
        ("", None), ("left", ""), ("left.0", "left"), ("right", ""), ("right.0", "right"),
        ("left", ""), ("left.0", "left"),
    ]  # fmt: skip


def test_defect_calls_have_a_number_a_parent_a_time_and_a_thread(tmp_path: Path) -> None:
    model = Twice(nn.ReLU(), nn.Tanh())
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    with clew.trace(model, level="modules") as trace:
        model(torch.ones(1))
    tracer.remove_hooks()
    assert len(trace.modules) == len(tracer.get_trace()) == 7
    first, second = trace["left"]
    assert (first.call, second.call) == (0, 1)
    assert first.start < first.start + first.duration <= second.start
    assert first.parent_id == second.parent_id == trace[""].one.id
    assert first.thread == "MainThread"


def test_defect_a_shared_module_has_the_name_it_is_called_by(tmp_path: Path) -> None:
    shared = nn.Sequential(nn.Linear(2, 2))
    lines = traced(Twice(shared, shared), torch.ones(1, 2), tmp_path)
    assert lines == [
        "left.0.0", "left.0", "left", "right.0.0", "right.0", "right", "left.0.0", "left.0",
        "left", "root",
    ]  # fmt: skip


def test_defect_a_shared_module_saves_under_the_name_it_is_called_by(tmp_path: Path) -> None:
    [shared] = model_of(1)
    saver, model = TensorSaver(tmp_path), Twice(shared, shared)
    saver.register_modules(model, target_classes=(type(shared),))
    with DebugContext(saver):
        model(torch.ones(1, 4))
    assert saved(tmp_path) == ["left.0.q.call0.pt", "left.0.q.call1.pt", "right.0.q.call0.pt"]


def test_defect_a_failing_module_and_those_around_it_are_listed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(3, 3)))
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2))
    tracer.remove_hooks()
    assert tracer.get_trace() == ["0", "1.0", "1", "root"]


def test_defect_registering_twice_records_once(tmp_path: Path) -> None:
    model = model_of(1)
    tracer = CallTracer(tmp_path)
    tracer.register_hooks(model)
    tracer.register_hooks(model)
    model(torch.rand(1, 4))
    tracer.remove_hooks()
    model(torch.rand(1, 4))
    assert tracer.get_trace() == ["0.proj_q", "0", "root"]


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


def test_defect_nothing_is_put_into_the_model(tmp_path: Path) -> None:
    model = model_of(1)
    before = [dict(vars(module)) for module in model.modules()]
    traced(model, torch.rand(1, 4), tmp_path)
    assert [dict(vars(module)) for module in model.modules()] == before


# Saving


@pytest.mark.parametrize(
    "value", [[torch.ones(1), (torch.ones(2),)], {"a": torch.ones(1)}, 3, "text", None]
)
def test_defect_containers_and_constants_can_be_saved(value: Any, tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("v", value)
    assert saved(tmp_path) == ["v.call0.pt"]


def test_defect_norms_of_containers_can_be_saved(tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("v", {"a": (torch.full((2, 4), 1.0),)}, norm_only=True)
    [norms] = torch.load(tmp_path / "v.call0.pt", weights_only=True)["a"]
    assert norms.tolist() == [2, 2]


def test_defect_nothing_is_raised_in_the_users_forward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = TensorSaver(tmp_path)
    saver.save("meta", torch.empty(2, device="meta"))
    assert "Could not save meta.call0.pt: NotImplementedError" in caplog.text
    saver.save("a/b/../c", torch.ones(1))
    saver.save("層" * 500, torch.ones(1))
    with DebugContext(saver):
        spy_save("odd", torch.ones(1), "no module")  # type: ignore[arg-type]
    assert all(path.parent == tmp_path for path in tmp_path.rglob("*.pt"))
    assert "a%2Fb%2F..%2Fc.call0.pt" in saved(tmp_path)
    assert len(saved(tmp_path)) == 3


def test_defect_a_view_saves_its_own_elements(tmp_path: Path) -> None:
    TensorSaver(tmp_path).save("v", torch.rand(1000, 1000)[0, :1])
    assert (tmp_path / "v.call0.pt").stat().st_size < 10_000


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True).item()


def test_defect_an_earlier_run_is_not_overwritten_and_the_name_has_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for run in range(3):
        saver = TensorSaver(tmp_path / "run")
        assert saver.output_dir == tmp_path / "run"
        saver.save("t", torch.tensor(run))
    for run, name in ((2, "run"), (0, "run-earlier"), (1, "run-earlier-2")):
        assert loaded(tmp_path / name / "t.call0.pt") == run
    assert f"moved to {tmp_path / 'run-earlier-2'}" in caplog.text


def test_defect_two_savers_of_one_folder_do_not_overwrite_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = TensorSaver(tmp_path / "t"), TensorSaver(tmp_path / "t")
    for number in range(3):
        one.save("t", torch.tensor(number))
        other.save("t", torch.tensor(number + 10))
    for name, first in (("t", 10), ("t-earlier", 0)):
        found = [loaded(path) for path in sorted((tmp_path / name).iterdir())]
        assert found == [first, first + 1, first + 2]
    assert len(caplog.records) == 1


def test_a_saver_for_each_step_saves_to_one_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(1)
    for step in range(3):
        saver = TensorSaver(tmp_path / "d")
        saver.register_modules(model)
        with DebugContext(saver, prefix=f"step{step}"):
            model(torch.rand(1, 4))
    assert saved(tmp_path / "d") == [f"step{step}.0.q.call0.pt" for step in range(3)]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert caplog.records == []


MAKING = """
from clew.compat.torchspy import CallTracer, TensorSaver
saver, tracer, model = TensorSaver("tensors"), CallTracer("tensors"), nn.ReLU()
"""
# Ranks that nothing tells of before `init_process_group`.
LATER = f"""
dist.destroy_process_group()
del os.environ["RANK"], os.environ["WORLD_SIZE"]
{MAKING}
meet = "file://" + os.path.abspath("meet")
dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size)
"""
WORKING = """
tracer.register_hooks(model)
for _ in range(rank + 1):
    model(torch.ones(1))
saver.save("t", torch.tensor(rank))
dist.barrier()
answer = [str(saver.output_dir), str(tracer.save_trace())]
"""


@pytest.mark.parametrize("making", [MAKING, LATER], ids=["known", "known later"])
def test_defect_ranks_do_not_overwrite_each_other(making: str, tmp_path: Path) -> None:
    folders = ["tensors/rank0", "tensors/rank1"]
    found = answers(making + WORKING, 2, tmp_path)
    assert found == [[folder, f"{folder}/call_trace.txt"] for folder in folders]
    for rank, folder in enumerate(folders):
        assert loaded(tmp_path / folder / "t.call0.pt") == rank
        assert (tmp_path / folder / "call_trace.txt").read_text().split() == ["root"] * (rank + 1)


def test_defect_threads_started_inside_are_seen(tmp_path: Path) -> None:
    saver, model = TensorSaver(tmp_path), model_of(1)
    saver.register_modules(model)
    with DebugContext(saver):
        thread = threading.Thread(target=lambda: model(torch.rand(1, 4)))
        thread.start()
        thread.join()
    assert saved(tmp_path) == ["0.q.call0.pt"]


def test_defect_a_thread_saves_where_its_own_context_says(tmp_path: Path) -> None:
    both_open, all_saved = threading.Barrier(3), threading.Barrier(3)

    def work(name: str) -> None:
        with DebugContext(TensorSaver(tmp_path / name)) as context:
            both_open.wait(HANG_GUARD)
            assert get_debug_context() is context
            spy_save(name, torch.ones(1))
            all_saved.wait(HANG_GUARD)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    both_open.wait(HANG_GUARD)
    # A thread without one saves to whichever was opened last.
    spy_save("without", torch.ones(1))
    all_saved.wait(HANG_GUARD)
    for thread in threads:
        thread.join()
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b")
    assert (first[0], second[0]) == ("manual.a.call0.pt", "manual.b.call0.pt")
    assert first[1:] + second[1:] == ["manual.without.call0.pt"]


def test_defect_a_task_saves_where_its_own_context_says(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)

    async def work(name: str) -> None:
        with DebugContext(saver, name) as context:
            await asyncio.sleep(0)  # the other task enters its context, too
            spy_save("t", torch.ones(1))
            await asyncio.to_thread(spy_save, "u", torch.ones(1))
            assert get_debug_context() is context

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    assert saved(tmp_path) == [f"{n}.manual.{t}.call0.pt" for n in "ab" for t in "tu"]


def test_a_context_that_is_entered_twice_saves_once(tmp_path: Path) -> None:
    context, other = DebugContext(TensorSaver(tmp_path), "p"), DebugContext(TensorSaver(tmp_path))
    with context:
        with other, context:
            spy_save("inner", torch.ones(1))
            assert get_debug_context() is context
        assert get_debug_context() is context
        spy_save("outer", torch.ones(1))
    assert get_debug_context() is None
    spy_save("after", torch.ones(1))
    assert saved(tmp_path) == ["p.manual.inner.call0.pt", "p.manual.outer.call0.pt"]


def test_contexts_may_end_in_any_order(tmp_path: Path) -> None:
    first, second = (DebugContext(TensorSaver(tmp_path), name) for name in "ab")
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert get_debug_context() is second
    spy_save("t", torch.ones(1))
    thread = threading.Thread(target=second.__exit__)
    thread.start()
    thread.join()
    assert get_debug_context() is None
    assert saved(tmp_path) == ["b.manual.t.call0.pt"]


def replica_of(module: nn.Module) -> nn.Module:
    """What nn.DataParallel runs on another device."""
    replica: nn.Module = module._replicate_for_data_parallel()  # type: ignore[operator]
    replica._modules = {name: replica_of(child) for name, child in module.named_children()}
    replica._parameters = dict(module._parameters)
    return replica


def test_defect_replicas_have_the_names_of_their_modules(tmp_path: Path) -> None:
    saver, tracer, model = TensorSaver(tmp_path), CallTracer(tmp_path), model_of(1)
    saver.register_modules(model)
    tracer.register_hooks(model)
    with DebugContext(saver):
        replica_of(model)(torch.rand(1, 4))
    tracer.remove_hooks()
    assert saved(tmp_path) == ["0.q.call0.pt"]
    assert tracer.get_trace() == ["0.proj_q", "0", "root"]


def test_defect_a_copy_is_told_how_to_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver, model = TensorSaver(tmp_path), model_of(1)
    saver.register_modules(model)
    copied = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING, "torchspy"), DebugContext(saver):
        copied(torch.rand(1, 4))
        assert "a copy of one it met" in caplog.text
        saver.register_modules(copied)
        copied(torch.rand(1, 4))
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


def test_defect_a_tensor_of_no_module_is_manual_in_compiled_code_too(tmp_path: Path) -> None:
    class Free(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            spy_save("t", x)
            return x + 1

    torch._dynamo.reset()
    saver = TensorSaver(tmp_path)
    compiled = torch.compile(Free(), fullgraph=True, backend="eager")
    with DebugContext(saver):
        compiled(torch.ones(1))
    assert saved(tmp_path) == ["manual.t.call0.pt"]


def test_defect_long_names_do_not_overwrite_each_other(tmp_path: Path) -> None:
    saver = TensorSaver(tmp_path)
    for end in (0, 1):
        saver.save("n" * 300 + str(end), torch.tensor(end))
    assert sorted(map(loaded, tmp_path.iterdir())) == [0, 1]
    assert list(saver.call_counts) == ["n" * 300 + "0", "n" * 300 + "1"]


def test_defect_what_is_no_module_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DebugContext(TensorSaver(tmp_path)):
        spy_save("t", torch.ones(1), 3)  # type: ignore[arg-type]
    assert "Module path unknown for int" in caplog.text
    assert saved(tmp_path) == []


def test_defect_saved_tensors_can_be_sampled_limited_and_read(tmp_path: Path) -> None:
    model = model_of(1)
    few = clew.schedule(every=2)
    with clew.trace(model, schedule=few, out=tmp_path / "run.clew") as trace:
        for step in range(4):
            model(torch.full((1, 4), float(step)))
            trace.step()
    series = clew.load(tmp_path / "run.clew").series("0.q")
    assert len(series.values) == 2
    assert series.stack().shape == (2, 1, 4)


# The graph


def labels(paths: list[str], **options: Any) -> str:
    options = {"prune_leaves_flag": False, **options}
    return construct_graph(build_tree(paths), **options).source


def test_defect_a_name_with_a_space_is_one_name(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("blocks.first one.fc\n\tblocks.fc \n")
    assert parse_trace(tmp_path / "t.txt") == ["blocks.first one.fc", "blocks.fc"]


def test_defect_the_command_prints_where_symbols_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(f"layers.{n}.fc" for n in range(3)))
    command = [
        sys.executable, "-m", "clew.compat.torchspy.trace_to_graph", "--trace-file",
        str(tmp_path / "t.txt"), "--out", str(tmp_path / "g.dot"), "--verbose",
    ]  # fmt: skip
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=ascii_only, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "layers.0 ... 2  x3" in done.stdout


def test_defect_layers_that_differ_are_not_merged() -> None:
    text = labels(["layers.0.conv", "layers.0", "layers.1.attn", "layers.1", "root"])
    assert "×" not in text
    assert '"layers.0"' in text
    assert '"layers.1"' in text


def test_defect_pruning_leaves_more_than_one_box() -> None:
    names = ("self_attn", "linear1", "norm1")
    paths = [f"layers.{n}.{name}" for n in range(12) for name in names]
    # Without its leaves it would be one box, with or without the model's own.
    for lines, top in ((paths, []), ([*paths, "root"], ["(root)"])):
        found = re.findall(r'label="([^"]*)" style', construct_graph(build_tree(lines)).source)
        assert found == [*top, "layers.0 … 11 ×12", *names]
    found = labels([*paths, "head.out", "root"], prune_leaves_flag=True)
    assert re.findall(r'label="([^"]*)" style', found) == ["(root)", "layers.0 … 11 ×12", "head"]


def test_defect_numbered_modules_at_the_top_are_squashed() -> None:
    text = labels([line for n in range(4) for line in (f"{n}.conv", f"{n}")])
    assert "×4" in text
    assert text.count("conv") == 1


def test_defect_a_module_named_root_stays() -> None:
    assert '"root"' in labels(["a.root", "a", "b"])


def test_defect_squashing_by_name_makes_no_loops() -> None:
    text = labels(["block.0.block", "block.1.block", "x.block"], squash_name=True)
    edges = [line.strip(" ;").split(" -> ") for line in text.splitlines() if " -> " in line]
    assert len(edges) == 2
    assert all(above != below for above, below in edges)


def test_defect_hooks_that_are_never_removed_say_nothing_as_python_ends(tmp_path: Path) -> None:
    program = f"""
import torch
from torch import nn
from clew.compat.torchspy import CallTracer
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
model, tracer = Model(), CallTracer({str(tmp_path)!r})
tracer.register_hooks(model)
model(torch.ones(1, 2))
print(tracer.get_trace())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['layers.0', 'layers.1', 'root']\n"
