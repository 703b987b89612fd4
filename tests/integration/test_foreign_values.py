"""Values in traces of strangers: data or a clear error, in memory that the file pays for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr

import clew
from clew.events.vocabulary import Kept, Payload, pack

ROOT = Path(__file__).parents[2]
HUGE = 1 << 40


def floats(*shape: int) -> Payload:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32)
    return Payload("float32", shape, array.tobytes())


def ints(*numbers: int, shape: tuple[int, ...] | None = None) -> Payload:
    return Payload("int64", (len(numbers),) if shape is None else shape,
                   np.array(numbers, dtype=np.int64).tobytes())  # fmt: skip


def coo(shape: tuple[int, ...], indices: Payload, values: Payload) -> Payload:
    return pack("sparse_coo", shape, {}, {"indices": indices, "values": values})


def csr(shape: tuple[int, ...], starts: Payload, columns: Payload, values: Payload) -> Payload:
    parts = {"crow_indices": starts, "col_indices": columns, "values": values}
    return pack("sparse_csr", shape, {}, parts)


def quantized(facts: dict[str, Any], shape: tuple[int, ...] = (4, 1), **more: Payload) -> Payload:
    integers = Payload("int8", shape, bytes(int(np.prod(shape))))
    return pack("quantized", shape, facts, {"integers": integers, **more})


def headed(head: Any, data: bytes = b"") -> Payload:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return Payload("parts", (2,), len(text).to_bytes(8, "little") + text + data)


def listed(*parts: list[Any]) -> dict[str, Any]:
    return {"form": "sparse_coo", "facts": {}, "parts": list(parts)}


ONE = floats(1)
FOUR = floats(4)
# What no program records: every reading of it as data is refused.
LIES = {
    "no_bytes": Payload("numpy:|V0", (HUGE,), b""),
    "no_bytes_text": Payload("numpy:<U0", (3,), b""),
    "void": Payload("numpy:|V8", (HUGE,), bytes(16)),
    "objects": Payload("numpy:|O", (2,), bytes(16)),
    "object": Payload("object", (2,), bytes(16)),
    "fields": Payload("numpy:i4,i4", (2,), bytes(16)),
    "field_of_objects": Payload("numpy:O,O", (1,), bytes(16)),
    "arrays_of_arrays": Payload("numpy:(1000000,)i4", (HUGE,), b""),
    "datetime_of_nothing": Payload("numpy:<M8[nonsense]", (1,), bytes(8)),
    "no_characters": Payload("numpy:<U1", (1,), b"\xff\xff\xff\xff"),
    "no_dtype": Payload("float33", (4,), bytes(16)),
    "long_dtype": Payload("x" * 20_000, (4,), bytes(16)),
    "negative": Payload("float32", (-1, 4), bytes(16)),
    "too_few": Payload("float32", (5,), bytes(16)),
    "too_many": Payload("float32", (3,), bytes(16)),
    "part_of_one": Payload("float32", (4,), bytes(15)),
    "overflow": Payload("float32", (1 << 62,) * 20, bytes(16)),
    "overflow_to_fit": Payload("float32", (1 << 32, 1 << 32, 4), bytes(16)),
    "axes": Payload("float32", (1,) * 2000, bytes(4)),
    "bfloat16": Payload("bfloat16", (HUGE,), bytes(16)),
    "float8": Payload("float8_e4m3fn", (HUGE,), bytes(16)),
    "complex32": Payload("complex32", (HUGE,), bytes(16)),
    "no_text": Payload("str", (), b"\xff\xfe"),
    "no_integer": Payload("int", (), b"0x" + b"g" * 10),
    "head_too_long": Payload("parts", (2,), (1 << 62).to_bytes(8, "little")),
    "head_too_deep": headed(b"[" * 100_000),
    "head_is_a_list": headed([]),
    "part_too_long": headed(listed(["indices", "int64", [1, 1], 1 << 60])),
    "part_backwards": headed(listed(["values", "float32", [4], 16],
                                    ["values", "float32", [4], -16]), bytes(16)),
    "part_in_a_part": coo((2,), ints(0, shape=(1, 1)), coo((2,), ints(0, shape=(1, 1)), ONE)),
    "part_too_wide": coo((2,), ints(0, shape=(1, 1)), Payload("numpy:<f16", (1,), bytes(16))),
    "part_of_text": coo((2,), ints(0, shape=(1, 1)), Payload("numpy:<U1", (1,), bytes(4))),
    "part_elsewhere": headed(listed(["../../x", "float32", [1], 4]), bytes(4)),
    "no_form": pack("sparse_xyz" * 9000, (2,), {}, {"values": ONE}),
    "no_indices": pack("sparse_coo", (2,), {}, {"values": ONE}),
    "index_outside": coo((2,), ints(2, shape=(1, 1)), ONE),
    "index_below": coo((2,), ints(-1, shape=(1, 1)), ONE),
    "too_many_indices": coo((2, 2), ints(0, 0, 0, shape=(3, 1)), ONE),
    "endless_indices": coo((2, 2), Payload("int64", (HUGE, 0), b""), floats(0)),
    "fewer_values": coo((2, 2), ints(0, 0, 1, 1, shape=(2, 2)), ONE),
    "huge_overflow": coo((1 << 62,) * 20, ints(*[0] * 20, shape=(20, 1)), ONE),
    "rows_backwards": csr((3, 2), ints(0, 2, 1, 2), ints(0, 1), floats(2)),
    "rows_missing": csr((HUGE, 2), ints(0, 1), ints(0), ONE),
    "column_outside": csr((1, 2), ints(0, 1), ints(7), ONE),
    "scale_of_many": quantized({"scale": [1.0] * 5000, "zero_point": 0}, (5000, 1)),
    "scale_of_text": quantized({"scale": "x", "zero_point": 0}),
    "zero_point_huge": quantized({"scale": 1.0, "zero_point": 10**30}),
    "axis_outside": quantized({"axis": 7}, scales=floats(4), zero_points=ints(0, 0, 0, 0)),
    "axis_negative": quantized({"axis": -1}, scales=floats(4), zero_points=ints(0, 0, 0, 0)),
    "scales_missing": quantized({"axis": 0}, scales=ONE, zero_points=ints(0)),
    "quantized_shape": pack("quantized", (HUGE,), {"scale": 1.0, "zero_point": 0},
                            {"integers": Payload("int8", (2,), bytes(2))}),
}  # fmt: skip
# What a program can record, however odd, or what is too large for one call and not for another.
ODD = {
    "honest": floats(2, 3),
    "honest_parts": coo((2, 2), ints(0, 1, 1, 0, shape=(2, 2)), floats(2)),
    "nothing": floats(0, 3),
    "nothing_huge": Payload("float32", (0, 1 << 62), b""),
    "nothing_wide": Payload("float32", (HUGE, 0), b""),
    "sparse": coo((HUGE, 8), ints(5, 5, 7, 0, 1, 2, shape=(2, 3)), floats(3)),
    "long_integer": Payload("int", (), hex(1 << 100_000).encode()),
    "date": Payload("numpy:<M8[ns]", (2,), bytes(16)),
    "text": Payload("str", (), "naïve".encode()),
}


def save(path: Path, payloads: dict[str, Payload]) -> Path:
    """Write a trace in which each tap has the payload of its name, whatever it claims."""
    with clew.trace(level="values") as t:
        for name in payloads:
            clew.tap(name, torch.zeros(2))
    kept = t._current_run().columns.kept
    for number, payload in zip(list(kept), payloads.values(), strict=True):
        kept[number] = Kept(None, payload)  # type: ignore[index]
    t.save(path)
    return path


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of its own says of each value, and of the trace."""
    folder = tmp_path_factory.mktemp("foreign")
    path = save(folder / "run.clew", {**ODD, **LIES})
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    done = subprocess.run(
        [sys.executable, "-m", "tests.read_values", str(path), str(folder / "out")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"size": size, "folder": folder / "out"}


@pytest.mark.parametrize("name", LIES)
def test_what_is_no_data_is_refused(name: str, read: dict[str, Any]) -> None:
    ways = read["values"][name]
    for way in ("array", "tensor", "item"):
        assert ways[way].startswith(("BadTrace: ", "ClewError: ")), (way, ways[way])
        assert len(ways[way]) < 600
    assert {ways[way] for way in ("str", "repr", "dict", "stats", "notebook")} == {"data"}


def test_what_is_no_data_is_left_out_of_exports_and_said(read: dict[str, Any]) -> None:
    for fmt in ("hdf5", "zarr", "pt"):
        named = {text.partition(",")[0] for text in read["trace"][fmt]}
        assert named >= set(LIES)
        assert not named & {"honest", "honest_parts", "sparse", "nothing", "nothing_wide"}


def test_a_few_bytes_take_little_memory(read: dict[str, Any]) -> None:
    assert read["grown"] <= (64 << 20) + 64 * read["size"]


def test_what_is_odd_is_read_where_it_can_be(read: dict[str, Any]) -> None:
    values = read["values"]
    for name in ("honest", "honest_parts", "nothing", "nothing_wide"):
        assert set(values[name].values()) == {"data"}, name
    assert "1099511627776, 8] is too large to be written out" in values["sparse"]["array"]
    assert "Value.tensor() gives it as it is" in values["sparse"]["array"]
    assert values["sparse"]["tensor"] == "data"
    assert values["long_integer"]["item"] == "data"
    assert "100,001 bits" in values["long_integer"]["array"]
    assert values["text"]["tensor"] == (
        "ClewError: torch has no dtype 'str'; Value.item() gives the value"
    )
    assert {values[name][way] for name in ODD for way in ("str", "notebook", "command")} == {"data"}


def in_hdf5(path: Path) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    return h5py.File(path), lambda group: dict(group.attrs)


def in_zarr(path: Path) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    return zarr.open_group(path, mode="r"), lambda group: dict(group.attrs)


READERS = {"hdf5": in_hdf5, "zarr": in_zarr}


@pytest.mark.parametrize("fmt", READERS)
def test_sparse_and_quantised_values_are_exported_as_their_parts(fmt: str, tmp_path: Path) -> None:
    size = 32_000
    sparse = torch.sparse_coo_tensor(
        [[3, 5], [7, 31_999]], [0.5, 2.0], (size, size), check_invariants=True
    )
    rows = torch.eye(3, dtype=torch.bfloat16).to_sparse_csr()
    whole = torch.quantize_per_tensor(torch.ones(2, 2), 0.25, 3, torch.quint8)
    scales, zeros = torch.tensor([0.5, 0.25]), torch.tensor([1, 2])
    channels = torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.qint8)
    with clew.trace(level="values", out=tmp_path / "run.clew") as t:
        for name, tensor in (("s", sparse), ("s", torch.ones(2)), ("r", rows), ("q", whole),
                             ("c", channels)):  # fmt: skip
            clew.tap(name, tensor)
    loaded = clew.load(t.path)
    with pytest.raises(clew.ClewError, match="too large to be written out with its zeros"):
        loaded["s#0"].value
    assert loaded["s#0"].output.tensor().is_sparse
    done = loaded.export(fmt, tmp_path / "x")
    assert (done.left_out, done.contents.count) == ((), 5)
    assert sum(file.stat().st_size for file in tmp_path.rglob("x*") if file.is_file()) < 100_000
    file, facts = READERS[fmt](tmp_path / "x")
    assert facts(file["s"])["ragged"] == "apart"
    assert file["s/values/1"][:].tolist() == [1.0, 1.0]
    group = file["s/values/0"]
    about = facts(group)
    assert (about["form"], list(about["shape"]), about["clew_dtype"]) == (
        "sparse_coo", [size, size], "float32"
    )  # fmt: skip
    assert group["indices"][:].tolist() == [[3, 5], [7, 31_999]]
    assert group["values"][:].tolist() == [0.5, 2.0]
    group = file["r/values/0"]
    assert sorted(group) == ["col_indices", "crow_indices", "values"]
    assert group["values"].dtype == np.float32
    assert facts(group["values"])["clew_dtype"] == "bfloat16"
    group = file["q/values/0"]
    about = facts(group)
    assert (about["form"], about["scale"], about["zero_point"]) == ("quantized", 0.25, 3)
    assert about["clew_dtype"] == "quint8"
    assert group["integers"][:].tolist() == [[7, 7], [7, 7]]
    group = file["c/values/0"]
    assert facts(group)["axis"] == 0
    assert group["scales"][:].tolist() == [0.5, 0.25]
    assert group["zero_points"][:].tolist() == [1, 2]


def test_a_dtype_asked_for_is_for_the_values_of_a_sparse_tensor_alone(tmp_path: Path) -> None:
    with clew.trace(level="values") as t:
        clew.tap("s", torch.eye(3, dtype=torch.float64).to_sparse())
    t.export("hdf5", tmp_path / "x.h5", dtype={"float64": "float16", "int64": "int8"})
    with h5py.File(tmp_path / "x.h5") as file:
        group = file["s/values/0"]
        assert (group["values"].dtype, group["indices"].dtype) == (np.float16, np.int64)


def test_floats_that_a_format_lacks_are_left_out_of_it(tmp_path: Path) -> None:
    with clew.trace(level="values") as t:
        clew.tap("x", np.ones(2, dtype=np.longdouble))
        clew.tap("y", np.ones(2))
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("this machine has no longer floats")
    assert t.export("hdf5", tmp_path / "x.h5").left_out == ()
    done = t.export("zarr", tmp_path / "x.zarr")
    assert done.left_out == ("x, rank 0, call 0: it is float128, which Zarr lacks; hdf5 has it",)
    assert t.export("zarr", tmp_path / "y.zarr", dtype="float64").left_out == ()
