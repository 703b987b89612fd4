"""The live HDF5 file: what an export holds, there while the program runs, whole after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.errors import ClewError, MissingDependency
from clew.views.export import committed_file
from tests.same_trace import facts_of

KILLS = 30


class Net(nn.Module):
    """Results of every kind that a file could spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 600)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "wide": self.act(self.fc(x)),
            "half": x.bfloat16(),
            "eighth": x.to(torch.float8_e4m3fn),
            "big": torch.arange(3) + 2**40,
            "turned": torch.complex(x, -x),
            "flags": x > 0,
            "scalar": x.sum(),
            "nothing": x[:0],
            "odd": torch.tensor([0.0, -0.0, float("nan"), float("inf")]),
        }


def record(out: Any, steps: int = 4, **options: Any) -> Any:
    """A few training steps; the third has another batch size."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with clew.trace(net, values="full", out=out, **options) as t:
        for step in range(steps):
            net(torch.randn(3 if step == 2 else 2, 8))["wide"].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    return t


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def series_in(path: Path) -> dict[str, list[tuple[int, int, int, np.ndarray[Any, Any]]]]:
    """Step, call, rank and data of every row that counts, by address."""
    found: dict[str, list[Any]] = {}
    with h5py.File(path) as file:
        for group in file.values():
            rows = found.setdefault(group.attrs["address"], [])
            shapes = group["lengths"][:] if "lengths" in group else None
            start = 0
            for row, step in enumerate(group["steps"][:]):
                assert step >= 0
                if shapes is None:
                    data = group["values"][row]
                else:
                    size = int(np.prod(shapes[row]))
                    data = group["values"][start : start + size].reshape(shapes[row])
                    start += size
                rows.append((step, group["calls"][row], group["ranks"][row], np.asarray(data)))
    return {address: sorted(rows, key=lambda row: row[:2]) for address, rows in found.items()}


@pytest.mark.parametrize("capture", [(), ("fc.weight:param", "fc.weight:update")])
def test_it_holds_what_the_export_of_the_same_run_holds(
    capture: tuple[str, ...], tmp_path: Path
) -> None:
    exported = tmp_path / "exported.h5"
    net, steps = Net(), 4
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    # One run seen by two: the last bits of a product depend on where its operands lie in memory.
    with clew.trace(net, values="full", capture=capture) as whole:
        with clew.trace(net, values="full", capture=capture, out=tmp_path / "run.h5") as t:
            for step in range(steps):
                net(torch.randn(3 if step == 2 else 2, 8))["wide"].sum().backward()
                optimizer.step()
                t.step()
                whole.step()
    assert t.path == tmp_path / "run.h5"
    whole.export("hdf5", exported, ragged="apart")
    live = series_in(tmp_path / "run.h5")
    # What it was at first and after each step, which no op has read after the last.
    assert len(live["fc.weight:param"]) == steps + ("fc.weight:param" in capture)
    with h5py.File(exported) as file:
        assert {group.attrs["address"] for group in file.values()} == set(live)
        for group in file.values():
            rows = live[group.attrs["address"]]
            assert [int(row[0]) for row in rows] == group["steps"][:].tolist()
            assert [int(row[1]) for row in rows] == group["calls"][:].tolist()
            for index, (*_, data) in enumerate(rows):
                values = group["values"]
                wanted = (
                    values[str(index)][...] if isinstance(values, h5py.Group) else values[index]
                )
                assert data.dtype == wanted.dtype
                np.testing.assert_array_equal(data, wanted)


def test_dtypes_are_kept_or_widened_exactly(tmp_path: Path) -> None:
    record(tmp_path / "run.hdf5")
    with h5py.File(tmp_path / "run.hdf5") as file:
        stored = {
            name: (str(file[name]["values"].dtype), file[name]["values"].attrs["clew_dtype"])
            for name in (":out.half", ":out.eighth", ":out.big", ":out.turned", ":out.flags")
        }
        assert np.signbit(file[":out.odd"]["values"][0]).tolist() == [False, True, False, False]
        assert file.attrs["format"] == "clew-values"
        assert json.loads(file.attrs["environment"])["torch"] == torch.__version__
    assert stored == {
        ":out.half": ("float32", "bfloat16"),
        ":out.eighth": ("float32", "float8_e4m3fn"),
        ":out.big": ("int64", "int64"),
        ":out.turned": ("complex64", "complex64"),
        ":out.flags": ("bool", "bool"),
    }


def test_the_trace_reads_its_values_back_from_the_file(tmp_path: Path) -> None:
    t = record(tmp_path / "run.h5")
    kept = t._session.store.kept
    assert {type(k.payload).__name__ for k in kept.values() if k.payload} == {"StoredPayload"}
    in_memory = record(None)
    for here, there in zip(t.ops, in_memory.ops, strict=True):
        for path, value in there.outputs.items():
            mine = here.outputs[path].tensor()
            assert (mine.dtype, mine.shape) == (value.tensor().dtype, value.tensor().shape)
            if here.name in ("aten._to_copy.default", "aten.gt.Scalar", "aten.complex.default"):
                assert bits(mine) == bits(value.tensor())
    saved = clew.load(t.save(tmp_path / "run.clew"))
    assert facts_of(saved) == facts_of(t)


def test_compression_shuffle_and_dtypes(tmp_path: Path) -> None:
    out = clew.Hdf5(
        tmp_path / "run.h5", compression="gzip", shuffle=True, dtypes={"float32": "float64"}
    )
    record(out)
    with h5py.File(tmp_path / "run.h5") as file:
        wide = file["fc"]["values"]
        assert (wide.compression, wide.shuffle, wide.dtype) == ("gzip", True, np.float64)
        assert file[":out.half"]["values"].dtype == np.float32
        assert file[":out.scalar"]["values"].compression is None


def test_a_value_that_a_dtype_would_spoil_is_left_out_and_said(tmp_path: Path) -> None:
    out = clew.Hdf5(tmp_path / "run.h5", dtypes={"int64": "int32"})
    with pytest.warns(clew.ClewWarning, match="1099511627776.*int32 cannot hold"):
        t = record(out)
    assert ":out.big" not in series_in(tmp_path / "run.h5")
    assert len(series_in(tmp_path / "run.h5")["fc"]) == 4
    assert t[":out.big"].values[3].array()[0] == 2**40


def test_wrong_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ClewError, match="compression='zip' is not one of None, 'gzip', 'lzf'"):
        clew.Hdf5("run.h5", compression="zip")
    with pytest.raises(ClewError, match="'float31' is not a NumPy number type"):
        record(clew.Hdf5(tmp_path / "run.h5", dtypes="float31"))
    (tmp_path / "file").write_text("")
    with pytest.warns(clew.ClewWarning, match="cannot write an HDF5 file to .*file/run.h5"):
        assert len(record(tmp_path / "file" / "run.h5")[""]) == 4


def test_without_h5py_the_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingDependency, match=r'needs h5py.*pip install "clew\[hdf5\]"'):
        record(tmp_path / "run.h5")
    assert not (tmp_path / "run.h5").exists()


def test_ranks_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run.h5")
    monkeypatch.setenv("RANK", "12")
    assert record(tmp_path / "run.h5").path == tmp_path / "run.rank00012.h5"
    assert {row[2] for row in series_in(tmp_path / "run.rank00012.h5")["fc"]} == {12}


def test_a_taken_path_is_left_alone_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    record(path)
    before = path.read_bytes()
    assert record(path).path == tmp_path / "run-2.h5"
    assert path.read_bytes() == before
    assert record(path, steps=1, exist="replace").path == path
    assert len(series_in(path)["fc"]) == 1
    (tmp_path / "notes.h5").write_text("mine")
    with pytest.raises(ClewError, match="is there and is not an HDF5 file, so it is not replaced"):
        record(tmp_path / "notes.h5", exist="replace")


def test_a_trace_that_goes_on_goes_on_in_the_same_file(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    tracer = clew.trace(layer, values="full", out=tmp_path / "run.h5")
    traced = tracer(lambda x: layer(x))
    for count in range(1, 4):
        traced(torch.ones(1, 2))
        assert len(series_in(tmp_path / "run.h5")[""]) == count
    assert len(tracer[""].values) == 3


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    program = f"""
import resource, signal, warnings, torch, clew
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
layer = torch.nn.Linear(100, 100)
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    with clew.trace(layer, values="full", out={str(tmp_path / "run.h5")!r}) as t:
        for _ in range(60):
            layer(torch.ones(20, 100))
            t.step()
            t.flush()
print(len(given), [str(g) for g in t.coverage], len(t.modules), t[""].values[0].array().shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 [")
    assert "values from here on" in done.stdout
    assert "File too large" in done.stdout
    assert done.stdout.endswith("60 (20, 100)\n")
    rows = series_in(tmp_path / "run.h5")[""]
    assert 0 < len(rows) < 60
    assert [int(row[0]) for row in rows] == list(range(len(rows)))


# Growing: new addresses now and then, shapes that change, small and compressed values.
GROWING = """
import torch, clew
class Growing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([torch.nn.Identity() for _ in range(400)])
    def forward(self, step):
        for part in self.parts[: 3 + 5 * (step // 3)]:
            part(torch.full((4,), float(step)))
        self.parts[0](torch.full((600,), float(step)))
        return self.parts[1](torch.full((1 + step % 5, 2), float(step)))
"""

NURSERY = (
    GROWING
    + """
import json, os, random, signal, struct, sys, time
torch.set_num_threads(1)
def program(path, pipe, steps=1_000_000):
    net = Growing()
    out = clew.Hdf5(path, compression="gzip", shuffle=True)
    with clew.trace(net, level="modules", values="full", out=out) as t:
        for step in range(steps):
            net(step)
            t.flush()
            os.write(pipe, struct.pack("<q", step))
            t.step()
root, kills = sys.argv[1], int(sys.argv[2])
chance = random.Random(7)
program(os.path.join(root, "warm.h5"), os.open(os.devnull, os.O_WRONLY), steps=5)
for number in range(kills):
    path = os.path.join(root, f"{number}.h5")
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        try:
            program(path, writable)
        finally:
            os._exit(1)
    os.close(writable)
    acknowledged = b""
    for _ in range(chance.randrange(1, 20)):
        acknowledged += os.read(readable, 8)
    # Anywhere in the work of the next steps.
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while piece := os.read(readable, 1 << 16):
        acknowledged += piece
    os.close(readable)
    steps = [step for (step,) in struct.iter_unpack("<q", acknowledged)]
    print(json.dumps([path, steps[-1] if steps else -1]), flush=True)
"""
)


def check_growing(path: Path, last: int) -> None:
    """Every flushed step is there, every row that counts holds what ran."""
    found = series_in(path)
    for number in range(3 + 5 * (max(last, 0) // 3) if last >= 0 else 0):
        first = 0 if number < 3 else 3 * ((number - 3) // 5 + 1)
        steps = {int(row[0]) for row in found[f"parts.{number}"]}
        assert set(range(first, last + 1)) <= steps
    for rows in found.values():
        for step, _, _, data in rows:
            assert (data == float(step)).all()


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NURSERY, str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == KILLS
    for path, last in outcomes:
        check_growing(Path(path), last)
    assert max(last for _, last in outcomes) > 5


def test_the_file_opens_after_every_single_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a kill can fall: between any two writes. Each such state opens, with all that was
    flushed before it."""
    writes: list[tuple[int, bytes | None]] = []
    write_all, ftruncate = committed_file.write_all, os.ftruncate

    def logged(file: int, data: Any) -> None:
        writes.append((os.lseek(file, 0, os.SEEK_CUR), bytes(data)))
        write_all(file, data)

    def logged_truncate(file: int, size: int) -> None:
        writes.append((size, None))
        ftruncate(file, size)

    monkeypatch.setattr(committed_file, "write_all", logged)
    monkeypatch.setattr(committed_file.os, "ftruncate", logged_truncate)
    namespace: dict[str, Any] = {}
    exec(GROWING, namespace)
    net, flushed = namespace["Growing"](), []
    out = clew.Hdf5(tmp_path / "run.h5", compression="gzip")
    with clew.trace(net, level="modules", values="full", out=out) as t:
        for step in range(8):
            net(step)
            t.flush()
            flushed.append(len(writes))
            t.step()
    monkeypatch.undo()
    state = bytearray()
    cut = tmp_path / "cut.h5"
    for number, (offset, data) in enumerate(writes):
        end = offset if data is None else offset + len(data)
        state.extend(bytes(max(0, end - len(state))))
        if data is None:
            del state[offset:]
        else:
            state[offset:end] = data
        if number >= flushed[0]:
            cut.write_bytes(state)
            check_growing(cut, sum(count <= number + 1 for count in flushed) - 1)
    assert len(writes) > 200


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc(x)
        rows = x.shape[0]
        clew.tap("total", hidden.sum(), self)
        clew.tap("text", "no numbers", self)
        return hidden * rows


def test_variables_taps_gradients_and_callbacks_are_written(tmp_path: Path) -> None:
    model, path = Named(), tmp_path / "run.h5"
    wanted = ["forward.hidden", "forward.rows", "fc.weight:grad"]
    how = {"fc:in": clew.Callbacks(save="norm")}
    with pytest.warns(clew.ClewWarning, match="it is str, not numbers"):
        with clew.trace(model, capture=wanted, callbacks=how, out=path) as t:
            for _ in range(3):
                model(torch.ones(2, 3)).sum().backward()
                t.step()
    with h5py.File(path) as file:
        assert file["forward.hidden/values"].shape == (3, 2, 3)
        assert file["forward.rows/values"][:].tolist() == [2, 2, 2]
        assert file["forward.rows/values"].dtype == np.int64
        assert file["fc.weight:grad/steps"][:].tolist() == [0, 1, 2]
        assert np.allclose(file["fc:in/values"][:], 6**0.5)
        assert np.array_equal(file["total/values"][:], t.series("total").stack())
        assert "text" not in file
