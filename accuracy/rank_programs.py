"""Programs of several ranks over gloo, each with places where one rank can be made to go wrong.

A line that a fault is planted in carries the comment `# fault: NAME`. Every program trains for a
few steps inside a trace that all ranks write into one folder.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import clew

STEPS = 3
_PATIENCE = timedelta(seconds=600)


class Block(nn.Module):
    """A residual block with dropout and a norm; `scale` is a buffer that nothing writes."""

    scale: Tensor

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)
        self.norm: nn.Module = nn.BatchNorm1d(8) if batch_norm else nn.LayerNorm(8)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.corrupt = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of the sum of the input and what two layers make of it."""
        hidden = self.fc2(torch.relu(self.fc1(x))) * self.scale
        total = x + self.drop(hidden)
        if self.corrupt:
            total.detach().numpy()[0, 0] += 1  # as a processor that computes wrongly would
        return self.norm(total)  # fault: corrupt


def _model(batch_norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(batch_norm), Block(), nn.Linear(8, 4))


class Setting:
    """What a program is told: its rank, how many there are, and what goes wrong on which rank."""

    def __init__(self, rank: int, size: int, fault: str, bad: int, out: str) -> None:
        self.rank, self.size, self.fault, self.out = rank, size, fault, out
        self._bad = bad

    def has(self, fault: str) -> bool:
        """Return whether this rank has this fault."""
        return self.fault == fault and self.rank == self._bad

    def batches(self, shared: bool = False, count: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of this rank, or the same ones on every rank."""
        data = torch.Generator().manual_seed(100 if shared else 100 + self.rank)
        for _ in range(count):
            yield torch.randn(4, 8, generator=data), torch.randn(4, 4, generator=data)

    def trace(self, model: nn.Module) -> clew.Trace:
        """Return the trace of this rank, not yet started."""
        return clew.trace(model, values="fingerprint", out=self.out)  # type: ignore[return-value]


def data_parallel(setting: Setting) -> None:
    """Train with DistributedDataParallel, AdamW and batch norm."""
    model = _model(batch_norm=True)
    ddp = DistributedDataParallel(model, broadcast_buffers=setting.fault != "buffer")
    block: Block = model[0]  # type: ignore[assignment]
    if setting.has("weight"):
        block.fc1.weight.data[0, 0] += 1e-3
    if setting.has("buffer"):
        block.scale[3] = 0.25
    lr = 2e-2 if setting.has("lr") else 1e-2
    decay = 0.1 if setting.has("decay") else 0.01
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=lr, weight_decay=decay)
    if setting.has("hook"):
        optimizer.register_step_pre_hook(_scale_gradients)
    ddp.train(not setting.has("eval"))
    torch.manual_seed(setting.rank)
    stale = block.fc2.weight.detach().clone()
    more = 1 if setting.has("no-sync") else 0
    with setting.trace(ddp) as t:
        for step, (x, y) in enumerate(setting.batches(count=STEPS + more)):
            if setting.has("nan") and step == 1:
                x.numpy()[2, 5] = float("nan")  # as a data set that holds it
            if setting.has("stale") and step == 2:
                block.fc2.weight.data.copy_(stale)  # fault: stale
            optimizer.zero_grad()
            with _maybe(setting, step, ddp):
                F.mse_loss(ddp(x), y).backward()  # fault: no-sync, nan
            if not (setting.has("skip") and step == 1):
                optimizer.step()  # fault: lr, decay, skip
            t.step()


def _scale_gradients(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    for group in optimizer.param_groups:
        group["params"][0].grad.mul_(0.5)  # fault: hook


@contextlib.contextmanager
def _maybe(setting: Setting, step: int, ddp: DistributedDataParallel) -> Iterator[None]:
    """Run a forward and backward pass without reduction, or in bfloat16, if that is the fault."""
    with contextlib.ExitStack() as stack:
        if setting.has("no-sync") and step == 1:
            stack.enter_context(ddp.no_sync())
        if setting.has("autocast"):
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        yield


def accumulating(setting: Setting) -> None:
    """Train with DistributedDataParallel, two passes for each step, the last batch smaller."""
    ddp = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(setting.rank)
    with setting.trace(ddp) as t:
        for step, (x, y) in enumerate(setting.batches()):
            if step == STEPS - 1:
                x, y = x[: 4 - setting.rank % 2], y[: 4 - setting.rank % 2]
            optimizer.zero_grad()
            with ddp.no_sync():
                F.mse_loss(ddp(x), y).backward()
            F.mse_loss(ddp(x * 0.5), y).backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            if setting.rank == 0:
                with torch.no_grad():
                    sum(p.norm() for p in ddp.parameters())
            t.step()


def branching(setting: Setting) -> None:
    """Train with DistributedDataParallel in bfloat16 a model that branches on its data."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x) + self.two(x) * 0.1
            if x.sum().item() > 0:
                x = x.tanh()
            return self.head(x)

    torch.manual_seed(0)
    ddp = DistributedDataParallel(Branching())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    with setting.trace(ddp) as t:
        for x, y in setting.batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(ddp(x).float(), y)
            loss.backward()
            optimizer.step()
            t.step()


def by_hand(setting: Setting) -> None:
    """Train with gradients that the program itself averages."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if setting.has("weight"):
        model[0].fc1.weight.data[0, 0] += 1e-3  # type: ignore[operator, union-attr]
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    if setting.has("momentum"):
        optimizer.state[next(model.parameters())]["momentum_buffer"] += 0.1
    torch.manual_seed(setting.rank)
    with setting.trace(model) as t:
        for x, y in setting.batches():
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()  # fault: forgotten
            for name, parameter in model.named_parameters():
                if setting.fault == "forgotten" and name == "1.fc2.bias":
                    continue
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(setting.size)
                if setting.has("twice") and name == "1.fc1.weight":
                    parameter.grad.div_(setting.size)  # fault: twice
            optimizer.step()  # fault: momentum
            t.step()


def zero_redundancy(setting: Setting) -> None:
    """Train with an optimizer whose states are spread over the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=1e-2)
    torch.manual_seed(setting.rank)
    with setting.trace(ddp) as t:
        for x, y in setting.batches():
            optimizer.zero_grad()
            F.mse_loss(ddp(x), y).backward()
            optimizer.step()
            t.step()


def fully_sharded(setting: Setting) -> None:
    """Train with FSDP2: parameters, gradients and states are shards."""
    model = _model()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    lr = 2e-2 if setting.has("lr") else 1e-2
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    torch.manual_seed(setting.rank)
    with setting.trace(model) as t:
        for step, (x, y) in enumerate(setting.batches()):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            if not (setting.has("skip") and step == 1):
                optimizer.step()  # fault: sharded-lr, sharded-skip
            t.step()


def tensor_parallel(setting: Setting) -> None:
    """Train with layers split over the ranks; all ranks have the same batch."""
    model = _model()
    mesh = init_device_mesh("cpu", (setting.size,))
    _split(model, mesh)
    if setting.has("norm"):
        model[1].norm.weight.data[2] += 1e-3  # type: ignore[operator, union-attr]
    model[0].corrupt = setting.has("corrupt")  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(7 if setting.has("seed") else 5)
    with setting.trace(model) as t:
        for x, y in setting.batches(shared=True):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            t.step()


def _split(model: nn.Sequential, mesh: object) -> None:
    plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
    for layer in model[:2]:
        parallelize_module(layer, mesh, plan)  # type: ignore[arg-type]


def mesh_parallel(setting: Setting) -> None:
    """Train with layers split over pairs of ranks, and pairs that have batches of their own."""
    mesh = init_device_mesh("cpu", (setting.size // 2, 2), mesh_dim_names=("data", "model"))
    model = _model()
    _split(model, mesh["model"])
    group = mesh.get_group("data")
    if setting.has("shard"):
        model[0].fc1.weight.data.to_local()[0, 0] += 1e-3  # type: ignore[operator, union-attr]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    torch.manual_seed(setting.rank // 2)
    data = torch.Generator().manual_seed(100 + setting.rank // 2)
    with setting.trace(model) as t:
        for _ in range(STEPS):
            x, y = torch.randn(4, 8, generator=data), torch.randn(4, 4, generator=data)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                grad = parameter.grad
                local = grad.to_local() if hasattr(grad, "to_local") else grad  # type: ignore
                dist.all_reduce(local, group=group)
                local.div_(setting.size // 2)
            optimizer.step()
            t.step()


def gathered(setting: Setting) -> None:
    """Run a layer whose weight is put together from a part that each rank holds."""
    torch.manual_seed(0)
    whole = torch.randn(8 * setting.size, 8)
    part = whole.chunk(setting.size)[setting.rank].clone()
    model = nn.Linear(8, 8 * setting.size, bias=False)
    with setting.trace(model) as t, torch.no_grad():
        for x, _ in setting.batches():
            parts = [torch.empty_like(part) for _ in range(setting.size)]
            dist.all_gather(parts, part)  # fault: order
            if setting.has("order"):
                parts[0], parts[1] = parts[1], parts[0]
            weight = torch.cat(parts)  # fault: order
            F.linear(x, weight).relu()
            t.step()


def pipeline(setting: Setting) -> None:
    """Run a model in stages, one for each rank, which send on what they compute."""
    torch.manual_seed(setting.rank)
    stage = Block()
    with setting.trace(stage) as t, torch.no_grad():
        for x, _ in setting.batches():
            if setting.rank:
                dist.recv(x, setting.rank - 1)
            y = stage(x)
            if setting.rank < setting.size - 1:
                dist.send(y, setting.rank + 1)
            t.step()


def run_rank(
    program: Callable[[Setting], None], rank: int, size: int, fault: str, bad: int, out: str,
    meeting: str, engine: str,
) -> None:  # fmt: skip
    """Run a program as one rank of several that meet through a file."""
    os.environ["CLEW_ENGINE"] = engine
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=_PATIENCE
    )
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    program(Setting(rank, size, fault, bad, out))
    dist.barrier()
    dist.destroy_process_group()
