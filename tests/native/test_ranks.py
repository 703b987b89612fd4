"""Distributed programs over gloo: DDP, DTensor, tensor parallel and FSDP2, on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.engine import needs_engine
from tests.processes import answers

pytestmark = [needs_engine, pytest.mark.slow]

COMMON = """
warnings.simplefilter("ignore")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))

def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

def bits(tensors):
    full = [x.full_tensor() if isinstance(x, DTensor) else x for x in tensors]
    return [x.detach().reshape(-1).view(torch.uint8).tolist() for x in full]

def steps(model, count=2):
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for step in range(count):
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + rank + step)).sum().backward()
        optimizer.step()
    return bits(model.parameters())

def both(make):
    expected = make()
    found = []
    for values in ("meta", "stats", "full"):
        with clew.trace(engine="native", values=values) as t:
            same = make() == expected
        for event in [*t.ops, *t.modules]:
            str([event, event.inputs, event.outputs, event.arguments])
        t.code()
        found.append([same, [gap.why for gap in t.coverage if "Clew failed" in gap.why],
                      len(t.ops) > 5])
    return found
"""

PROGRAMS = {
    "ddp": """
def make():
    return steps(nn.parallel.DistributedDataParallel(block()))
""",
    "fsdp2": """
def make():
    return steps(fully_shard(nn.Sequential(fully_shard(block()), nn.ReLU())))
""",
    "tensor parallel": """
def make():
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return steps(parallelize_module(block(), mesh, plan))
""",
    "dtensor": """
def make():
    rows = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    return bits([rows.mul(2).add_(1), columns.sum(), rows.t() @ columns, columns.relu_()])
""",
    "collectives": """
def make():
    x, parts = torch.full((4,), 1.0 + rank), [torch.empty(4) for _ in range(size)]
    dist.all_reduce(x)
    work = dist.all_gather(parts, x * (rank + 1), async_op=True)
    work.wait()
    dist.broadcast(x, 0)
    return bits([x, *parts])
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_distributed_programs_give_the_same_bits(name: str, tmp_path: Path) -> None:
    found = answers(COMMON + PROGRAMS[name] + "\nanswer = both(make)\n", 2, tmp_path)
    assert found == [[[True, [], True]] * 3] * 2
