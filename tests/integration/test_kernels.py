"""The same kernels run with and without a trace, as torch's own profiler counts them."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

import clew
from tests import models
from tests.outcomes import least_change, passing, seed_everything, untraced

Tracer = Callable[[nn.Module], AbstractContextManager[Any]]
Program = Callable[[], tuple[nn.Module, Callable[[], Any]]]

# torch's own doing while any dispatch mode is on, Clew's or not: views made by another op, and
# backward formulas that add, put and scatter into a new tensor where they would write in place.
TORCH_SUBSTITUTES = {
    "aten::_reshape_alias", "aten::view", "aten::detach", "aten::add_", "aten::add",
}  # fmt: skip


def profiled(program: Program, tracer: Tracer) -> list[FunctionEvent]:
    seed_everything()
    model, run = program()
    with tracer(model), profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return list(profiler.events())


def kernels(program: Program, tracer: Tracer) -> Counter[str]:
    """How often each ATen op ran; one that a dispatch mode passed on counts once."""
    return Counter(
        event.name
        for event in profiled(program, tracer)
        if event.name.startswith("aten::") and parent_name(event) != "PythonDispatchMode"
    )


def parent_name(event: FunctionEvent) -> str:
    return "" if event.cpu_parent is None else event.cpu_parent.name


def training(name: str) -> Program:
    """Two backward passes into the same gradients, then the optimizer."""

    def program() -> tuple[nn.Module, Callable[[], Any]]:
        model, inputs = models.build(name)
        optimizer = torch.optim.AdamW(model.parameters())

        def run() -> None:
            for _ in range(2):
                model(**inputs)["loss"].backward()
            optimizer.step()

        return model, run

    return program


def fused_encoder(context: Any) -> Program:
    def program() -> tuple[nn.Module, Callable[[], Any]]:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).eval()
        x = torch.randn(2, 5, 16)

        def run() -> None:
            with context():
                model(x)

        return model, run

    return program


def tracing(**options: Any) -> Tracer:
    return lambda model: clew.trace(model, **options)


TRAINED = ["gpt2", "mixtral", "resnet", "albert", "lstm", "convolutions", "functional"]


@pytest.mark.parametrize("name", TRAINED)
def test_tracing_modules_runs_the_very_same_kernels(name: str) -> None:
    plain = kernels(training(name), untraced)
    assert sum(plain.values()) > 300
    assert kernels(training(name), tracing(level="modules")) == plain


@pytest.mark.usefixtures("native_engine")
@pytest.mark.parametrize("values", ["meta", "stats", "full"])
@pytest.mark.parametrize("name", TRAINED)
def test_the_native_engine_runs_the_very_same_kernels(name: str, values: str) -> None:
    assert kernels(training(name), tracing(values=values)) == kernels(training(name), untraced)


@pytest.mark.usefixtures("python_engine")
@pytest.mark.parametrize("name", TRAINED)
def test_tracing_ops_runs_the_kernels_of_a_mode_that_does_nothing(name: str) -> None:
    assert kernels(training(name), tracing()) == kernels(training(name), passing)


@pytest.mark.parametrize("name", ["gpt2", "albert", "lstm", "convolutions", "functional"])
def test_only_views_and_sums_of_gradients_differ_from_no_mode_at_all(name: str) -> None:
    plain, traced = kernels(training(name), untraced), kernels(training(name), tracing())
    changed = set(plain - traced) | set(traced - plain)
    assert changed <= TORCH_SUBSTITUTES
    # As many sums, whether in place or not.
    sums = ("aten::add", "aten::add_")
    assert sum(plain[op] for op in sums) == sum(traced[op] for op in sums)


@pytest.mark.parametrize("values", ["stats", "full"])
@pytest.mark.parametrize("name", ["lstm", "convolutions"])
def test_keeping_values_leaves_out_no_kernel_of_the_program(name: str, values: str) -> None:
    idle = kernels(training(name), least_change())
    traced = kernels(training(name), tracing(values=values))
    assert idle - traced == Counter()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_the_fused_encoder_stays_fused(level: str, context: Any) -> None:
    plain = kernels(fused_encoder(context), untraced)
    assert plain["aten::_transformer_encoder_layer_fwd"] == 2
    assert kernels(fused_encoder(context), tracing(level=level)) == plain


def test_a_hook_of_the_module_itself_would_have_switched_fusion_off() -> None:
    """What the test above guards against does happen."""

    def hooked() -> tuple[nn.Module, Callable[[], Any]]:
        model, run = fused_encoder(torch.no_grad)()
        for module in model.modules():
            module.register_forward_hook(lambda *_: None)
        return model, run

    assert kernels(hooked, untraced)["aten::_transformer_encoder_layer_fwd"] == 0


@pytest.mark.parametrize("options", [{}, {"values": "full"}, {"level": "modules"}])
@pytest.mark.parametrize("name", ["embedding", "convolutions"])
def test_gradients_are_taken_over_not_copied(name: str, options: dict[str, str]) -> None:
    """A reference kept to a fresh gradient would make the engine clone it."""

    def accumulation(tracer: Tracer) -> Counter[str]:
        return Counter(
            event.name
            for event in profiled(training(name), tracer)
            if parent_name(event) == "torch::autograd::AccumulateGrad"
        )

    plain = accumulation(untraced)
    assert plain["aten::detach"] > 0
    assert accumulation(tracing(**options)) == plain


def told_of(run: Callable[[], Any], **options: Any) -> list[str]:
    """Where coverage says that an untraced run would take other kernels."""
    with clew.trace(**options) as t:
        run()
    return [gap.where for gap in t.coverage if gap.what == "the kernels of an untraced run"]


MATRIX = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
VALUES_ALONE: dict[str, Callable[[], Any]] = {
    "svdvals": lambda: torch.linalg.svdvals(MATRIX),
    "cond": lambda: torch.linalg.cond(MATRIX),
    "matrix_norm": lambda: torch.linalg.matrix_norm(MATRIX, "nuc"),
    "norm": lambda: torch.norm(MATRIX, p="nuc"),
    "matrix_rank": lambda: torch.linalg.matrix_rank(MATRIX),
    "eigvalsh": lambda: torch.linalg.eigvalsh(MATRIX),
    "eigvals": lambda: torch.linalg.eigvals(MATRIX),
}
WITH_VECTORS: dict[str, Callable[[], Any]] = {
    "svd": lambda: torch.linalg.svd(MATRIX),
    "svd alone": lambda: torch.linalg.svd(MATRIX, full_matrices=False)[1],
    "eigh": lambda: torch.linalg.eigh(MATRIX).eigenvalues,
    "eig": lambda: torch.linalg.eig(MATRIX)[0],
    "pinv": lambda: torch.linalg.pinv(MATRIX),
    "lowrank": lambda: torch.svd_lowrank(MATRIX, 2),
    "followed": lambda: torch.linalg.svdvals(MATRIX.clone().requires_grad_()),
}


@pytest.mark.usefixtures("python_engine")
@pytest.mark.parametrize("values", ["meta", "full"])
@pytest.mark.parametrize("run", VALUES_ALONE.values(), ids=VALUES_ALONE)
def test_coverage_tells_of_values_that_come_with_vectors(
    run: Callable[[], Any], values: str
) -> None:
    (where,) = told_of(run, values=values)
    assert "svdvals" in where


@pytest.mark.usefixtures("native_engine")
@pytest.mark.parametrize("values", ["meta", "full"])
@pytest.mark.parametrize("run", VALUES_ALONE.values(), ids=VALUES_ALONE)
def test_the_native_engine_computes_values_alone(run: Callable[[], Any], values: str) -> None:
    def program() -> tuple[nn.Module, Callable[[], Any]]:
        return nn.Identity(), run

    assert told_of(run, values=values) == []
    assert kernels(program, tracing(values=values)) == kernels(program, untraced)


@pytest.mark.parametrize("run", WITH_VECTORS.values(), ids=WITH_VECTORS)
def test_coverage_tells_nothing_of_vectors_that_were_asked_for(run: Callable[[], Any]) -> None:
    assert told_of(run) == []


def test_coverage_tells_of_composite_ops_in_inference_mode(engine: str) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)

    def infer() -> None:
        with torch.inference_mode():
            model(model(x))

    assert told_of(infer) == (["torch.inference_mode"] if engine == "python" else [])
    assert told_of(infer, level="modules") == []
    assert told_of(torch.inference_mode()(lambda: x + 1)) == []
    assert told_of(torch.no_grad()(lambda: model(x))) == []


def test_an_op_with_a_kernel_of_its_own_is_not_composite() -> None:
    """`silu_backward` can be taken apart, and never is."""
    x = torch.ones(3, requires_grad=True)
    gradient = torch.ones(3)

    def infer() -> None:
        with torch.inference_mode():
            torch.ops.aten.silu_backward(gradient, x)

    assert told_of(infer) == []


def test_coverage_tells_of_the_backward_of_a_product(engine: str) -> None:
    x = torch.ones(3, requires_grad=True)
    told = told_of(lambda: x.prod().backward())
    assert told == (["backward of prod"] if engine == "python" else [])
    assert told_of(lambda: x.detach().prod()) == []


def test_a_recording_is_not_kept_alive_by_vectors_the_program_keeps() -> None:
    with clew.trace() as t:
        kept = torch.linalg.svd(MATRIX)
    recorder = weakref.ref(t._session.recorder)
    del t
    gc.collect()
    assert recorder() is None
    assert kept is not None
