"""Identical content is stored once, in memory and on disk, and nothing else is ever merged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import clew
from clew.store.write import dedup, trace_writer
from clew.store.write.recovery import recover
from tests.same_trace import facts_of, facts_of_any_run

INLINE, LARGE = 100, 40_000


def bytes_on_disk(path: Path) -> int:
    """Bytes of tensors in a saved trace: in shards, and inline in rows."""
    total = 0
    for shard in path.glob("rank=*/shard-*.safetensors"):
        with safe_open(shard, "pt") as file:
            names = [n for n in file.keys() if n.startswith("value.")]  # noqa: SIM118
            total += sum(file.get_tensor(name).nbytes for name in names)
    for part in path.glob("rank=*/values-*.parquet"):
        cells = pq.read_table(part, columns=["data"], partitioning=None)["data"]
        total += sum(len(cell) for cell in cells.to_pylist() if cell is not None)
    return total


def arrays_in_memory(t: clew.Trace) -> list[Any]:
    kept = t._current_run().columns.kept
    return [np.frombuffer(k.payload.data, np.uint8) for k in kept.values() if k.payload is not None]


def bytes_in_memory(t: clew.Trace) -> int:
    places = {array.ctypes.data: array.nbytes for array in arrays_in_memory(t) if array.nbytes}
    return sum(places.values())


class Twins(nn.Module):
    """Two layers whose weights are equal, and the same one once more."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.arange(float(size)))
        self.other = nn.Parameter(torch.arange(float(size)))
        self.tied = self.one

    def forward(self, x: Tensor) -> Tensor:
        return x + self.one.detach() + self.other.detach() + self.tied.detach()


@pytest.mark.parametrize("size", [INLINE, LARGE])
def test_equal_weights_are_stored_once(size: int, tmp_path: Path) -> None:
    model = Twins(size)
    x = torch.full((size,), 0.5)

    def run(**options: Any) -> clew.Trace:
        with clew.trace(model, values="full", **options) as t:
            for _ in range(5):
                # Made anew in each step, with the same content.
                model(x.clone())
                t.step()
        return t

    # x, the weight, and the three sums
    distinct = 5 * 4 * size
    streamed, in_memory = run(out=tmp_path / "run.clew"), run()
    saved = in_memory.save(tmp_path / "saved.clew")
    again = clew.load(saved).save(tmp_path / "again.clew")
    assert bytes_in_memory(in_memory) == distinct
    for path in (tmp_path / "run.clew", saved, again):
        assert bytes_on_disk(path) == distinct
    assert len(arrays_in_memory(in_memory)) > 30
    assert facts_of(clew.load(saved)) == facts_of(in_memory)
    assert facts_of(clew.load(again)) == facts_of(in_memory)
    assert facts_of(clew.load(tmp_path / "run.clew")) == facts_of(streamed)
    assert facts_of_any_run(streamed) == facts_of_any_run(in_memory)


def test_the_same_value_captured_in_many_steps_is_stored_once(tmp_path: Path) -> None:
    layer = nn.Identity()
    x = torch.ones(LARGE)
    with clew.trace(layer, capture=[":in"], out=tmp_path / "run.clew") as t:
        for _ in range(6):
            layer(x)
            t.flush()
            t.step()
    assert bytes_on_disk(tmp_path / "run.clew") == x.nbytes
    events = list(clew.load(tmp_path / "run.clew")[""])
    assert len(events) == 6
    assert all((event.inputs["0"].array() == 1).all() for event in events)


@pytest.mark.usefixtures("python_engine")  # the native one has checksums of its own
@pytest.mark.parametrize("size", [INLINE, LARGE])
def test_other_content_with_the_same_checksum_is_not_merged(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clew.keep import tensor_statistics as statistics
    from clew.store.format.checksums import CHECKSUM, CHECKSUMS

    for module in (statistics, dedup):
        monkeypatch.setattr(module, "checksum", lambda data: 7)
    monkeypatch.setitem(CHECKSUMS, CHECKSUM, lambda data: 7)
    monkeypatch.setattr(statistics.RunningChecksum, "result", lambda running: 7)
    monkeypatch.setattr(statistics, "native", lambda: None)

    def program() -> None:
        for number in range(4):
            torch.full((size,), float(number))
            torch.full((size,), float(number))

    with clew.trace(values="full", out=tmp_path / "run.clew") as streamed:
        program()
    with clew.trace(values="full") as in_memory:
        program()
    saved = clew.load(in_memory.save(tmp_path / "saved.clew"))
    for t in (streamed, in_memory, saved):
        arrays = [v.array() for v in t["op:aten.full.default"].values]
        assert [set(array.tolist()) for array in arrays] == [
            {0.0}, {0.0}, {1.0}, {1.0}, {2.0}, {2.0}, {3.0}, {3.0}
        ]  # fmt: skip


def test_data_on_disk_has_the_checksum_that_reading_expects(tmp_path: Path) -> None:
    """The engine has taken it along with the statistics; nothing computes it again."""
    tensors = [
        torch.randn(300, 40),
        torch.randn(64, 64, 8).permute(2, 0, 1),
        torch.randn(5000, dtype=torch.complex64).conj(),
        torch.randn(4000).bfloat16()[::2],
        torch.randint(0, 9, (4000,)),
        torch.randn(4000) > 0,
        torch.zeros(0, 3),
        torch.tensor(3.0),
    ]
    with clew.trace(values="full", out=tmp_path / "run.clew"):
        for tensor in tensors:
            tensor.clone()
    values = clew.load(tmp_path / "run.clew")["op:aten.clone.default"].values
    for value, tensor in zip(values, tensors, strict=True):
        assert torch.equal(value.tensor(), tensor)


def test_the_same_bytes_of_another_dtype_or_shape_come_back_as_they_were(tmp_path: Path) -> None:
    with clew.trace(values="full") as t:
        x = torch.zeros(LARGE)
        x.view(torch.int32).view(200, 200).clone()
        x.view(50, 800).clone()
    saved = clew.load(t.save(tmp_path / "run.clew"))
    shapes = [(v.tensor().dtype, v.tensor().shape) for v in saved["op:aten.clone.default"].values]
    assert shapes == [(torch.int32, (200, 200)), (torch.float32, (50, 800))]
    assert bytes_on_disk(tmp_path / "run.clew") == 2 * x.nbytes


def test_contents_met_long_ago_are_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "_MOST", 4)
    with clew.trace(values="full", out=tmp_path / "run.clew") as t:
        for number in [0, 0, 1, 2, 3, 4, 5, 0]:
            torch.full((LARGE,), float(number))
    found = [v.array()[0] for v in clew.load(tmp_path / "run.clew")["op:aten.full.default"].values]
    assert found == [0, 0, 1, 2, 3, 4, 5, 0]
    assert bytes_on_disk(tmp_path / "run.clew") == 7 * 4 * LARGE
    assert t.coverage == ()


def test_a_shard_with_shared_content_is_recovered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clew.trace(values="full", out=tmp_path / "run.clew") as t:
        for number in (1, 2, 1, 2):
            torch.full((LARGE,), float(number))
        t.flush()
        shutil.copytree(tmp_path / "run.clew", tmp_path / "cut.clew")
    monkeypatch.setattr("clew.store.read.live_writer.runs_here", lambda writer: False)
    assert "rank=00000/.shard-00000.open: sealed with 2 values" in recover(tmp_path / "cut.clew")
    values = clew.load(tmp_path / "cut.clew")["op:aten.full.default"].values
    assert [v.array()[-1] for v in values] == [1, 2, 1, 2]
    assert bytes_on_disk(tmp_path / "cut.clew") == 2 * 4 * LARGE


def test_content_that_cannot_be_read_back_is_written_again(tmp_path: Path) -> None:
    with clew.trace(values="full", out=tmp_path / "run.clew") as t:
        torch.full((LARGE,), 1.0)
        t.flush()
        (shard,) = tmp_path.glob("run.clew/rank=*/.shard-*")
        with open(shard, "r+b") as file:
            file.seek(-8, 2)
            file.write(bytes(8))
        torch.full((LARGE,), 1.0)
    first, second = clew.load(tmp_path / "run.clew")["op:aten.full.default"].values
    assert (second.array() == 1).all()
    with pytest.raises(clew.ClewError, match="damaged or missing"):
        first.array()


def test_what_waits_to_be_written_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much a step keeps, it is handed over in pieces, not gathered until its end."""
    from clew.keep import budget

    monkeypatch.setattr(budget, "_BATCH_BYTES", 1 << 20)
    sizes = []
    write_values = trace_writer.TraceFiles.write_values

    def watched(self: Any, columns: Any, taken: Any, kept: Any, freed: Any) -> None:
        sizes.append(sum(len(payload.data) for payload in kept.payloads.values()))
        write_values(self, columns, taken, kept, freed)

    monkeypatch.setattr(trace_writer.TraceFiles, "write_values", watched)
    layer = nn.Linear(64, 64)
    for level in ("ops", "modules"):
        sizes.clear()
        with clew.trace(layer, level=level, values="full", out=tmp_path / "run.clew") as t:
            for _ in range(40):
                layer(torch.randn(1000, 64))
        assert sum(sizes) > 9 << 20
        assert max(sizes) < 2 << 20
        assert len(t[""]) == 40
