"""What the five older tools cost by their own names here, on the workload they were measured on.

`python -m bench.seeds ROUNDS LAYERS` prints times in seconds as JSON, by mode and use. Each use is
attached as its user would attach it and taken away again before anything else is measured, so the
untraced runs between them are untraced. `ORIGINALS` are the ratios of the tools themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.timing import Subject, seconds_of
from clew.compat import ttracker
from clew.compat.tensortrace import ModelTracer, Variable
from clew.compat.torch_code_tracing import TracingMode
from clew.compat.torchspy import CallTracer, DebugContext, TensorSaver, spy_save
from clew.compat.tracy_nn import Tracer

MODES = {
    "eval": "encoder 6 × 256, fused",
    "eval_slow": "encoder 6 × 256, unfused",
    "train": "encoder 6 × 256, forward + backward",
}


def _of(*ratios: float) -> dict[str, float]:
    return dict(zip(MODES, ratios, strict=True))


# What each use cost with the tool itself, as a ratio against the untraced run.
ORIGINALS: dict[str, tuple[str, dict[str, float]]] = {
    "spy_call": ("torchspy CallTracer", _of(1.30, 1.01, 1.03)),
    "spy_noop": ("torchspy spy_save, no context", _of(1.01, 1.06, 1.04)),
    "spy_save": ("torchspy spy_save of each layer", _of(1.22, 1.22, 1.03)),
    "tt_out": ("TensorTracer forward", _of(1.19, 1.19, 1.04)),
    "tt_layers": ("TensorTracer layers.*", _of(1.63, 1.42, 1.09)),
    "tt_locals": ("TensorTracer layers.*.forward.x", _of(1.53, 1.37, 1.06)),
    # In training the original raises in the program.
    "tt_leaves": ("TensorTracer layers.*.*", {"eval": 3.36, "eval_slow": 2.12}),
    "tracy": ("Tracy NN Tracer.trace", _of(2.92, 7.58, 2.36)),
    "tct_quiet": ("TracingMode(quiet=True)", _of(1.30, 10.87, 8.64)),
    "tct_print": ("TracingMode()", _of(1.36, 11.16, 8.22)),
    "ttk_auto": ("Tensor Tracker auto_diff, each layer", _of(1.53, 1.39, 1.11)),
    "ttk_var": ("Tensor Tracker var_tracker('x'), each layer", _of(1.79, 2.28, 1.36)),
    "ttk_var_root": ("Tensor Tracker var_tracker('output')", _of(2.37, 2.24, 1.32)),
    "ttk_hooks": ("Tensor Tracker hooks on all modules", _of(2.00, 1.74, 1.13)),
}
# Runs for each time something is attached, and seconds for them; the first one is not counted.
RUNS = range(3, 13)
SECONDS = 0.2

Attached = contextlib.AbstractContextManager[Subject]
Use = Callable[[nn.Module, Subject, str], Attached]


@contextlib.contextmanager
def _untraced(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
    yield run


@contextlib.contextmanager
def _calls(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
    tracer = CallTracer(folder)
    tracer.register_hooks(model)
    yield run
    tracer.remove_hooks()


def _saved(inside: bool) -> Use:
    """`spy_save` after each layer, in a context or outside any."""

    @contextlib.contextmanager
    def use(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
        def saving(layer: nn.Module) -> Any:
            forward = layer.forward

            def saved(*args: Any, **kwargs: Any) -> Any:
                out = forward(*args, **kwargs)
                spy_save("out", out, layer)
                return out

            return saved

        saver = TensorSaver(folder)
        saver.register_modules(model)
        with _forwards(model, saving), DebugContext(saver) if inside else contextlib.nullcontext():
            yield run

    return use


def _variable(path: str) -> Use:
    @contextlib.contextmanager
    def use(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
        variable = Variable([path], mode="train" if model.training else "eval")
        with ModelTracer(model, variable):
            yield run

    return use


def _printed(mode: Callable[[nn.Module], contextlib.AbstractContextManager[Any]]) -> Use:
    """A block of its own for each run, its text thrown away."""

    @contextlib.contextmanager
    def use(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
        def traced() -> Any:
            with mode(model) as entered:
                run()
            return entered

        with _no_output():
            yield traced

    return use


def _decorated(decorator: Callable[[Any], Any], root: bool = False) -> Use:
    @contextlib.contextmanager
    def use(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
        with _logs(folder), _forwards(model, lambda layer: decorator(layer.forward), root):
            yield run

    return use


@contextlib.contextmanager
def _hooks(model: nn.Module, run: Subject, folder: str) -> Iterator[Subject]:
    def check_hook(module: nn.Module, inputs: Any, output: Any) -> None:
        ttracker._log_change(f"{module.__class__.__name__}", "input", inputs, "", 0)
        ttracker._log_change(f"{module.__class__.__name__}", "output", output, "", 0)

    hooks = [module.register_forward_hook(check_hook) for module in model.modules()]
    with _logs(folder):
        yield run
    for hook in hooks:
        hook.remove()


USES: dict[str, Use] = {
    "untraced": _untraced,
    "spy_call": _calls,
    "spy_noop": _saved(inside=False),
    "spy_save": _saved(inside=True),
    "tt_out": _variable("forward"),
    "tt_layers": _variable("layers.*"),
    "tt_locals": _variable("layers.*.forward.x"),
    "tt_leaves": _variable("layers.*.*"),
    "tracy": _printed(lambda model: Tracer("encoder").trace(model)),
    "tct_quiet": _printed(lambda model: TracingMode(quiet=True)),
    "tct_print": _printed(lambda model: TracingMode()),
    "ttk_auto": _decorated(ttracker.auto_diff),
    "ttk_var": _decorated(ttracker.var_tracker("x")),
    "ttk_var_root": _decorated(ttracker.var_tracker("output"), root=True),
    "ttk_hooks": _hooks,
}


@contextlib.contextmanager
def _forwards(
    model: nn.Module, wrapped: Callable[[nn.Module], Any], root: bool = False
) -> Iterator[None]:
    """The `forward` of each layer, or of the model, replaced for a while."""
    modules: list[Any] = [model] if root else list(model.get_submodule("layers").children())
    for module in modules:
        module.forward = wrapped(module)
    yield
    for module in modules:
        del module.forward


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def _logs(folder: str) -> Iterator[None]:
    """Tensor Tracker's text thrown away, its log files in a folder that will be."""
    before = Path.cwd()
    os.chdir(folder)
    with _no_output():
        yield
    os.chdir(before)
    ttracker.h4logger().close()


def _encoder(mode: str, layers: int) -> tuple[nn.Module, Subject]:
    torch.backends.mha.set_fastpath_enabled(mode != "eval_slow")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model.train(mode == "train")
    x = torch.randn(4, 64, 256)

    # Other data in each run, as in a program: what is remembered by content helps within one only.
    def forward() -> object:
        with torch.no_grad():
            return model(x.add_(1e-3))

    def train() -> object:
        model.zero_grad()
        loss = model(x.add_(1e-3)).sum()
        loss.backward()
        return loss

    return model, train if mode == "train" else forward


def measure(rounds: int, layers: int, uses: dict[str, Use] = USES) -> dict[str, dict[str, float]]:
    """The shortest CPU time of a run, by mode and use; all uses in turn in each round."""
    best: dict[str, dict[str, float]] = {}
    for mode in MODES:
        model, run = _encoder(mode, layers)
        times = best[mode] = dict.fromkeys(uses, float("inf"))
        for _ in range(rounds):
            for name, use in uses.items():
                with tempfile.TemporaryDirectory() as folder, use(model, run, folder) as subject:
                    seconds = [seconds_of(subject)]
                    while len(seconds) < RUNS.start or (
                        len(seconds) < RUNS.stop and sum(seconds) < SECONDS
                    ):
                        seconds.append(seconds_of(subject))
                times[name] = min(times[name], *seconds[1:])
    return best


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[3:]
    uses = {name: use for name, use in USES.items() if not wanted or name in ("untraced", *wanted)}
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), uses)))


if __name__ == "__main__":
    main()
