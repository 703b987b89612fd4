"""`python -m bench.peers`: Clew beside torchinfo, torchlens, DebugMode and torch.profiler.

Each tool is asked in a process of its own, as some leave traces in torch. Out comes one table: what
it costs, whether the program stays as it is, and what it knows of a crash. torchinfo and torchlens
are left out where they are not installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import clew
from bench.timing import Effort, best_times, seconds_of
from bench.workloads import encoder, gpt2

SMALL, LARGE = Effort(rounds=60, seconds=3.0), Effort(rounds=6, seconds=10.0)

# Records one forward of a model: the model and its input to (what the tool holds, the output).
Record = Callable[[nn.Module, Tensor], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One way to see a model run: how to record, and what it holds as text and as a count."""

    name: str
    record: Record
    text: Callable[[Any], str]
    count: Callable[[Any], str]
    needs: str = ""


def _clew(engine: str, **options: Any) -> Record:
    def record(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
        with clew.trace(model, engine=engine, **options) as trace:
            out = model(x)
        return trace, out

    return record


def _debug_mode(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    from torch.utils._debug_mode import DebugMode

    mode = DebugMode(record_nn_module=True, record_stack_trace=True, record_ids=True)
    with mode:
        out = model(x)
    return mode, out


def _profiler(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    # Without `verbose` the stacks of events are empty.
    verbose = _ExperimentalConfig(verbose=True)
    options = {"record_shapes": True, "with_stack": True, "experimental_config": verbose}
    with profile(activities=[ProfilerActivity.CPU], **options) as recorder:
        out = model(x)
    return recorder, out


def _torchinfo(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    import torchinfo

    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda _module, _args, out: outputs.append(out))
    try:
        mode = "train" if model.training else "eval"
        held = torchinfo.summary(model, input_data=[x], depth=9, verbose=0, mode=mode)
    finally:
        handle.remove()
    return held, outputs[-1]


def _torchlens(model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    import torchlens

    held = torchlens.trace(model, x)
    return held, held[held.output_layers[0]].out


def _torchlens_text(held: Any) -> str:
    return "\n".join(f"{op} {op.code_context}" for op in held)


def _clew_count(trace: clew.Trace) -> str:
    return f"{len(trace.ops)} ops, {len(trace.modules)} calls"


def _code(trace: clew.Trace) -> str:
    return str(trace.code())


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("clew", _clew("native"), _code, _clew_count),
        Tool("clew, python", _clew("python"), _code, _clew_count),
        Tool("clew, stats", _clew("native", values="stats"), _code, _clew_count),
        Tool("torch.profiler", _profiler,
             lambda held: "\n".join(f"{e.name} {e.stack}" for e in held.events()),
             lambda held: f"{len(held.events())} events"),
        Tool("DebugMode", _debug_mode, lambda held: held.debug_string(show_stack_trace=True),
             lambda held: f"{len(held.logs)} events"),
        Tool("torchinfo", _torchinfo, str, lambda held: f"{len(held.summary_list)} modules",
             "torchinfo"),
        Tool("torchlens", _torchlens, _torchlens_text, lambda held: f"{len(held)} ops",
             "torchlens"),
    )
}  # fmt: skip


class Marked(nn.Module):
    """A model with a line to be found, dropout, and a head that does not fit larger pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(8 * 6 * 6, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        gate = torch.sigmoid(z)
        return self.head(z * gate)


MARKED_LINE = Marked.forward.__code__.co_firstlineno + 2


def probe(tool: Tool) -> dict[str, Any]:
    """Measure one tool in this process."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    small = encoder()
    x = torch.randn(2, 16, 64)
    before = _installed(small.model)
    with torch.no_grad():
        found["first"] = seconds_of(lambda: tool.record(small.model, x))
        found["seen"] = tool.count(tool.record(small.model, x)[0])
        found["encoder"] = _ratio(tool, small.model, x, SMALL)
        large, tokens = gpt2(12).model, torch.randint(0, 50257, (1, 64))
        found["gpt2"] = _ratio(tool, large, tokens, LARGE)
    found["left"] = _installed(small.model) == before
    found["fused"] = keeps_fused_path(tool)
    found.update(same_program(tool))
    found.update(crash_words(tool))
    return found


def _ratio(tool: Tool, model: nn.Module, x: Tensor, effort: Effort) -> float:
    times = best_times(
        {"alone": lambda: model(x), "recorded": lambda: tool.record(model, x)}, effort
    )
    return times["recorded"] / times["alone"]


def _installed(model: nn.Module) -> list[Any]:
    """Return what a tool may have replaced: functions of torch, hooks and methods of the model."""
    functions = [torch.relu, torch.add, nn.functional.linear, Tensor.add, nn.Module.__call__]
    own = [(sorted(vars(module)), len(module._forward_hooks)) for module in model.modules()]
    return [*functions, *own]


def keeps_fused_path(tool: Tool) -> bool:
    """Return whether encoder layers still run as the one fused op that they are without a tool."""
    torch.backends.mha.set_fastpath_enabled(True)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    fused, calls = torch._transformer_encoder_layer_fwd, []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return fused(*args)

    torch._transformer_encoder_layer_fwd = counted
    try:
        with torch.no_grad():
            tool.record(model, torch.randn(2, 5, 32))
    finally:
        torch._transformer_encoder_layer_fwd = fused
        torch.backends.mha.set_fastpath_enabled(False)
    return len(calls) >= 2


def same_program(tool: Tool) -> dict[str, bool]:
    """Compare results and random numbers of a model with dropout, and look for its line."""
    model = Marked().train()
    x = torch.randn(2, 3, 8, 8)
    torch.manual_seed(1)
    expected, drawn = model(x), torch.rand(3)
    torch.manual_seed(1)
    held, out = tool.record(model, x)
    same = torch.equal(out, expected) and torch.equal(torch.rand(3), drawn)
    text = tool.text(held)
    marks = (f"peers.py:{MARKED_LINE}", f"peers.py({MARKED_LINE})", f"line: {MARKED_LINE}\n")
    lines = [line.strip() for line in text.splitlines()]
    shown = any(mark in text for mark in marks) or any(
        line.startswith(f"{MARKED_LINE} ") for line in lines
    )
    return {"same": same, "line": shown}


def crash_words(tool: Tool) -> dict[str, bool]:
    """Let the model fail; read what the exception and its notes say."""
    model = Marked().eval()
    try:
        tool.record(model, torch.randn(1, 3, 9, 9))
    except Exception as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return {"layer": "head.0" in said, "sizes": "392" in said, "change": "in_features" in said}
    raise AssertionError("the model should have failed")


ROWS = {
    "seen": "recorded of the encoder",
    "encoder": "encoder of 264 small ops, × untraced",
    "gpt2": "GPT-2, 12 × 768, 64 tokens, × untraced",
    "first": "first use in a process, s",
    "left": "torch and the model are as before",
    "same": "results and random numbers unchanged",
    "fused": "fused kernels stay",
    "line": "has the line of your code for an op",
    "layer": "a crash names the layer",
    "change": "a crash says what would make it fit",
}


def table(found: dict[str, dict[str, Any]]) -> str:
    """Write the table as Markdown: a row for each fact, a column for each tool."""
    lines = ["| | " + " | ".join(found) + " |", "|---|" + "---|" * len(found)]
    for key, what in ROWS.items():
        cells = [_cell(one[key]) for one in found.values()]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(probe(TOOLS[sys.argv[1]])))
        return
    found = {}
    for name, tool in TOOLS.items():
        if tool.needs and importlib.util.find_spec(tool.needs) is None:
            print(f"{name} is left out: pip install {tool.needs}", file=sys.stderr)
            continue
        command = [sys.executable, "-W", "ignore", "-m", "bench.peers", name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stderr}")
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print(table(found))


if __name__ == "__main__":
    main()
