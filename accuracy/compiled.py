"""Faults planted into compiled code: eager against `torch.compile` with inductor, compared.

A fault is a pass over inductor's graph that changes one op, a patched decomposition, autocast, or
random numbers that inductor draws otherwise. The line of the eager program that must be among those
named carries the comment `# compiled: NAME`. Compiling takes seconds for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew.traces import Trace

aten = torch.ops.aten
Pass = Callable[[torch.fx.Graph], None]


class Block(nn.Module):
    """A block of a transformer without its attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)  # compiled: autocast
        h = F.gelu(self.up(h))  # compiled: gelu, gelu-break, gelu-alone, gelu-backward
        return x + self.down(h)


class Blocks(nn.Module):
    """Three blocks, perhaps with a break of the graph between them."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.head = nn.Linear(8, 4)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return self.head(x)


class Pictures(nn.Module):
    """Convolutions and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.head = nn.Conv2d(6, 8, 3, stride=2), nn.Linear(72, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = F.relu(self.norm(h))  # compiled: batch-norm
        h = F.relu(self.second(h)).flatten(1)
        return F.log_softmax(self.head(h), -1)  # compiled: log-softmax


class Attention(nn.Module):
    """Attention written out, with dropout."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)  # compiled: softmax
        weights = F.dropout(weights, self.rate)  # compiled: dropout
        h = (weights @ v).transpose(1, 2).reshape(2, 6, 16)
        return self.out(h) + x


def scaled(target: Any, factor: float, which: int = 1) -> Pass:
    """Return a pass that multiplies the result of one op of all graphs that are compiled."""
    left = [which]

    def change(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target is target:
                left[0] -= 1
                if left[0] == 0:
                    _multiply(graph, node, factor)

    return change


def _multiply(graph: torch.fx.Graph, node: torch.fx.Node, factor: float) -> None:
    with graph.inserting_after(node):
        wrong = graph.call_function(aten.mul.Tensor, (node, factor))
    wrong.meta = dict(node.meta)
    node.replace_all_uses_with(wrong, delete_user_cb=lambda user: user is not wrong)


@dataclass(frozen=True)
class Case:
    """A model, what it is given, and what is wrong with its compiled code: nothing if `fault` is
    None and it is neither under autocast nor random.
    """

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    fault: Callable[[], Pass] | None = None
    gradients: bool = True
    autocast: bool = False


FAULTS = [
    Case("gelu", Blocks, (4, 8), lambda: scaled(aten.erf.default, 1.05, 2)),
    Case("gelu-break", lambda: Blocks(breaks=True), (4, 8),
         lambda: scaled(aten.erf.default, 1.05, 2)),
    Case("gelu-alone", Blocks, (4, 8), lambda: scaled(aten.erf.default, 1.05, 2), gradients=False),
    Case("gelu-backward", Blocks, (4, 8), lambda: scaled(aten.exp.default, 1.3, 2)),
    Case("batch-norm", Pictures, (4, 3, 8, 8), lambda: scaled(aten.rsqrt.default, 1.01)),
    Case("log-softmax", Pictures, (4, 3, 8, 8), lambda: scaled(aten.log.default, 1.02)),
    Case("softmax", Attention, (2, 6, 16), lambda: scaled(aten.sum.dim_IntList, 1.02)),
    Case("dropout", lambda: Attention(0.3), (2, 6, 16)),
    Case("autocast", Blocks, (4, 8), autocast=True),
]  # fmt: skip
CLEAN = [
    Case("clean-blocks", Blocks, (4, 8)),
    Case("clean-breaks", lambda: Blocks(breaks=True), (4, 8)),
    Case("clean-alone", Blocks, (4, 8), gradients=False),
    Case("clean-pictures", Pictures, (4, 3, 8, 8)),
    Case("clean-attention", Attention, (2, 6, 16)),
]


def recorded(case: Case) -> tuple[Trace, Trace]:
    """Record a model as it is, and compiled, with the fault in its compiled code."""
    import torch._inductor.config as inductor

    torch.manual_seed(0)
    model, x = case.model(), torch.randn(case.shape)
    start = {name: one.clone() for name, one in model.state_dict().items()}
    eager = _trace(model, model, x, case.gradients)
    torch._dynamo.reset()
    changes = {"fx_graph_cache": False}
    if case.fault is not None:
        changes["post_grad_custom_pre_pass"] = case.fault()  # type: ignore[assignment]
    with inductor.patch(changes):
        run = torch.compile(model)
        context = torch.autocast("cpu", dtype=torch.bfloat16) if case.autocast else nullcontext()
        with context:
            _run(run, x, case.gradients)
            model.load_state_dict(start)
            model.zero_grad()
            compiled = _trace(model, run, x, case.gradients)
    return eager, compiled


def _trace(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor, gradients: bool) -> Trace:
    with clew.trace(model, values="fingerprint") as found:
        _run(run, x, gradients)
    return found


def _run(run: Callable[[Tensor], Tensor], x: Tensor, gradients: bool) -> None:
    torch.manual_seed(1)
    with torch.set_grad_enabled(gradients):
        y = run(x)
        if gradients:
            (y.float() * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()


@dataclass(frozen=True)
class Outcome:
    """What was said of one fault: whether the region and the line are named, and how much else."""

    name: str
    region: bool
    line: bool
    ops: int
    text: str


def outcome(case: Case) -> Outcome:
    """Compare one model with its compiled self, and judge the answer."""
    found = clew.diff(*recorded(case))
    first = found.first
    if first is None or first.a is None or first.b is None:
        return Outcome(case.name, False, False, 0, str(found))
    said = " ".join(first.evidence)
    count = re.search(r"the fault lies in (\d+) eager", said)
    lines = {f"compiled.py:{number}" for number in _marked(case.name)}
    named = {f"compiled.py:{first.a.source.line}"} if first.a.source is not None else set()
    named |= set(re.findall(r"compiled\.py:\d+", said.partition("the fault lies in")[2]))
    ops = 1 if count is None else int(count[1])
    return Outcome(case.name, first.b.name == "compiled", bool(lines & named), ops, str(found))


def _marked(name: str) -> Iterator[int]:
    with open(__file__, encoding="utf-8") as source:
        for number, text in enumerate(source, 1):
            if re.search(rf"# compiled:(.*,)? {re.escape(name)}(,|$)", text.rstrip()):
                yield number


def report(engine: str, verbose: bool = False) -> str:
    """Write hit rates, and below them each miss and each false alarm."""
    found = [outcome(case) for case in FAULTS]
    alarms = [(case.name, clew.diff(*recorded(case))) for case in CLEAN]
    false = [f"  false alarm: {name}: {answer}" for name, answer in alarms if not answer.equal]
    lines = [
        f"compiled, {engine} engine: {len(found)} faults: region {sum(o.region for o in found)}, "
        f"line among those named {sum(o.line for o in found)}, eager ops named for each: "
        f"{', '.join(str(o.ops) for o in found)}; {len(false)} false alarms in {len(CLEAN)} models"
    ]
    for one in found:
        if not (one.region and one.line):
            lines.append(f"  {one.name}: region {one.region}, line {one.line}")
        if verbose:
            lines += [f"    {line}" for line in one.text.splitlines()]
    return "\n".join([*lines, *false])
