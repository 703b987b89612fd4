"""How long `clew.ranks` takes for very many ranks, and how much memory.

Run by hand as `python -m bench.ranks <ranks> <events> <steps with a fault, or 0>`; prints one JSON
object. Two real ranks train with DistributedDataParallel and write their folders. The others are
copies of these in which every tensor that the two ranks do not share has a digest of its own, as if
each rank had batches of its own; one rank has another weight from a step on. So the files are those
of the store's own writer. `write_ranks` is what a smaller test uses too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import clew

WEIGHT = "0.weight"
# Run in a process of its own, without torch, so that the memory is that of the comparison.
_MEASURE = """
import json, resource, sys, time
import clew
start, work = time.perf_counter(), time.process_time()
found = clew.ranks(sys.argv[1])
print(json.dumps({
    "says": str(found).splitlines()[:2],
    "seconds": round(time.perf_counter() - start, 1),
    "processor seconds": round(time.process_time() - work, 1),
    "MB at most": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
}))
"""
_DIGEST = "digest"


def train(rank: int, steps: int, out: str, meeting: str) -> None:
    """Train as one of two ranks that meet through a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
    ddp = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(rank)
    with clew.trace(ddp, values="stats", out=out) as t:
        for _ in range(steps):
            x, y = torch.randn(4, 8, generator=data), torch.randn(4, 2, generator=data)
            optimizer.zero_grad()
            F.mse_loss(ddp(x), y).backward()
            optimizer.step()
            t.step()
    dist.barrier()
    dist.destroy_process_group()


def record(folder: Path, steps: int) -> Path:
    """Record two ranks for some steps; return their trace."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.ranks"])
    out = folder / "run.clew"
    ranks = [context.Process(target=train, args=(rank, steps, str(out), str(folder / "meeting")))
             for rank in range(2)]  # fmt: skip
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert not any(rank.exitcode for rank in ranks)
    return out


def write_ranks(trace: Path, count: int, wrong: int, step: int, name: str = WEIGHT) -> None:
    """Add copies of two recorded ranks; that of rank `wrong` has another weight from a step on."""
    digests = [_digests(trace / f"rank={rank:05d}") for rank in range(2)]
    own = {value for value, digest in digests[0].items() if digests[1].get(value) != digest}
    begin = _first_event(trace / "rank=00000", step)
    for rank in range(2, count):
        source, target = trace / "rank=00000", trace / f"rank={rank:05d}"
        target.mkdir()
        for file in sorted(source.iterdir()):
            if file.name.startswith("values-"):
                changed = _patched(pq.read_table(file, partitioning=None), rank, own,
                                   begin if rank == wrong else None, name)  # fmt: skip
                pq.write_table(changed, target / file.name, compression="zstd")
            elif file.name.startswith("events-"):
                rows = pq.read_table(file, partitioning=None)
                at = rows.column_names.index("rank")
                numbers = pa.array([rank] * len(rows), pa.int32())
                pq.write_table(rows.set_column(at, rows.schema.field(at), numbers),
                               target / file.name, compression="zstd")  # fmt: skip
            elif not file.name.startswith("."):
                shutil.copyfile(file, target / file.name)
    facts = json.loads((trace / "manifest.json").read_text())
    (trace / "manifest.json").write_text(json.dumps({**facts, "world_size": count}))


def _digests(folder: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for file in sorted(folder.glob("values-*.parquet")):
        rows = pq.read_table(file, columns=["value", _DIGEST], partitioning=None).to_pydict()
        found.update({v: d for v, d in zip(rows["value"], rows[_DIGEST], strict=True) if d})
    return found


def _first_event(folder: Path, step: int) -> int:
    parts = [pq.read_table(file, columns=["id", "step"], partitioning=None)
             for file in sorted(folder.glob("events-*.parquet"))]  # fmt: skip
    rows = pa.concat_tables(parts)
    return int(rows["id"].to_numpy()[rows["step"].to_numpy() >= step].min())


def _patched(rows: pa.Table, rank: int, own: set[int], begin: int | None, name: str) -> pa.Table:
    """Give tensors that are a rank's own other digests, and the weight from an event on."""
    digests = rows[_DIGEST].to_pylist()
    names, producers = rows["name"].to_pylist(), rows["producer"].to_pylist()
    for at, value in enumerate(rows["value"].to_pylist()):
        is_wrong = begin is not None and names[at] == name and (producers[at] or -1) >= begin
        if digests[at] and (value in own or is_wrong):
            other = int(digests[at], 16) ^ (rank * 0x9E3779B97F4A7C15) & (1 << 63) - 1
            digests[at] = f"{other:016x}"
    at = rows.column_names.index(_DIGEST)
    return rows.set_column(at, rows.schema.field(at), pa.array(digests, pa.string()))


def main(ranks: int, events: int, step: int) -> None:
    """Record, copy, and measure in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        per_step = len(clew.load(record(folder, 4)).only(rank=0, step=2))
        shutil.rmtree(folder / "run.clew")
        (folder / "meeting").unlink(missing_ok=True)
        trace = record(folder, -(-events // per_step) + 1)
        count = len(clew.load(trace).only(rank=0))
        wrong = 617 % ranks if step else -1
        start = time.perf_counter()
        write_ranks(trace, ranks, wrong, step)
        size = sum(file.stat().st_size for file in trace.rglob("*") if file.is_file())
        facts = {
            "ranks": ranks, "events each": count, "GB": round(size / 1e9, 2), "wrong": wrong,
            "seconds to write": round(time.perf_counter() - start),
        }  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(trace)], capture_output=True, check=True, text=True
        )
        print(json.dumps({**facts, **json.loads(ran.stdout)}, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
