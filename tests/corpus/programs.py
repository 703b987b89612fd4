"""The programs whose traces are the corpus: one function a trace, given the folder to write to.

Line numbers here are part of the committed traces: after any change run `make corpus`. A program
with `@ranks(...)` runs once for each of those ranks, each in a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed
from torch.utils.data import DataLoader, Dataset

import clew
from clew import Callbacks, callbacks

Program = Callable[[Path], None]
INF = float("inf")


def ranks(numbers: Sequence[int], size: int) -> Callable[[Program], Program]:
    """Say that a program runs as these ranks of a job of `size` processes."""

    def mark(program: Program) -> Program:
        vars(program).update(ranks=tuple(numbers), size=size)
        return program

    return mark


def this_rank() -> int:
    return int(os.environ["RANK"])


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


# Steps and ranks


def steps(out: Path) -> None:
    """Train, evaluate, train again: five steps with Adam."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats", out=out) as t:
        for mode in ("train", "train", "eval", "train", "eval"):
            model.train(mode == "train")
            loss = F.mse_loss(model(torch.randn(3, 4)), torch.ones(3, 2))
            if model.training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            t.step()


@ranks([0, 1], size=2)
def equal_ranks(out: Path) -> None:
    """Two ranks train one model with DistributedDataParallel."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats", out=out) as t:
        for step in range(2):
            loss = model(torch.full((3, 4), 10.0 * this_rank() + step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            t.step()
    dist.barrier()
    dist.destroy_process_group()


@ranks([0, 1, 2], size=3)
def unequal_ranks(out: Path) -> None:
    """Three ranks: one clips its gradients, one makes a step more and has a smaller batch."""
    model, rank = mlp(), this_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats", out=out) as t:
        for step in range(3 if rank == 2 else 2):
            x = torch.full((2 if rank == 2 else 3, 4), float(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if rank == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            t.step()


@ranks([0, 2], size=3)
def missing_rank(out: Path) -> None:
    """A job of three ranks, of which rank 1 left nothing."""
    model = mlp()
    with clew.trace(model, out=out) as t:
        for step in range(2):
            model(torch.full((3, 4), 10.0 * this_rank() + step)).sum().backward()
            t.step()


@ranks([0, 1], size=2)
def gathered(out: Path) -> None:
    """Two ranks whose values come together on rank 0, each its own way."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(mlp())
    stacked = Callbacks(before_gather=callbacks.stack_padded, after_gather=callbacks.stack_padded)
    follow = {
        "0:in": stacked,
        "1": Callbacks(save="mean"),
        "2": Callbacks(save=lambda value: value.norm(), every=2),
        "2.weight:grad": Callbacks(after_gather=lambda values: callbacks.stack(values).mean(0)),
    }
    with clew.trace(model, capture=["0"], callbacks=follow, gather=2, out=out) as t:
        for step in range(4):
            model(torch.full((3, 4), 10.0 * this_rank() + step)).sum().backward()
            t.step()
    dist.barrier()
    dist.destroy_process_group()


class Unfinished(nn.Module):
    """Its second call ends the process; what came before has been flushed."""

    def __init__(self, trace: clew.Trace | None = None) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.trace: Any = trace

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.trace.flush()
        if x[0, 0] > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return h.relu()


def killed(out: Path) -> None:
    """SIGKILL inside the forward of the third step."""
    model = Unfinished()
    with clew.trace(model, values="full", out=out) as t:
        model.trace = t
        for step in range(10):
            model(torch.full((2, 4), float(step)))
            t.step()
            t.flush()


# Backward


class Cube(torch.autograd.Function):
    """x³, with a backward written in torch ops that can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        square = x * x
        return grad * square.mul(3)


class Cubic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.fc(x)).sum()


def autograd_function(out: Path) -> None:
    """Once, then a gradient penalty, which goes back through the backward pass."""
    model = Cubic()
    with clew.trace(model, values="stats", out=out) as t:
        model(torch.ones(2, 3)).backward()
        t.step()
        x = torch.ones(2, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
        slope.square().sum().backward()
        t.step()


class Checkpointed(nn.Module):
    """Two layers computed again in the backward pass, the inner one for a second time."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.outer = nn.Linear(3, 3)
        self.inner = nn.Linear(3, 3)
        self.reentrant = reentrant

    def block(self, x: Tensor) -> Tensor:
        h = self.outer(x).tanh()
        return checkpointed(self.inner, h, use_reentrant=self.reentrant)

    def forward(self, x: Tensor) -> Tensor:
        return checkpointed(self.block, x, use_reentrant=self.reentrant)


def square_of_sine(x: Tensor) -> Tensor:
    return x.sin().square()


def checkpoint(out: Path) -> None:
    """Nested checkpoints of both kinds, then a plain function in no module."""
    models = {"hooks": Checkpointed(reentrant=False), "reentrant": Checkpointed(reentrant=True)}
    with clew.trace(models, values="stats", out=out) as t:
        for model in models.values():
            model(torch.ones(2, 3, requires_grad=True)).sum().backward()
            t.step()
        for reentrant in (False, True):
            x = torch.ones(2, 3, requires_grad=True)
            checkpointed(square_of_sine, x, use_reentrant=reentrant).sum().backward()


def gradients(out: Path) -> None:
    """Every role of a tensor that can be captured besides inputs and outputs."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    roles = [
        "0:grad", "3:grad_in", "0.weight:grad", "0.weight:param", "1.running_mean:buffer",
        "3.weight:update", "3.weight:state.exp_avg",
    ]  # fmt: skip
    with clew.trace(model, capture=roles, out=out) as t:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            t.step()


# Calls that are not plain


def fused(out: Path) -> None:
    """torch's one kernel for a whole encoder layer; then a padded batch, as a nested tensor."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False, False, False], [False, False, True]])
    with clew.trace(model, values="stats") as t:
        with torch.no_grad():
            model(torch.randn(2, 3, 8))
        with torch.inference_mode():
            model(torch.randn(2, 3, 8), src_key_padding_mask=padding)
    t.save(out)


class Shared(nn.Module):
    """One layer with two names, called four times, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.embed(text)
        for _ in range(3):
            x = self.first(x).relu()
        return self.head(self.second(x))


def shared(out: Path) -> None:
    """A forward and backward pass; parameters count once, names all answer."""
    model = Shared()
    with clew.trace(model, capture=["second", "embed.weight:grad", "head.weight:grad"]) as t:
        model(torch.tensor([[1, 2, 3]])).sum().backward()
    t.save(out)


class Turns(nn.Module):
    """Two calls on two threads: the second begins and ends while the first is open."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.left_waits, self.right_is_done = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if threading.current_thread().name == "left":
            self.left_waits.set()
            self.right_is_done.wait()
        return h.relu()


def threads(out: Path) -> None:
    """Module calls that overlap in time, an op of a thread outside any, a backward pass."""
    model = Turns()
    losses: dict[str, Tensor] = {}

    def work(name: str) -> None:
        if name == "right":
            model.left_waits.wait()
        losses[name] = model(torch.ones(2, 3)).sum()
        model.right_is_done.set()

    with clew.trace(model, out=out):
        both = [threading.Thread(target=work, name=n, args=(n,)) for n in ("left", "right")]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        (losses["left"] + losses["right"]).backward()


class Chain(nn.Module):
    """Modules inside modules, each calling the next; the innermost one calls itself."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.m = Chain(inside - 1) if inside else None

    def forward(self, x: Tensor, again: int) -> Tensor:
        if self.m is not None:
            return self.m(x, again)
        return self(x, again - 1) if again else x + 1


def deep(out: Path) -> None:
    """320 calls, each inside the one before: 160 modules, of which the last calls itself."""
    sys.setrecursionlimit(20_000)
    model = Chain(159)
    with clew.trace(model, out=out):
        model(torch.ones(2), 160)


class PartlyCompiled(nn.Module):
    """Blocks compiled in three ways, after an eager layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.code = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), fullgraph=True)
        self.graph = torch.compile(nn.Linear(8, 8), backend="aot_eager")
        self.late = torch.compile(nn.Linear(8, 2), backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.late(self.graph(self.code(self.before(x))))


def compiled(out: Path) -> None:
    """Two blocks were compiled before, one is at its first call inside the trace."""
    model = PartlyCompiled()
    model.graph(model.code(model.before(torch.ones(3, 4)))).sum().backward()
    with clew.trace(model, compiled="opaque", out=out):
        model(torch.ones(3, 4)).sum().backward()


def decode(index: int) -> Tensor:
    video = np.full((2, 3), index, np.uint8)
    video = video.astype(np.float32) / 255
    clew.tap("mean", float(video.mean()))
    return torch.from_numpy(video)


class Videos(Dataset[Tensor]):
    """Four samples, made by the workers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return decode(index)


def workers(out: Path) -> None:
    """Two worker processes whose variables and taps come back with the batches."""
    model = nn.Linear(3, 1)
    loader = DataLoader(Videos(), batch_size=1, num_workers=2, multiprocessing_context="fork")
    with clew.trace(model, capture=["programs.py:decode.video"], out=out) as t:
        for batch in loader:
            model(batch)
            t.step()


# Failures and numbers that are not finite


class Projection(nn.Module):
    """A layer followed by one whose width does not fit a wide input."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x[:, :4])
        return self.down(torch.cat([h, x[:, 4:]], dim=1))


def crash(out: Path) -> None:
    """The third batch has a column too many."""
    model = Projection()
    try:
        with clew.trace(model, values="stats", out=out) as t:
            for columns in (4, 4, 5):
                model(torch.ones(2, columns)).sum().backward()
                t.step()
    except RuntimeError:
        pass


class LogOfDifference(nn.Module):
    """The logarithm of what may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.fc(x) - 1.5)


class BrokenNorm(nn.Module):
    """A weight and a running mean that are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        with torch.no_grad():
            self.fc.weight[0, 0] = float("nan")
            self.norm.running_mean[1] = INF

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(x))


def nan_op(out: Path) -> None:
    """An op makes NaN from finite numbers in the second step; the weight has it in the third."""
    model = LogOfDifference()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with clew.trace(model, values="stats", out=out) as t:
        for low in (2.0, 1.0, 2.0):
            optimizer.zero_grad()
            model(torch.tensor([[low, 3.0]])).square().sum().backward()
            optimizer.step()
            t.step()


def nan_batch(out: Path) -> None:
    """The second batch comes with NaN and Inf."""
    model = mlp()
    with clew.trace(model, values="stats", out=out) as t:
        for row in ([1.0, 2.0, 3.0, 4.0], [1.0, float("nan"), 3.0, INF]):
            model(torch.tensor([row])).sum().backward()
            t.step()


def nan_weight(out: Path) -> None:
    """A parameter and a buffer were broken before the trace began."""
    model = BrokenNorm().eval()
    with clew.trace(model, values="stats", out=out):
        model(torch.ones(3, 2))


def nan_modules(out: Path) -> None:
    """The same three by module calls alone."""
    models = {"made": LogOfDifference(), "batch": nn.Linear(2, 2), "weight": BrokenNorm().eval()}
    with clew.trace(models, level="modules", values="stats", out=out):
        models["made"](torch.tensor([[1.0, 3.0]]))
        models["batch"](torch.tensor([[1.0, float("nan")]]))
        models["weight"](torch.ones(3, 2))


class Buckets(nn.Module):
    """Relative positions in buckets, as in T5: exact ones near, logarithmic ones far away."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(8, 1)

    def forward(self, length: int) -> Tensor:
        position = torch.arange(length)
        distance = (position[:, None] - position[None]).clamp(min=0)
        far = 4 + torch.log(distance.float() / 4) / torch.log(torch.tensor(4.0)) * 4
        far = torch.clamp(far, max=7).long()
        return self.bias(torch.where(distance < 4, distance, far)).squeeze(-1)


class Masked(nn.Module):
    """Attention weights under one mask, written in one of three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = Buckets()

    def forward(self, x: Tensor, how: str) -> Tensor:
        scores = x @ x.mT + self.buckets(x.shape[1])
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if how == "masked_fill":
            scores = scores.masked_fill(later, -INF)
        elif how == "full":
            scores = scores + torch.full(later.shape, -INF).triu(1)
        else:
            scores = torch.where(later, -INF, scores)
        return scores.softmax(-1) @ x


def masks(out: Path) -> None:
    """Infinities that are meant: softmax makes zeros of them, or they are chosen away."""
    model = Masked()
    with clew.trace(model, values="stats", out=out) as t:
        for how in ("masked_fill", "full", "where"):
            model(torch.randn(1, 6, 4), how).sum().backward()
            t.step()


# Values


class Tapped(nn.Module):
    """Locals, an attribute, a dictionary, taps with and without a reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        parts = {"gate": self.fc(x).sigmoid(), "value": x}
        h = clew.tap("gated", parts["gate"] * parts["value"], self)
        h[:, 0] = 0
        clew.tap("size", h, self, reduce="norm")
        return h


def running_total(tensors: list[Tensor]) -> float:
    total = 0.0
    for tensor in tensors:
        total = total + tensor.sum().item()
    return total


def taps(out: Path) -> None:
    """Named values of every kind, in stretches of the run that have names too."""
    model = Tapped()
    wanted = ["forward.x", "forward.h", "forward.parts.gate", "forward.self.calls", "forward"]
    with clew.trace(model, capture=wanted, watch=["total"], out=out) as t:
        for step in range(2):
            with clew.prefix(f"step{step}"):
                y = model(torch.full((2, 3), float(step + 1)))
                with clew.prefix("sum"):
                    clew.tap("total", running_total([y, y]))
            t.step()


def full(out: Path) -> None:
    """Data of many dtypes, of views and of tensors written in place."""
    with clew.trace(values="full", out=out):
        x = torch.arange(6.0).view(2, 3)
        column = x[:, 1]
        column.mul_(10)
        x.t()[0] = -1
        x.to(torch.bfloat16) + 1
        x.to(torch.int64).cumsum(0)
        (x > 0).logical_not()
        torch.complex(x, -x).conj() * 2
        torch.eye(3).to_sparse() * 2
        torch.empty(0, 3).relu()
        x.sum() * 2
        x.to(torch.float64).sqrt_()
        torch.arange(2100.0).view(2, 1050).transpose(0, 1).add(1)


def unnamed(out: Path) -> None:
    """No model given: roots by class, a forward past the hooks, errors the program handles."""
    with clew.trace(values="stats", out=out) as t:
        x = torch.ones(2, 3) * 2
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        x = second(first(x).relu()) + first(x)
        nn.Sequential(nn.Linear(3, 2), nn.Tanh())(x)
        second.forward(x)
        t.step()
        for wrong in (torch.ones(2, 5), torch.ones(3)[None, None, None, :2]):
            try:
                first(wrong)
            except RuntimeError:
                x = x - 1
        try:
            torch.ones(2) + torch.ones(3)
        except RuntimeError:
            x.sum()


class Doubling(nn.Module):
    """Calls a function that another module calls too."""

    def forward(self, x: Tensor) -> Tensor:
        return doubled(x)


def doubled(x: Tensor) -> Tensor:
    twice = x * 2
    return twice


def two_callers(out: Path) -> None:
    """A variable of a function that two modules call, and its data."""
    model = nn.Sequential(Doubling(), nn.Tanh(), Doubling())
    with clew.trace(model, capture=["programs.py:doubled.twice"], out=out) as t:
        for step in range(2):
            model(torch.full((2, 3), float(step + 1)))
            t.step()


class Attention(nn.Module):
    """Calls composites by themselves and in one another, and one that writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.project(x).chunk(2, dim=-1)
        scores = torch.einsum("btd,bsd->bts", query, key)
        weights = F.dropout(scores.softmax(-1), 0.5, self.training)
        return torch.matmul(weights, x).add_(x)


def native(out: Path) -> None:
    """Composites, a backward, a thread and an op that raised, by the native engine."""
    model = nn.Sequential(Attention(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Ops with a line in this file, on another thread.
    worker = threading.Thread(target=square_of_sine, args=[torch.ones(2)], name="worker")
    capture = ["op:aten._softmax.default", "0.project"]
    with clew.trace(model, engine="native", values="stats", capture=capture, out=out) as t:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 4)).square().mean().backward()
            optimizer.step()
            t.step()
        worker.start()
        worker.join()
        try:
            F.linear(torch.ones(2, 3), torch.ones(2, 4))
        except RuntimeError:
            torch.ones(2).sum()


PROGRAMS: tuple[Program, ...] = (
    compiled, gathered, equal_ranks, unequal_ranks, missing_rank, steps, killed,
    autograd_function, checkpoint, gradients, fused, shared, threads, deep, workers, crash,
    nan_op, nan_batch, nan_weight, nan_modules, masks, taps, full, unnamed, two_callers, native,
)  # fmt: skip
