"""Files from strangers: damaged or hostile, they give data or a ClewError, and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clew
from clew.store.format.schema import SCHEMAS
from clew.store.write import trace_writer
from tests.processes import HANG_GUARD


class Net(nn.Module):
    """A call, a direct call, a constant of each kind, in as few events as it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, **options: object) -> Tensor:
        y = self.linear(x) + self.linear.forward(x)
        return y.relu_()


def make_traces(folder: Path) -> None:
    """Small traces of every kind: sealed, live, in many parts, of several ranks, crashed."""
    net, inline = Net(), trace_writer._INLINE

    def program(t: clew.Trace) -> None:
        y = net(torch.ones(1, 2), flag=None, scale=1.5, sizes=[1, 2], mode="x", kind=torch.int8)
        y.sum().backward()
        t.step()
        torch.full((5,), 2)

    with clew.trace(net, values="full") as sealed:
        program(sealed)
    sealed.save(folder / "sealed.clew")
    trace_writer._INLINE = 8
    try:
        with clew.trace(net, values="full", out=folder / "parts.clew") as parts:
            program(parts)
            parts.flush()
            shutil.copytree(folder / "parts.clew", folder / "live.clew")
        with parts:
            torch.ones(3).to_sparse()
    finally:
        trace_writer._INLINE = inline
    os.environ["RANK"] = "1"
    crashed = clew.trace(net, values="stats")
    try:
        with crashed:
            net(torch.ones(1, 3))
    except RuntimeError:
        pass
    finally:
        del os.environ["RANK"]
    shutil.copytree(sealed.save(folder / "ranks.clew"), folder / "x")
    crashed.save(folder / "crashed.clew")
    shutil.rmtree(folder / "x")
    shutil.copytree(folder / "crashed.clew" / "rank=00001", folder / "ranks.clew" / "rank=00001")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "traces"
    folder.mkdir()
    make_traces(folder)
    return folder


def test_a_hundred_mutations(tmp_path: Path) -> None:
    """Of rows, bytes and files, with every reading call; `make fuzz` takes many thousands."""
    words = ["--count", "100", "--jobs", "1", "--kept", str(tmp_path / "kept")]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.mutations", *words],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, outcomes, rounds = done.stdout.splitlines()
    assert rounds == "100 rounds, 0 failures"
    found = json.loads(outcomes)
    # Damage does damage, and leaves what it did not touch.
    assert sum(n for what, n in found.items() if "refused" in what) > 5
    assert sum(n for what, n in found.items() if "data" in what) > 50


FILES = [
    "manifest.json", "rank=00000/events-00000.parquet", "rank=00000/values-00000.parquet",
    "rank=00000/tables-00000.parquet", "rank=00000/.events-00000.footer",
    "rank=00000/events-00001.arrows", "rank=00000/shard-00000.safetensors",
    "rank=00000/.shard-00000.open",
]  # fmt: skip


def read_or_refuse(path: Path) -> bool:
    """Whether a trace could be read; anything but data or a ClewError fails the test."""
    try:
        trace = clew.load(path)
        for event in trace.events:
            for value in event.outputs.values():
                try:
                    value.array()
                except clew.ClewError:
                    pass
        str(trace)
        _ = trace.coverage, trace.steps, trace.modes
    except clew.ClewError:
        return False
    return True


many_examples = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@many_examples
@given(name=st.sampled_from(FILES), data=st.binary(max_size=4000), keep=st.booleans())
def test_any_bytes_in_any_file(
    name: str, data: bytes, keep: bool, traces: Path, tmp_path: Path
) -> None:
    """A file of anything; with `keep`, after the honest beginning of the file it replaces."""
    run = tmp_path / "run.clew"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(traces / "sealed.clew", run)
    honest = (run / name).read_bytes() if keep and (run / name).exists() else b""
    (run / name).write_bytes(honest[: len(honest) // 2] + data)
    read_or_refuse(run)


@many_examples
@given(
    at=st.integers(0, 1 << 30),
    data=st.binary(min_size=1, max_size=12),
    table=st.sampled_from(["events", "values", "tables"]),
)
def test_any_bytes_in_a_footer(
    at: int, data: bytes, table: str, traces: Path, tmp_path: Path
) -> None:
    """Where a mistake ends the process, unless it is noticed before Arrow reads on."""
    run = tmp_path / "run.clew"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(traces / "sealed.clew", run)
    for path in (
        run / f"rank=00000/{table}-00000.parquet",
        run / f"rank=00000/.{table}-00000.footer",
    ):
        raw = bytearray(path.read_bytes())
        length = int.from_bytes(raw[-8:-4], "little")
        start = len(raw) - 8 - length + at % length
        raw[start : start + len(data)] = data[: len(raw) - 8 - start]
        path.write_bytes(raw)
    read_or_refuse(run)


def test_a_pickle_is_not_run(traces: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "trapped"),)

    trap = pickle.dumps(Trap())
    files = ["manifest.json", *(f for f in FILES if "parquet" in f or "arrows" in f), "shard.pt"]
    for name in [*files, "rank=00000/shard-00000.safetensors"]:
        run = tmp_path / "run.clew"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(traces / "parts.clew", run)
        (run / name).write_bytes(trap)
        read_or_refuse(run)
        assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("rank", ["rank=00001", "rank=../..", "rank=0000x", "rank=99999999999"])
def test_paths_lead_nowhere_else(rank: str, traces: Path, tmp_path: Path) -> None:
    """Folders that are links, or named like no rank, and shard numbers that point elsewhere."""
    run = tmp_path / "run.clew"
    shutil.copytree(traces / "sealed.clew", run)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "events-00000.parquet").write_bytes(b"secret")
    name = rank.replace("/", "\\")
    (run / name).symlink_to(tmp_path / "secret")
    assert read_or_refuse(run)
    before = sorted(p.name for p in (tmp_path / "secret").iterdir())
    assert before == ["events-00000.parquet"]


def test_huge_declared_sizes_cost_nothing(traces: Path, tmp_path: Path) -> None:
    """Sizes far beyond the files: said, not allocated."""
    run = tmp_path / "run.clew"
    shutil.copytree(traces / "parts.clew", run)
    part = run / "rank=00000" / "values-00000.parquet"
    rows = pq.ParquetFile(part).read().to_pylist()
    for row in rows:
        if row["length"] is not None:
            row["length"] = 1 << 60
            row["data_shape"] = [1 << 30, 1 << 30]
    part.unlink()
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["values"])
    pq.write_table(table, part, store_schema=False, use_dictionary=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    t = clew.load(run)
    assert any("cut short or missing" in gap.why for gap in t.coverage)
    values = [v for e in t.events for v in e.outputs.values() if v.stats is not None]
    refused = 0
    for value in values:
        try:
            value.array()
        except clew.ClewError:
            refused += 1
    assert refused > 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
