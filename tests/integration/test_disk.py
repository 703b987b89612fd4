"""A trace on disk is the trace: saved, streamed, loaded, it is the same bit by bit."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew
from clew.store.format import live_stream, shards
from clew.store.write import trace_writer
from tests.same_trace import facts_of, facts_of_any_run

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool,
]  # fmt: skip

LINEAR = nn.Linear(3, 3)

Program = Callable[[clew.Trace], None]


@dataclasses.dataclass
class Cache:
    keys: Tensor
    length: int


class Arguments(nn.Module):
    """Hands everything through."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


def arguments(t: clew.Trace) -> None:
    tensor = torch.ones(2)
    Arguments()(
        None, True, False, 0, 1, -1, 2**63 - 1, -(2**63), 2**64, 10**400, 0.0, -0.0, 1.0,
        float("nan"), float("inf"), -float("inf"), 5e-324, 1e308, 0.1, 1 + 2j,
        complex(float("nan"), -0.0), "text", "", "×\n\t\0 é 漢字 🧵 \ud800", b"\x00\xff",
        torch.float32, torch.bfloat16, torch.device("cpu"), torch.strided,
        torch.channels_last, object(), np.zeros(3), {1, 2}, 3 * [tensor],
        [1, 2, 3], [2**63, -(2**70)], [1, True], [1, 2.0], [], {}, (), [[], [[]], {}],
        {"a": {"b": [tensor, {"c": (1, None)}]}, 3: tensor, "x.y": 1},
        Cache(tensor, 7), nested=[{"deep": [(tensor,)]}], flag=None,
    )  # fmt: skip
    Arguments()(1, 2, 3)
    Arguments()()


def dtypes(t: clew.Trace) -> None:
    for dtype in DTYPES:
        size = dtype.itemsize
        torch.manual_seed(3)
        for count in (0, 1, 7, 5000):
            # Every bit pattern there may be: NaNs with payloads, infinities, signed zeros.
            raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count * size,)).byte()
            raw.view(dtype).detach()
        torch.zeros((), dtype=torch.uint8).expand(size).contiguous().view(dtype)[0].detach()
    torch.zeros((2, 0, 3)).detach()
    torch.tensor([0.0, -0.0, float("nan"), -float("nan")]).detach()
    torch.tensor([0x7FC00001, 0xFFC12345 - 2**32, 0x7F800001], dtype=torch.int32).view(
        torch.float32
    ).detach()


def views(t: clew.Trace) -> None:
    base = torch.arange(240000.0).reshape(400, 600)
    base[::7, 5:9].detach()
    base.t()[3].detach()
    base[:, 0].detach()
    base.expand(3, 400, 600)[:, ::200, ::300].detach()
    base.conj().detach()
    torch.ones(3, dtype=torch.complex64).conj().detach()
    torch.ones(3, dtype=torch.complex64).conj().imag.detach()
    base.mul_(2)
    base[1] = -1
    base.sum()


def other_layouts(t: clew.Trace) -> None:
    dense = torch.tensor([[0.0, 1.5], [-2.0, 0.0]])
    dense.to_sparse().detach()
    dense.to_sparse_csr().detach()
    dense.to_sparse_csc().detach()
    torch.quantize_per_tensor(dense, 0.1, 10, torch.quint8).detach()
    torch.quantize_per_channel(
        dense, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
    ).detach()
    torch.empty(3, device="meta").detach()


def training() -> Program:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 5, 16)

    def run(t: clew.Trace) -> None:
        for _ in range(3):
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()

    return run


def recomputed() -> Program:
    block = nn.Sequential(copy.deepcopy(LINEAR), nn.Tanh(), nn.ReLU(inplace=True))
    x = torch.ones(2, 3, requires_grad=True)

    def run(t: clew.Trace) -> None:
        checkpoint(block, x, use_reentrant=False).sum().backward()

    return run


def direct_calls(t: clew.Trace) -> None:
    LINEAR.forward(torch.ones(1, 3))
    nn.Sequential(LINEAR, nn.ReLU()).forward(torch.ones(1, 3))


class Writes(nn.Module):
    """Writes to its input while it is being called, and asks for what was recorded so far."""

    def __init__(self, t: clew.Trace) -> None:
        super().__init__()
        self.t = t
        self.inner = LINEAR

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        y = self.inner(x)
        self.t.flush()
        assert len(self.t.events)
        x.mul_(2)
        return self.inner(x + y)


def read_while_open(t: clew.Trace) -> None:
    model = Writes(t)
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(2, 3)).relu_()


# Each makes a program anew: what is made inside a trace lies in memory that is not filled yet.
PROGRAMS: dict[str, Callable[[], Program]] = {
    "arguments": lambda: arguments,
    "dtypes": lambda: dtypes,
    "views": lambda: views,
    "other_layouts": lambda: other_layouts,
    "training": training,
    "recomputed": recomputed,
    "direct_calls": lambda: direct_calls,
    "read_while_open": lambda: read_while_open,
}


def record(program: Program, **options: Any) -> clew.Trace:
    torch.manual_seed(0)
    with clew.trace(**options) as t:
        program(t)
    return t


@pytest.mark.parametrize("values", ["meta", "stats", "full"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_saved_trace_is_the_trace(name: str, values: str, tmp_path: Path) -> None:
    t = record(PROGRAMS[name](), values=values)
    assert t.save(tmp_path / "run.clew") == tmp_path / "run.clew"
    loaded = clew.load(tmp_path / "run.clew")
    assert facts_of(loaded) == facts_of(t)
    assert str(loaded) == str(t)
    assert str(loaded.code()) == str(t.code())
    assert loaded.env == t.env


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_streamed_trace_is_the_trace(name: str, tmp_path: Path) -> None:
    in_memory = record(PROGRAMS[name](), values="full")
    streamed = record(PROGRAMS[name](), values="full", out=tmp_path / "run.clew")
    loaded = clew.load(tmp_path / "run.clew")
    assert facts_of(loaded) == facts_of(streamed)
    assert facts_of_any_run(loaded) == facts_of_any_run(in_memory)
    assert not list(tmp_path.glob("**/*.arrows")) + list(tmp_path.glob("**/.shard*"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_parts_and_shards_change_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "_ROLL_ROWS", 5)
    monkeypatch.setattr(trace_writer, "_INLINE", 16)
    monkeypatch.setattr(live_stream, "MOST_ROWS", 2)
    monkeypatch.setattr(shards, "_LARGEST_SHARD", 100_000)

    def often() -> Program:
        program = PROGRAMS[name]()

        def run(t: clew.Trace) -> None:
            t.flush()
            program(t)
            t.flush()

        return run

    streamed = record(often(), values="full", out=tmp_path / "run.clew")
    again = streamed.save(tmp_path / "again.clew")
    for path in (tmp_path / "run.clew", again):
        # Each event once over all parts, though calls were written while they were open too.
        parts = sorted(path.glob("rank=*/events-*.parquet"))
        ids = [i for p in parts for i in pq.read_table(p, partitioning=None)["id"].to_pylist()]
        assert sorted(ids) == [event.id for event in streamed.events]
    assert facts_of(clew.load(again)) == facts_of(streamed)
    monkeypatch.undo()
    assert facts_of(clew.load(again)) == facts_of(streamed)
    assert facts_of_any_run(streamed) == facts_of_any_run(record(often(), values="full"))


def test_values_come_back_as_tensors_bit_by_bit(tmp_path: Path) -> None:
    made = {}
    with clew.trace(values="full", out=tmp_path / "run.clew") as t:
        for dtype in DTYPES:
            raw = torch.arange(64).repeat(40 * 8).to(torch.uint8) * 4 + 3
            if dtype is torch.bool:
                raw = raw % 2
            made[dtype] = raw.view(dtype).clone()
    clones = list(clew.load(t.path)["op:aten.clone.default"])
    assert len(clones) == len(DTYPES)
    for dtype, event in zip(DTYPES, clones, strict=True):
        tensor = event.outputs[""].tensor()
        assert tensor.dtype is dtype
        assert torch.equal(tensor.view(torch.uint8), made[dtype].view(torch.uint8))
        array = event.outputs[""].array()
        wide = torch.complex64 if dtype is torch.complex32 else torch.float32
        exact = dtype if hasattr(np, str(dtype).removeprefix("torch.")) else wide
        expected = made[dtype].to(exact).numpy() if exact is not dtype else made[dtype].numpy()
        np.testing.assert_array_equal(array, expected)


def test_a_crash_is_kept(tmp_path: Path) -> None:
    def crashing(t: clew.Trace) -> None:
        torch.ones(2, 3) @ torch.ones(2, 3)

    traces = []
    for out in (None, tmp_path / "run.clew"):
        t = clew.trace(values="stats", out=out)
        with pytest.raises(RuntimeError), t:
            crashing(t)
        traces.append(t)
    saved = clew.load(traces[0].save(tmp_path / "saved.clew"))
    assert saved.crash is not None
    assert "mat1 and mat2" in saved.crash.exception
    assert facts_of(saved) == facts_of(traces[0])
    loaded = clew.load(tmp_path / "run.clew")
    assert facts_of(loaded)["crash"] == facts_of(saved)["crash"]
    assert loaded.crash is not None
    assert loaded.crash.event is not None
    assert loaded.crash.event.source is not None
    assert "torch.ones(2, 3) @" in loaded.crash.event.source.text


def test_a_gap_is_kept(tmp_path: Path) -> None:
    t = record(other_layouts, values="full", out=tmp_path / "run.clew")
    loaded = clew.load(t.path)
    assert any("meta" in str(gap) or "no elements" in str(gap) for gap in loaded.coverage)
    assert loaded.coverage == t.coverage


def test_a_trace_that_goes_on_is_one_trace(tmp_path: Path) -> None:
    tracer = clew.trace(values="full", out=tmp_path / "run.clew")
    for _ in range(3):
        with tracer:
            torch.ones(3000) + 1
    loaded = clew.load(tmp_path / "run.clew")
    assert [e.name for e in loaded.ops] == 3 * ["aten.ones.default", "aten.add.Tensor"]
    assert facts_of(loaded) == facts_of(tracer)
    assert loaded.coverage == ()
    assert len(list(tmp_path.glob("run.clew/rank=00000/events-*.parquet"))) == 3


def test_names_that_are_not_unicode_do_not_stop_the_writing(tmp_path: Path) -> None:
    with clew.trace({"a\udcff": LINEAR}, out=tmp_path / "run.clew") as t:
        LINEAR(torch.ones(1, 3))
    (event,) = clew.load(t.path).modules
    assert event.module == "a\udcff"


def test_shards_open_with_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "_INLINE", 3)
    monkeypatch.setattr(shards, "_LARGEST_SHARD", 300_000)
    t = record(dtypes, values="full", out=tmp_path / "run.clew")
    # The native engine keeps nothing of memory that nobody has written yet.
    events = [e for e in t.events if e.name != "aten.empty.memory_format"]
    values = [v for e in events for v in [*e.inputs.values(), *e.outputs.values()]]
    large = {v.number: v.tensor() for v in values if v.array().nbytes > 8}
    assert len(large) > 100
    paths = sorted(tmp_path.glob("run.clew/rank=00000/shard-*.safetensors"))
    assert len(paths) > 2
    contents = set()
    for path in paths:
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                if key.startswith("__pad"):
                    continue
                raw = file.get_tensor(key).reshape(-1).view(torch.uint8)
                number = int(key.removeprefix("value."))
                if number in large:
                    assert torch.equal(raw, large[number].reshape(-1).view(torch.uint8))
                contents.add(raw.numpy().tobytes())
    for tensor in large.values():
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() in contents


def test_event_parts_open_with_pandas(tmp_path: Path) -> None:
    import pandas

    t = record(training(), values="stats", out=tmp_path / "run.clew")
    path = tmp_path / "run.clew/rank=00000/events-00000.parquet"
    table = pandas.read_parquet(path).sort_values("id")
    assert list(table["id"]) == [e.id for e in t.events]
    for name in ("kind", "name", "address", "module", "step", "phase", "thread"):
        column = [None if pandas.isna(x) else x for x in table[name]]
        assert column == [getattr(e, name) for e in t.events], name
    outputs = [[v.look for v in e.outputs.values()] for e in t.events]
    assert [list(x) for x in table["outputs"]] == outputs
    lines = [None if e.source is None else e.source.line for e in t.events]
    assert [None if pandas.isna(x) else int(x) for x in table["line"]] == lines
    stats = [v.stats for e in t.events for v in e.outputs.values() if v.stats is not None]
    worst = max(s.max for s in stats if s.max is not None)
    assert table["max"].max() == worst
    assert pq.read_table(path).num_rows == len(t.events)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_event_table_has_the_modules_of_what_backward_runs(
    tmp_path: Path, reentrant: bool
) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def inside(self, x: Tensor) -> Tensor:
            return self.fc(x * 2).relu()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inside, x.sin(), use_reentrant=reentrant)

    model = nn.Sequential(Part(), Part())
    with clew.trace(model, out=tmp_path / "run.clew") as t:
        loss = model(torch.ones(2, 3, requires_grad=True)).sum()
        t.step()  # what came before is another part
        loss.backward()
    rows = pq.read_table(tmp_path / "run.clew/rank=00000/events-00000.parquet").to_pylist()
    modules = {row["id"]: row["module"] for row in rows}
    assert modules == {event.id: event.module for event in t.events}
    again = [op for op in t.ops if op.phase == "recompute"]
    assert {op.module for op in again} == {"0", "0.fc", "1", "1.fc"}


def test_opening_touches_only_the_manifest(tmp_path: Path) -> None:
    t = record(training(), values="full", out=tmp_path / "run.clew")
    path = tmp_path / "run.clew"
    for file in path.glob("rank=*/*"):
        file.write_bytes(b"nonsense")
    assert repr(type(clew.load(path))) == "<class 'clew.traces.Trace'>"
    with pytest.raises(clew.ClewError, match="can be read"):
        len(clew.load(path).events)
    assert t.path == path


def test_a_value_is_read_by_its_own_bytes(tmp_path: Path) -> None:
    with clew.trace(values="full", out=tmp_path / "run.clew") as t:
        torch.full((5000,), 1.0)
        torch.full((5000,), 2.0)
    (path,) = tmp_path.glob("**/*.safetensors")
    data = bytearray(path.read_bytes())
    data[-20000:] = b"\xee" * 20000
    path.write_bytes(data)
    first, second = (e.outputs[""] for e in clew.load(t.path)["op:aten.full.default"])
    assert (first.array() == 1).all()
    with pytest.raises(clew.ClewError, match="damaged or missing"):
        second.array()
    assert second.stats is not None
    assert second.stats.max == 2.0


def test_sources_can_be_left_out(tmp_path: Path) -> None:
    t = record(training(), redact=True, out=tmp_path / "run.clew")
    assert clew.load(t.path)._current_run().columns.sources == {}
    text = b"".join(p.read_bytes() for p in tmp_path.glob("**/*") if p.is_file())
    assert b"optimizer.zero_grad()" not in text


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"version": 99}, "format version '99', this Clew reads 2 to 7; upgrade Clew"),
        ({"version": 1}, "format version 1, this Clew reads 2 to 7; open it with the Clew that"),
        ({"version": 0}, "format version 0,"),
        ({"version": -1}, "format version -1,"),
        ({"version": "2"}, "format version '2',"),
        ({"version": True}, "format version 'True',"),
        ({"version": 2.0}, "format version '2.0',"),
        ({"version": None}, "format version 'None',"),
        ({"version": 10**30}, "format version '1000"),
        ({"checksum": "crc64"}, "checksums of the kind 'crc64', this Clew knows 'xxh3'"),
        ({"checksum": None}, "checksums of the kind 'None'"),
        ({"format": "clew"}, "is not the manifest of a trace"),
    ],
)
def test_a_format_it_does_not_know_is_refused(
    fact: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = record(arguments).save(tmp_path / "run.clew")
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["version"], manifest["checksum"]) == (7, "xxh3")
    (path / "manifest.json").write_text(json.dumps(manifest | fact))
    with pytest.raises(clew.ClewError, match=re.escape(message)):
        clew.load(path)


def test_a_step_in_which_nothing_ran_is_no_step(tmp_path: Path) -> None:
    with clew.trace(out=tmp_path / "run.clew") as t:
        for _ in range(3):
            torch.ones(1)
            t.step()
    assert t.steps == clew.load(tmp_path / "run.clew").steps == [0, 1, 2]


def test_opening_reads_the_manifest_alone(tmp_path: Path) -> None:
    path = record(arguments).save(tmp_path / "run.clew")
    shutil.move(path / "rank=00000", tmp_path / "away")
    (path / "rank=00000").mkdir()
    loaded = clew.load(path)
    (path / "rank=00000").rmdir()
    shutil.move(tmp_path / "away", path / "rank=00000")
    assert facts_of(loaded) == facts_of(clew.load(path))


@pytest.mark.parametrize(("name", "why"), [
    ("none.clew", "there is nothing of this name"),
    ("a file", "it is a file"),
    ("a folder", "it has no manifest.json"),
])  # fmt: skip
def test_what_is_no_trace_says_what_it_is(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    (tmp_path / "a folder").mkdir()
    with pytest.raises(clew.ClewError, match=f"{name} is not a trace: {why}; give the folder"):
        clew.load(tmp_path / name)
