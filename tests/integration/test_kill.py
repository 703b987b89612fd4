"""Nothing lost: what was flushed before a SIGKILL is there, and nothing else is made up.

One process imports torch and forks the children that are killed, so that a kill costs a tenth of
a second. Parts and shards are made tiny, so that kills fall into rolling and sealing too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import clew
from clew.store.write.recovery import recover
from tests.same_trace import facts_of

# With the native engine files are written by the same code.
KILLS = 20 if os.environ.get("CLEW_ENGINE") == "native" else 60
SMALL, LARGE = 17, 1500

# Prints a line of JSON for each kill: the folder, and the last step that was acknowledged.
NURSERY = f"""
import json, os, random, signal, struct, sys, time
import torch
import clew
from clew.store.format import shards
from clew.store.write import seal_part, trace_writer

torch.set_num_threads(1)
trace_writer._INLINE = 200

class Net(torch.nn.Module):
    def forward(self, step, trace):
        small = torch.full(({SMALL},), step)
        if trace is not None:
            trace.flush()  # while this call is open
        return small * 2, torch.full(({LARGE},), step) + 0.5

def program(folder, pipe, tiny, steps=1_000_000):
    if tiny:
        trace_writer._ROLL_ROWS, seal_part._GROUP_ROWS, shards._LARGEST_SHARD = 60, 8, 1_100_000
    net = Net()
    with clew.trace(net, values="full", out=folder) as t:
        for step in range(steps):
            net(float(step), t if step % 2 else None)
            t.flush()
            os.write(pipe, struct.pack("<q", step))
            t.step()

root, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
# Everything is imported before the first fork.
program(os.path.join(root, "warm.clew"), os.open(os.devnull, os.O_WRONLY), True, steps=20)
for number in range(kills):
    folder = os.path.join(root, f"{{seed}}-{{number}}.clew")
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        try:
            program(folder, writable, tiny=number % 3 != 0)
        finally:
            os._exit(1)
    os.close(writable)
    # After so many steps, and then somewhere in a step; now and then before the first.
    acknowledged = b""
    while number % 10 and len(acknowledged) < 8 * chance.randrange(2, 40):
        acknowledged += os.read(readable, 8)
    time.sleep(chance.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while piece := os.read(readable, 1 << 16):
        acknowledged += piece
    os.close(readable)
    steps = [step for (step,) in struct.iter_unpack("<q", acknowledged)]
    print(json.dumps([folder, steps[-1] if steps else -1]), flush=True)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Path, int]]]:
    """Traces of killed processes, and the last step each had acknowledged."""
    root = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-c", NURSERY, str(root), str(KILLS), "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == KILLS
    yield [(Path(folder), step) for folder, step in lines]
    shutil.rmtree(root)


def expected(name: str, step: int) -> dict[str, Any]:
    return {
        "aten.mul.Tensor": np.full(SMALL, 2.0 * step, dtype=np.float32),
        "aten.add.Tensor": np.full(LARGE, step + 0.5, dtype=np.float32),
    }.get(name, {})


OPS = ["aten.full.default", "aten.mul.Tensor", "aten.full.default", "aten.add.Tensor"]


def steps_of(trace: clew.Trace) -> dict[int, list[Any]]:
    """The ops of each step that has any."""
    steps: dict[int, list[Any]] = {}
    for op in trace.ops:
        steps.setdefault(op.step, []).append(op)
    return steps


def check_step(step: int, ops: list[Any], whole: bool) -> None:
    """Every op of a step is one that ran, with the values it had."""
    names = [op.name for op in ops]
    assert names == OPS[: len(names)]
    assert len(names) == len(OPS) or not whole
    for op in ops:
        array = op.outputs[""].array()
        wanted = float(step) if op.name == "aten.full.default" else expected(op.name, step)
        assert (array == wanted).all()
        assert op.outputs[""].stats.count == array.size
        assert op.module == ""
        assert "torch.full" in op.source.text or "small" in op.source.text or op.source.text == ""


def test_what_was_flushed_is_there(killed: list[tuple[Path, int]]) -> None:
    recorded = 0
    for folder, last in killed:
        if not (folder / "manifest.json").exists() or not list(folder.glob("rank=*")):
            assert last == -1
            continue
        t = clew.load(folder)
        steps = steps_of(t)
        assert set(range(last + 1)) <= set(steps), folder
        # One more may have been on its way.
        assert set(steps) <= set(range(last + 3)), folder
        for step, ops in steps.items():
            check_step(step, ops, whole=step <= last)
        (gap,) = [g for g in t.coverage if g.what == "the end of the run"]
        if len(t.events):
            assert f"event {t.events[-1].id} of step {t.events[-1].step}" in gap.why
        assert [g for g in t.coverage if g is not gap and "breaks off" not in g.why] == []
        str(t)
        recorded += last
    assert recorded > 3 * KILLS
    assert sum(last >= 0 for _, last in killed) > 0.8 * KILLS


def test_recover_seals_it_and_loses_nothing(killed: list[tuple[Path, int]]) -> None:
    import pandas

    for folder, last in killed[::3]:
        if last < 0:
            continue
        before = facts_of(clew.load(folder))
        done = recover(folder)
        assert done
        assert recover(folder) == []
        after = facts_of(clew.load(folder))
        assert [g for g in after.pop("coverage") if "not closed" not in g] == []
        before.pop("coverage")
        assert after == before
        left = [p.name for p in folder.glob("rank=*/*")]
        assert not [n for n in left if n.endswith((".arrows", ".open", ".tmp", ".damaged"))]
        parts = [
            pandas.read_parquet(p, partitioning=None)
            for p in sorted(folder.glob("rank=*/events-*.parquet"))
        ]
        ids = [int(number) for part in parts for number in part["id"]]
        assert sorted(ids) == [int(e["id"][1]) for e in after["events"]]
        for path in folder.glob("rank=*/shard-*.safetensors"):
            with safe_open(path, "np") as file:
                for key in file.keys():  # noqa: SIM118 - it is no mapping
                    file.get_tensor(key)


@pytest.mark.parametrize("kind", ["*", "events-*", "values-*", "*shard-*"])
def test_a_lost_tail_is_all_that_is_lost(
    kind: str, killed: list[tuple[Path, int]], tmp_path: Path
) -> None:
    cut = 0
    for number, (original, last) in enumerate(killed[1::3]):
        if last < 6:
            continue
        folder = tmp_path / f"{number}.clew"
        shutil.copytree(original, folder)
        largest = max(folder.glob(f"rank=*/{kind}"), key=lambda p: p.stat().st_size)
        size = largest.stat().st_size
        os.truncate(largest, size - size // 20)
        t = clew.load(folder)
        whole = check_readable(t)
        if whole < check_readable(clew.load(original)):
            assert any(gap.what != "the end of the run" for gap in t.coverage), largest
        # The tail of a shard is a value or two, that of a part a few rows.
        assert whole >= last - 6, (largest, whole, last)
        recover(folder)
        assert recover(folder) == []
        assert check_readable(clew.load(folder)) == whole
        shutil.rmtree(folder)
        cut += 1
    assert cut > KILLS // 12


def check_readable(t: clew.Trace) -> int:
    """How many steps are there whole; none says anything that is not so."""
    whole = 0
    for step, ops in steps_of(t).items():
        read = 0
        for op in ops:
            try:
                array = op.outputs[""].array()
            except clew.ClewError:
                continue
            wanted = float(step) if op.name == "aten.full.default" else expected(op.name, step)
            assert (array == wanted).all()
            read += 1
        whole += read == len(OPS)
    return whole


HELD = (
    NURSERY.partition("root, kills")[0]
    + """
import threading

def hold(self, *args, **options):
    threading.Event().wait()

net = Net()
with clew.trace(net, values="full", out=sys.argv[1], limits=clew.Limits(queue=1 << 20)) as t:
    for step in range(13):
        if step == 10:
            t.flush()
            trace_writer.TraceFiles.write_events = hold
        net(float(step), None)
        t.step()
    print("stepped", flush=True)
    threading.Event().wait()
"""
)


def test_a_kill_loses_what_was_queued_and_nothing_that_was_flushed(tmp_path: Path) -> None:
    """A step that was handed to the writer is safe when it is flushed, not before."""
    folder = tmp_path / "run.clew"
    writer = subprocess.Popen(
        [sys.executable, "-c", HELD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "stepped\n"
        writer.kill()
    t = clew.load(folder)
    steps = steps_of(t)
    assert list(steps) == list(range(10))
    for step, ops in steps.items():
        check_step(step, ops, whole=True)
    (gap,) = [g for g in t.coverage if g.what == "the end of the run"]
    assert "of step" in gap.why


def test_a_growing_trace_is_read_up_to_some_event(tmp_path: Path) -> None:
    """A reader in another process than the writer, which rolls and seals all the while."""
    folder = tmp_path / "run.clew"
    program = NURSERY.partition("root, kills")[0] + "program(sys.argv[1], 1, tiny=True)\n"
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.DEVNULL
    )
    try:
        seen: list[int] = []
        # Until it has been read often, and parts were sealed meanwhile.
        while len(seen) < 10 or seen[-1] < seen[0] + 60:
            assert writer.poll() is None
            if not list(folder.glob("rank=*/events-*")):
                time.sleep(0.01)
                continue
            t = clew.load(folder)
            steps = steps_of(t)
            assert sorted(steps) == list(range(len(steps)))
            for step in [*range(min(3, len(steps))), *range(max(len(steps) - 4, 0), len(steps))]:
                check_step(step, steps[step], whole=step < len(steps) - 1)
            damaged = [g for g in t.coverage if "not closed" not in g.why]
            assert [g for g in damaged if "breaks off" not in g.why] == []
            seen.append(len(steps))
        assert seen == sorted(seen)
        assert list(folder.glob("rank=*/events-*.parquet"))
    finally:
        writer.kill()
        writer.wait()


def test_a_trace_that_is_written_is_not_recovered(tmp_path: Path) -> None:
    with clew.trace(out=tmp_path / "run.clew") as t:
        import torch

        torch.ones(1)
        t.flush()
        with pytest.raises(clew.ClewError, match=r"is being written by process \d+"):
            recover(tmp_path / "run.clew")
    assert recover(tmp_path / "run.clew") == []
    assert len(clew.load(tmp_path / "run.clew").events) == 1
