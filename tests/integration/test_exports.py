"""Exports hold what the trace holds, bit for bit, and stock tools read the native files."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew
from clew.errors import ClewError, MissingDependency, NotRecorded
from clew.store.format.schema import SCHEMAS
from clew.store.read.payloads import KeptOnDisk
from clew.views.export.formats import FORMATS
from clew.views.export.hdf5 import escaped
from clew.views.strict_json import as_json

VALUE_FORMATS = ["hdf5", "zarr", "pt"]
RANKS, STEPS = 2, 3


class Many(nn.Module):
    """Results of every kind that an export could spoil, and names that a file could misread."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 600)
        self.parts = nn.ModuleDict({"a/b": nn.ReLU(), "50%": nn.Identity(), "__x": nn.Tanh()})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        wide = self.parts["a/b"](self.fc(x))
        x = self.parts["__x"](self.parts["50%"](x))
        return {
            "wide": wide,
            "half": x.bfloat16(),
            "eighth": x.to(torch.float8_e4m3fn),
            "big": torch.arange(x.shape[0]) + 2**40,
            "double": x.double() * 1e100,
            "turned": torch.complex(x, -x),
            "flags": x > 0,
            "scalar": x.sum(),
            "nothing": x[:0],
            "odd": torch.tensor([0.0, -0.0, float("nan"), float("inf")]),
        }


def record(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> clew.Trace:
    """A run of several ranks and steps whose batch differs from step to step."""
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))
    for rank in range(RANKS):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(rank)
        model = Many()
        with clew.trace(model, out=path, **options) as t:
            for step in range(STEPS):
                model(torch.randn(2 + step % 2, 8))
                t.step()
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    return clew.load(path)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> clew.Trace:
    with pytest.MonkeyPatch.context() as patch:
        return record(tmp_path_factory.mktemp("run") / "run.clew", patch, values="full")


def hdf5_groups(path: Path) -> dict[str, dict[str, Any]]:
    """Address → everything in its group, as arrays."""
    with h5py.File(path) as file:
        return {g.attrs["address"]: _read(g, lambda a: dict(a.attrs)) for g in file.values()}


def zarr_groups(path: Path) -> dict[str, dict[str, Any]]:
    root = zarr.open_group(str(path), mode="r")
    return {g.attrs["address"]: _read(g, lambda a: dict(a.attrs)) for _, g in root.groups()}


def _read(group: Any, attributes: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group:
        item = group[name]
        if hasattr(item, "shape"):
            found[name] = item[...]
            found[f"{name}.attrs"] = attributes(item)
        else:
            found[name] = [item[str(i)][...] for i in range(len(list(item)))]
    return found


def rows(group: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The values of a group in their own shapes."""
    values = group["values"]
    if isinstance(values, list):
        return values
    if "lengths" not in group:
        return list(values)
    cut = [v[tuple(slice(0, n) for n in s)] for v, s in zip(values, group["lengths"], strict=True)]
    return [
        v.reshape(v.shape[v.ndim - n :] if n else ())
        for v, n in zip(cut, group["ndims"], strict=True)
    ]


def assert_identical(a: Any, b: Any) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


READERS = {"hdf5": hdf5_groups, "zarr": zarr_groups}
OUTPUTS = ["wide", "half", "eighth", "big", "double", "turned", "flags", "scalar", "nothing", "odd"]
ADDRESSES = ["fc", "parts.a/b", "parts.50%", "parts.__x", *(f":out.{name}" for name in OUTPUTS)]


@pytest.mark.parametrize("ragged", ["auto", "pad", "apart"])
@pytest.mark.parametrize("fmt", READERS)
def test_every_address_has_its_series(
    full: clew.Trace, fmt: str, ragged: str, tmp_path: Path
) -> None:
    full.export(fmt, tmp_path / "x", ragged=ragged)
    groups = READERS[fmt](tmp_path / "x")
    assert set(ADDRESSES) <= set(groups)
    for address in ADDRESSES:
        series, group = full.series(address), groups[address]
        assert len(series) == RANKS * STEPS
        assert group["steps"].tolist() == series.steps
        assert group["ranks"].tolist() == series.ranks == [0] * STEPS + [1] * STEPS
        assert group["calls"].tolist() == [*range(STEPS)] * RANKS
        for stored, value in zip(rows(group), series.values, strict=True):
            assert_identical(stored, value.array())


@pytest.mark.parametrize("fmt", READERS)
def test_nothing_is_narrowed(full: clew.Trace, fmt: str, tmp_path: Path) -> None:
    full.export(fmt, tmp_path / "x")
    groups = READERS[fmt](tmp_path / "x")

    def stored(name: str) -> tuple[str, str]:
        group = groups[f":out.{name}"]
        return group["values"].dtype.name, group["values.attrs"]["clew_dtype"]

    assert stored("big") == ("int64", "int64")
    assert int(groups[":out.big"]["values"].max()) == 2**40 + 2
    assert stored("turned") == ("complex64", "complex64")
    assert stored("double") == ("float64", "float64")
    assert stored("half") == ("float32", "bfloat16")
    assert stored("eighth") == ("float32", "float8_e4m3fn")
    assert stored("flags") == ("bool", "bool")


def test_a_smaller_batch_is_padded_not_repeated(full: clew.Trace, tmp_path: Path) -> None:
    full.export("hdf5", tmp_path / "x.h5")
    group = hdf5_groups(tmp_path / "x.h5")[":out.big"]
    assert group["lengths"].tolist() == [[2], [3], [2]] * RANKS
    assert (group["values"][0] == [2**40, 2**40 + 1, 0]).all()


def test_values_of_several_ranks_of_axes_are_aligned_at_the_last(tmp_path: Path) -> None:
    model = nn.Identity()
    with clew.trace(model, values="full") as t:
        for shape in [(), (3,), (2, 3)]:
            model(torch.ones(shape))
    t.export("hdf5", tmp_path / "apart.h5")
    assert [v.shape for v in hdf5_groups(tmp_path / "apart.h5")[""]["values"]] == [(), (3,), (2, 3)]
    t.export("hdf5", tmp_path / "x.h5", ragged="pad")
    group = hdf5_groups(tmp_path / "x.h5")[""]
    assert group["values"].shape == (3, 2, 3)
    assert group["ndims"].tolist() == [0, 1, 2]
    assert [v.shape for v in rows(group)] == [(), (3,), (2, 3)]


def test_padding_never_makes_a_small_trace_huge(tmp_path: Path) -> None:
    model = nn.Identity()
    with clew.trace(model, values="full") as t:
        model(torch.ones(1, 100_000))
        model(torch.ones(100_000, 1))
    t.export("hdf5", tmp_path / "x.h5")
    assert (tmp_path / "x.h5").stat().st_size < 3_000_000
    assert [v.shape for v in rows(hdf5_groups(tmp_path / "x.h5")[""])] == [
        (1, 100_000),
        (100_000, 1),
    ]


def test_dtypes_without_an_exact_common_one_are_stored_apart(tmp_path: Path) -> None:
    model = nn.Identity()
    with clew.trace(model, values="full") as t:
        model(torch.tensor([2**53 + 1]))
        model(torch.tensor([0.5]))
    t.export("hdf5", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        group = file["(root)"]
        assert group.attrs["ragged"] == "apart"
        assert [d.decode() for d in group["dtypes"][...]] == ["int64", "float32"]
        assert group["values/0"][0] == 2**53 + 1
        assert group["values/1"].dtype == np.float32


@pytest.mark.parametrize("fmt", READERS)
def test_dtype_converts_floating_point_data_only(
    full: clew.Trace, fmt: str, tmp_path: Path
) -> None:
    addresses = ["fc", ":out.half", ":out.big", ":out.turned"]
    full.export(fmt, tmp_path / "x", dtype="float64", addresses=addresses)
    groups = READERS[fmt](tmp_path / "x")
    kinds = {address: group["values"].dtype.name for address, group in groups.items()}
    assert kinds == {
        "fc": "float64",
        ":out.half": "float64",
        ":out.big": "int64",
        ":out.turned": "complex64",
    }


@pytest.mark.parametrize(
    ("address", "dtype", "message"),
    [
        (":out.big", {"int64": "int32"}, "holds np.int64(1099511627776), which int32 cannot hold"),
        (":out.big", {"int64": "float32"}, "which float32 cannot hold"),
        (":out.double", "float32", "which float32 cannot hold"),
        (":out.double", {"float64": "int64"}, "which int64 cannot hold"),
        (":out.turned", {"complex64": "float32"}, "would lose its imaginary part"),
        (":out.big", "int32", "converted only by name"),
        (":out.big", {"int64": "bfloat16"}, "is not a NumPy number type"),
    ],
)
def test_a_dtype_that_would_spoil_the_data_is_refused(
    full: clew.Trace, address: str, dtype: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ClewError) as refused:
        full.export("hdf5", tmp_path / "x.h5", addresses=[address], dtype=dtype)
    assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_integers_that_fit_are_narrowed_when_asked(full: clew.Trace, tmp_path: Path) -> None:
    full.export("hdf5", tmp_path / "x.h5", addresses=[":out.flags"], dtype={"bool": "uint8"})
    assert hdf5_groups(tmp_path / "x.h5")[":out.flags"]["values"].dtype == np.uint8


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_hdf5_filters(
    full: clew.Trace, compression: str | None, shuffle: bool, tmp_path: Path
) -> None:
    full.export("hdf5", tmp_path / "x.h5", compression=compression, shuffle=shuffle)
    with h5py.File(tmp_path / "x.h5") as file:
        values = file["fc/values"]
        assert (values.compression, values.shuffle) == (compression, shuffle)
        assert_identical(values[0][:2], full.series("fc").values[0].array())


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_zarr_codecs(
    full: clew.Trace, compression: str | None, shuffle: bool, tmp_path: Path
) -> None:
    full.export("zarr", tmp_path / "x.zarr", compression=compression, shuffle=shuffle)
    group = zarr_groups(tmp_path / "x.zarr")["fc"]
    assert_identical(rows(group)[0], full.series("fc").values[0].array())


def test_names_are_kept_apart_and_found_again(full: clew.Trace, tmp_path: Path) -> None:
    full.export("hdf5", tmp_path / "x.h5", addresses=["parts.*"])
    with h5py.File(tmp_path / "x.h5") as file:
        assert sorted(file) == ["parts.50%25", "parts.__x", "parts.a%2Fb"]
    full.export("zarr", tmp_path / "x.zarr", addresses=["parts.*", "fc:in"])
    folders = sorted(p.name for p in (tmp_path / "x.zarr").iterdir() if p.is_dir())
    assert folders == ["fc%3Ain.0", "parts.50%25", "parts.__x", "parts.a%2Fb"]


@pytest.mark.parametrize(
    ("name", "safe"), [("a/b", "a%2Fb"), ("%2F", "%252F"), (".", "%2E"), ("..", "%2E%2E")]
)
def test_escaped_names(name: str, safe: str) -> None:
    assert escaped(name, "/", 100) == safe


def test_every_kept_value_is_exported_once_at_least(full: clew.Trace, tmp_path: Path) -> None:
    full.export("hdf5", tmp_path / "x.h5")
    groups = hdf5_groups(tmp_path / "x.h5")
    stored = {row.tobytes() for group in groups.values() for row in map(np.asarray, rows(group))}
    for event in full.events:
        if event.name == "aten.empty.memory_format":
            continue  # the native engine keeps nothing of memory that nobody has written yet
        for value in (*event.inputs.values(), *event.outputs.values()):
            assert value.array().tobytes() in stored
    assert {"fc.weight:param", "fc.bias:param"} <= set(groups)
    assert groups["fc.weight:param"]["ranks"].tolist() == [0, 1]


class Checkpointed(nn.Module):
    """Runs its part twice: in the forward pass and again for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.part, x, use_reentrant=False)
        return result


def test_recomputed_calls_and_wrappers_are_no_values_of_their_own(tmp_path: Path) -> None:
    model = nn.DataParallel(Checkpointed())
    with clew.trace(model, values="full") as t:
        model(torch.ones(1, 4)).sum().backward()
    t.export("hdf5", tmp_path / "x.h5")
    groups = hdf5_groups(tmp_path / "x.h5")
    for address in {event.module for event in t.modules}:
        assert address is not None
        assert len(groups[address]["values"]) == len(t.series(address)) == 1


def test_pt_loads_without_running_code(full: clew.Trace, tmp_path: Path) -> None:
    done = full.export("pt", tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert set(ADDRESSES) <= set(loaded)
    assert done.contents.count == sum(map(len, loaded.values()))
    for address in ADDRESSES:
        for tensor, value in zip(loaded[address], full.series(address).values, strict=True):
            assert str(tensor.dtype) == f"torch.{value.dtype}"
            assert_identical(tensor.float() if tensor.dtype.itemsize < 4 and
                             tensor.dtype.is_floating_point else tensor, value.array())  # fmt: skip


def test_pt_with_labels(full: clew.Trace, tmp_path: Path) -> None:
    full.export("pt", tmp_path / "x.pt", addresses=["fc"], labels=True)
    found = torch.load(tmp_path / "x.pt", weights_only=True)["fc"]
    assert found["steps"] == [0, 1, 2] * RANKS
    assert found["ranks"] == [0, 0, 0, 1, 1, 1]
    assert len(found["values"]) == RANKS * STEPS


def test_addresses_choose_inputs_too(full: clew.Trace, tmp_path: Path) -> None:
    full.export("hdf5", tmp_path / "x.h5", addresses=["fc:in", "op:aten.addmm.default"])
    assert set(hdf5_groups(tmp_path / "x.h5")) == {"fc:in.0", "op:aten.addmm.default"}
    full.export("hdf5", tmp_path / "y.h5", addresses=[":out.big", "parts.50%"])
    assert set(hdf5_groups(tmp_path / "y.h5")) == {":out.big", "parts.50%"}


class Wanted(nn.Module):
    """Something for every kind of address."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        h = self.norm(self.fc(x))
        parts = {"a": h, "b": [h * mask, 3]}
        clew.tap("mid", h.detach(), self)
        clew.tap("pair", {"x": h, "y": 1}, self)
        return {"logits": h, "aux": parts["b"][0]}


def shifted(x: Tensor) -> Tensor:
    moved = x + 1
    return moved


CAPTURED = [
    "", ":in", "fc", "fc:in", "op:mul", "op:mul:in", "fc:grad", "fc:grad_in", "fc.weight:grad",
    "fc.weight:param", "norm.running_var:buffer", "fc.weight:update", "fc.weight:state",
    "forward.h", "forward.parts", "forward", "test_exports.py:shifted.moved",
]  # fmt: skip
ASKED = [
    *CAPTURED, "fc#1", "fc:out", "fc:in.0", ":in.mask", ":out.logits", "op:aten.mul.Tensor:in.1",
    "fc.*:param", "fc.weight#1:grad", "fc.weight:state.exp_avg", "forward.h#0",
    "forward.parts:out.a", "forward.parts:out.b", "mid", "mid#1", "pair", "pair:out.x",
    f"{__name__}:shifted.moved", "*", "**",
]  # fmt: skip


@pytest.fixture(scope="module")
def wanted() -> clew.Trace:
    model = Wanted()
    optimizer = torch.optim.Adam(model.parameters())
    with clew.trace(model, capture=CAPTURED) as t:
        for _ in range(2):
            x = torch.randn(4, 3, requires_grad=True)
            shifted(model(x, mask=torch.ones(3))["logits"]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    assert not t.coverage
    return t


def data_of(values: Iterable[Any]) -> list[tuple[tuple[int, ...], bytes]]:
    """What some values hold, whatever their order."""
    arrays = [value.array() for value in values]
    return sorted((array.shape, array.tobytes()) for array in arrays)


@pytest.mark.parametrize("address", ASKED)
def test_every_kind_of_address_is_exported(
    address: str, wanted: clew.Trace, tmp_path: Path
) -> None:
    expected = data_of(wanted[address].values)
    assert expected
    wanted.export("pt", tmp_path / "x.pt", addresses=[address])
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    arrays = [tensor.numpy() for tensors in loaded.values() for tensor in tensors]
    assert sorted((array.shape, array.tobytes()) for array in arrays) == expected
    for fmt, groups in READERS.items():
        done = wanted.export(fmt, tmp_path / fmt, addresses=[address])
        assert done.left_out == ()
        found = [row for group in groups(tmp_path / fmt).values() for row in rows(group)]
        assert sorted((row.shape, row.tobytes()) for row in found) == expected


def test_addresses_that_an_export_writes_can_be_asked_for(tmp_path: Path) -> None:
    model = Wanted()
    with clew.trace(model, values="full", capture=["fc.weight:param", "forward.parts"]) as t:
        for _ in range(2):
            model(torch.randn(4, 3), mask=torch.ones(3))["logits"].sum().backward()
            with torch.no_grad():
                model.fc.weight.add_(1)
            t.step()
    t.export("hdf5", tmp_path / "all.h5")
    everything = hdf5_groups(tmp_path / "all.h5")
    assert {"fc.bias:param", "fc.weight:param", "forward.parts:out.b.0"} <= set(everything)
    # What it was at first, and after each change, although no op read the last.
    assert data_of(t["fc.weight:param"].values) == sorted(
        (row.shape, row.tobytes()) for row in rows(everything["fc.weight:param"])
    )
    for address, group in everything.items():
        t.export("hdf5", tmp_path / "one.h5", addresses=[address], exist="replace")
        (found,) = hdf5_groups(tmp_path / "one.h5").values()
        for row, expected in zip(rows(found), rows(group), strict=True):
            assert_identical(row, expected)


@pytest.mark.parametrize("fmt", READERS)
def test_what_was_gathered_is_exported_as_its_series(fmt: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Tanh())
    how = {
        "0:in": clew.Callbacks(before_gather=clew.callbacks.stack, end=clew.callbacks.stack),
        "0": clew.Callbacks(after_gather=lambda values: [v.mean() for v in values]),
        "1": clew.Callbacks(save="norm"),
    }
    with clew.trace(model, capture=["2"], callbacks=how, gather=2) as t:
        for step in range(4):
            model(torch.full((5, 3), float(step)))
            t.step()
    t.export(fmt, tmp_path / "all")
    found = READERS[fmt](tmp_path / "all")
    assert {address.partition(".")[0] for address in found} == {"", "0:in", "0", "1", "2"}
    for address, group in found.items():
        series = t.series(address.partition(".")[0])
        for row, value in zip(rows(group), series.values, strict=True):
            assert_identical(row, value.array())
        assert group["steps"].tolist() == series.steps
        assert group["ranks"].tolist() == [-1 if rank is None else rank for rank in series.ranks]


def test_capture_alone_is_enough(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with clew.trace(model, capture=["0"]) as t:
        model(torch.ones(1, 4))
    t.export("hdf5", tmp_path / "x.h5")
    assert list(hdf5_groups(tmp_path / "x.h5")) == ["0"]


@pytest.mark.parametrize("fmt", VALUE_FORMATS)
def test_without_data_the_error_says_how_to_record_it(fmt: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model, values="stats") as t:
        model(torch.ones(1, 2))
    with pytest.raises(NotRecorded) as refused:
        t.export(fmt, tmp_path / "x")
    assert "values='stats'" in str(refused.value)
    assert "clew.trace(values='full')" in str(refused.value)
    assert "clew.trace(capture=[...])" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fmt", "package"), [("hdf5", "h5py"), ("zarr", "zarr")])
def test_a_missing_extra_names_the_install(
    full: clew.Trace, fmt: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf'pip install "clew\[{fmt}\]"'):
        full.export(fmt, tmp_path / "x")


def test_an_existing_file_is_left_alone(full: clew.Trace, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("mine")
    for exist, said in (("replace", "is not a CSV of events, so it is not replaced"),
                        ("error", r"x\.csv exists; .* exist='replace'")):  # fmt: skip
        with pytest.raises(ClewError, match=said):
            full.export("csv", path, exist=exist)
    assert path.read_text() == "mine"
    path.unlink()
    for _ in range(2):
        full.export("csv", path)
    assert path.read_text().startswith("id,")


def test_only_an_export_may_be_replaced_by_a_folder(full: clew.Trace, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ClewError, match="is not a Zarr export of Clew's, so it is not replaced"):
        full.export("zarr", tmp_path / "mine", exist="replace")
    full.export("zarr", tmp_path / "x.zarr", addresses=["fc"])
    full.export("zarr", tmp_path / "x.zarr", addresses=["parts.a/b"], exist="replace")
    assert list(zarr_groups(tmp_path / "x.zarr")) == ["parts.a/b"]


def test_a_failed_replacement_keeps_the_old_file(full: clew.Trace, tmp_path: Path) -> None:
    full.export("hdf5", tmp_path / "x.h5", addresses=["fc"])
    with pytest.raises(ClewError):
        full.export("hdf5", tmp_path / "x.h5", exist="replace", dtype={"int64": "int8"})
    assert list(hdf5_groups(tmp_path / "x.h5")) == ["fc"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.h5"]


def test_wrong_words_are_answered_with_the_right_ones(full: clew.Trace, tmp_path: Path) -> None:
    with pytest.raises(ClewError, match="no export format 'h5'; there are chrome, csv, dot, hdf5"):
        full.export("h5", tmp_path / "x")
    with pytest.raises(ClewError, match="the csv export has no option 'dtype'; it has none"):
        full.export("csv", tmp_path / "x", dtype="float32")
    with pytest.raises(ClewError, match="no option 'ragged'; it has addresses, labels"):
        full.export("pt", tmp_path / "x", ragged="pad")
    with pytest.raises(ClewError, match="ragged='cut' is not one of 'auto', 'pad', 'apart'"):
        full.export("hdf5", tmp_path / "x", ragged="cut")
    with pytest.raises(ClewError, match="compression='zip' is not one of None, 'gzip', 'lzf'"):
        full.export("hdf5", tmp_path / "x", compression="zip")
    with pytest.raises(ClewError, match="exist='over' is not one of 'replace', 'keep', 'error'"):
        full.export("csv", tmp_path / "x", exist="over")


def test_an_unwritable_place_is_said(full: clew.Trace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClewError, match=r"cannot write .*x\.csv"):
        full.export("csv", tmp_path / "file" / "x.csv")


def test_damaged_data_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run.clew", monkeypatch, values="full")
    shard = next((tmp_path / "run.clew" / "rank=00001").glob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-4] ^= 255
    shard.write_bytes(data)
    t = clew.load(tmp_path / "run.clew")
    done = t.export("hdf5", tmp_path / "x.h5")
    assert done.left_out
    assert all("rank 1" in text and "damaged" in text for text in done.left_out)
    assert ":out.big" in hdf5_groups(tmp_path / "x.h5")


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the data of each value was read and checked."""
    found: Counter[int] = Counter()
    fetch = KeptOnDisk._fetch

    def counting(self: KeptOnDisk, number: int, row: int) -> bytes:
        found[number] += 1
        return fetch(self, number, row)

    monkeypatch.setattr(KeptOnDisk, "_fetch", counting)
    return found


@pytest.mark.parametrize("ragged", ["auto", "pad", "apart"])
@pytest.mark.parametrize("fmt", READERS)
def test_each_value_is_read_once(
    fmt: str, ragged: str, tmp_path: Path, fetches: Counter[int]
) -> None:
    with clew.trace(level="values", out=tmp_path / "run.clew") as t:
        for step in range(10):
            clew.tap("even", torch.full((2, 3000), step))
            clew.tap("uneven", torch.full((2, 3 + step % 2), float(step)))
            t.step()
    trace = clew.load(tmp_path / "run.clew")
    done = trace.export(fmt, tmp_path / "x", ragged=ragged)
    assert done.contents.count == 20
    assert sorted(fetches.values()) == [1] * 20


@pytest.mark.parametrize("way", ["hdf5", "zarr", "pt", "html", "save"])
def test_each_value_of_a_model_is_read_once(
    way: str, tmp_path: Path, fetches: Counter[int]
) -> None:
    """One that several addresses have is read for each array that it is written into."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    with clew.trace(model, values="full", out=tmp_path / "run.clew") as t:
        for _ in range(3):
            model(torch.randn(2, 3))
            clew.tap("sparse", torch.eye(3).to_sparse())
            t.step()
    trace = clew.load(tmp_path / "run.clew")
    if way == "html":
        trace.html(tmp_path / "x.html")
    elif way == "save":
        trace.save(tmp_path / "copy.clew")
    else:
        done = trace.export(way, tmp_path / "x")
    assert len(fetches) > 12
    if way in READERS:
        assert fetches.total() == done.contents.count
    else:
        assert set(fetches.values()) == {1}


def spoiled(folder: Path, wanted: Callable[[int], bool]) -> clew.Trace:
    """A trace of six large values of one address, some of whose bytes were changed on disk."""
    with clew.trace(level="values", out=folder) as t:
        for step in range(6):
            clew.tap("x", torch.full((3000 + 1000 * (step == 1),), step))
            t.step()
    shard = next(folder.glob("rank=*/shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    for step in range(6):
        if wanted(step):
            value = np.full(3000 + 1000 * (step == 1), step).tobytes()
            data[data.index(value) + 8] ^= 255
    shard.write_bytes(data)
    return clew.load(folder)


@pytest.mark.parametrize("ragged", ["auto", "apart"])
@pytest.mark.parametrize("fmt", READERS)
def test_damage_found_while_writing_leaves_the_sound_values(
    fmt: str, ragged: str, tmp_path: Path
) -> None:
    trace = spoiled(tmp_path / "run.clew", lambda step: step in (1, 4))
    done = trace.export(fmt, tmp_path / "x", ragged=ragged)
    assert [text.split(":")[0] for text in done.left_out] == [
        "x, rank 0, call 1", "x, rank 0, call 4"
    ]  # fmt: skip
    assert all("damaged" in text for text in done.left_out)
    assert done.contents.count == 4
    group = READERS[fmt](tmp_path / "x")["x"]
    assert list(group["steps"]) == [0, 2, 3, 5]
    # The one value of another size is gone, and so is what made the values ragged.
    assert "lengths" not in group
    assert [int(value[-1]) for value in rows(group)] == [0, 2, 3, 5]


def test_padding_that_makes_far_more_than_there_is_is_refused(tmp_path: Path) -> None:
    with clew.trace(level="values") as t:
        for shape in ((8192, 1), (1, 8192)):
            clew.tap("x", torch.zeros(shape))
    with pytest.raises(ClewError, match=r"would make 134,217,728 elements of the 16,384 of x; "):
        t.export("hdf5", tmp_path / "x.h5", ragged="pad")
    assert t.export("hdf5", tmp_path / "x.h5").contents.count == 2


@pytest.mark.parametrize("ragged", ["auto", "pad"])
@pytest.mark.parametrize("fmt", READERS)
def test_a_size_that_is_only_claimed_is_not_made_room_for(
    fmt: str, ragged: str, tmp_path: Path
) -> None:
    """Neither in memory nor in the file, also where the others would be padded to it."""
    with clew.trace(level="values", out=tmp_path / "run.clew"):
        for step in range(3):
            clew.tap("x", torch.full((4000,), float(step)))
    (part,) = (tmp_path / "run.clew").glob("rank=*/values-*.parquet")
    rows_of_part = pq.ParquetFile(part).read().to_pylist()
    kept = [row for row in rows_of_part if row["length"] is not None]
    kept[1].update(length=4 << 40, data_shape=[1 << 40])
    part.unlink()
    table = pa.Table.from_pylist(rows_of_part, schema=SCHEMAS["values"])
    pq.write_table(table, part, store_schema=False, use_dictionary=False)
    done = clew.load(tmp_path / "run.clew").export(fmt, tmp_path / "x", ragged=ragged)
    assert [text.partition(": ")[0] for text in done.left_out] == ["x, rank 0, call 1"]
    group = READERS[fmt](tmp_path / "x")["x"]
    assert [value[0] for value in rows(group)] == [0, 2]
    size = sum(f.stat().st_size for f in [tmp_path / "x", *(tmp_path / "x").rglob("*")])
    assert size < 200_000


@pytest.mark.parametrize("fmt", READERS)
def test_an_address_of_which_nothing_is_sound_is_left_out(fmt: str, tmp_path: Path) -> None:
    trace = spoiled(tmp_path / "run.clew", lambda step: True)
    done = trace.export(fmt, tmp_path / "x")
    assert len(done.left_out) == 6
    assert done.contents.count == done.contents.addresses == 0
    assert READERS[fmt](tmp_path / "x") == {}


def test_a_trace_in_memory_exports_the_same(tmp_path: Path) -> None:
    model = Many()
    with clew.trace(model, values="full") as t:
        model(torch.randn(2, 8))
    loaded = clew.load(t.save(tmp_path / "run.clew"))
    for name, trace in (("a", t), ("b", loaded)):
        trace.export("hdf5", tmp_path / f"{name}.h5")
        trace.export("parquet", tmp_path / f"{name}.parquet")
    a, b = hdf5_groups(tmp_path / "a.h5"), hdf5_groups(tmp_path / "b.h5")
    assert list(a) == list(b)
    for address, group in a.items():
        assert_identical(group["values"], b[address]["values"])
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))


def test_parquet_is_one_table_of_all_ranks(full: clew.Trace, tmp_path: Path) -> None:
    full.export("parquet", tmp_path / "x.parquet")
    table = pd.read_parquet(tmp_path / "x.parquet")
    assert len(table) == len(full.events)
    assert not table.duplicated(["rank", "id"]).any()
    for row, event in zip(table.itertuples(), full.events, strict=True):
        assert (row.rank, row.id, row.address) == (event.rank, event.id, event.address)
        assert row.end >= row.start
        assert list(row.outputs) == [v.look for v in event.outputs.values()]
    odd = table[(table.kind == "module") & (table.module == "")]
    assert (odd.nan == 1).all()
    assert (odd.inf == 1).all()
    roots = [event for event in full.modules if event.module == ""]
    assert list(odd["max"]) == [greatest(event) for event in roots]


def greatest(event: Any) -> float:
    stats = [value.stats for value in event.outputs.values()]
    return max(s.max for s in stats if s is not None and s.max is not None)


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_json_is_what_to_dict_gives(full: clew.Trace, name: str, tmp_path: Path) -> None:
    full.export("json", tmp_path / name)
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "rt", encoding="utf-8") as file:
        loaded = json.load(file, parse_constant=pytest.fail)
    assert loaded == json.loads(as_json(full.to_dict()))
    assert len(loaded["events"]) == len(full.events)


def test_csv_has_a_row_per_event(full: clew.Trace, tmp_path: Path) -> None:
    full.export("csv", tmp_path / "x.csv")
    with open(tmp_path / "x.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(int(r["rank"]), int(r["id"])) for r in found] == [(e.rank, e.id) for e in full.events]
    assert {r["name"] for r in found} >= {"Many", "Linear", "aten.addmm.default"}


def chrome(trace: clew.Trace, path: Path) -> list[dict[str, Any]]:
    trace.export("chrome", path)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def assert_nested(events: list[dict[str, Any]]) -> None:
    """On each track an event lies inside another or beside it, as Perfetto requires."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
        tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    for spans in tracks.values():
        open_ends: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_chrome_trace_nests_calls_by_rank_and_thread(
    full: clew.Trace, name: str, tmp_path: Path
) -> None:
    events = chrome(full, tmp_path / name)
    spans = [event for event in events if event["ph"] == "X"]
    calls = [event for event in spans if event["cat"] != "step"]
    assert len(calls) == sum(e.kind in ("module", "op", "composite") for e in full.events)
    assert {event["pid"] for event in spans} == set(range(RANKS))
    assert_nested(spans)
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}
    addmm = next(event for event in calls if event["name"] == "aten.addmm.default")
    assert addmm["args"]["out"] == "f32[2,600]"
    assert addmm["args"]["module"] == "fc"
    steps = [event["name"] for event in spans if event["cat"] == "step" and event["pid"] == 0]
    assert steps == ["step 0", "step 1", "step 2"]


def test_chrome_lines_ranks_up_by_time_of_day(full: clew.Trace, tmp_path: Path) -> None:
    events = [event for event in chrome(full, tmp_path / "x.json") if event["ph"] == "X"]
    ends = max(event["ts"] + event["dur"] for event in events if event["pid"] == 0)
    # Rank 1 of this run began after rank 0 had ended.
    assert min(event["ts"] for event in events if event["pid"] == 1) > ends
    assert min(event["ts"] for event in events) >= 0


def test_chrome_shows_backward_threads_and_a_crash(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    t = clew.trace(model)
    with t:
        model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), t:
        model(torch.ones(1, 3))
    events = [event for event in chrome(t, tmp_path / "x.json") if event["ph"] == "X"]
    assert_nested(events)
    assert {"forward", "backward"} <= {event["args"]["phase"] for event in events}
    failed = [event for event in events if "error" in event["args"]]
    assert "mat1 and mat2 shapes" in failed[-1]["args"]["error"]


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_answers_with_what_it_wrote(
    full: clew.Trace, fmt: str, tmp_path: Path
) -> None:
    done = full.export(fmt, tmp_path / "x")
    assert done.path == tmp_path / "x"
    assert done.left_out == ()
    assert (tmp_path / "x").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert done.to_dict()["format"] == fmt
    assert str(done).startswith(f"{tmp_path / 'x'}: ")


# The files of a trace themselves, with stock tools.


class Blows(nn.Module):
    """Divides by its input at a step: NaN from finite inputs on one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, zero: float) -> Tensor:
        x = x * zero
        return self.fc(x / x)


FIRST_NAN = """
SELECT rank, step, address, module, file, line, nan
FROM read_parquet('{run}/rank=*/events-*.parquet')
WHERE nan > 0
QUALIFY row_number() OVER (PARTITION BY rank ORDER BY "end") = 1
ORDER BY step, rank
"""


@pytest.fixture(scope="module")
def blown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 makes a NaN at step 1, rank 2 at step 2, rank 0 none."""
    run = tmp_path_factory.mktemp("nan") / "run.clew"
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(3):
            patch.setenv("RANK", str(rank))
            model = Blows()
            with clew.trace(model, values="stats", out=run) as t:
                for step in range(4):
                    model(torch.ones(2, 4), 0.0 if rank and step >= rank else 1.0)
                    t.step()
    return run


def test_duckdb_finds_the_first_nan_over_all_ranks(blown: Path) -> None:
    assert FIRST_NAN.format(run="run.clew") in Path("README.md").read_text(encoding="utf-8")
    found = duckdb.sql(FIRST_NAN.format(run=blown)).df()
    first = found.iloc[0]
    # DuckDB takes the rank from the folder's name, as text.
    assert list(found["rank"]) == ["00001", "00002"]
    assert (first["rank"], first["step"], first["nan"]) == ("00001", 1, 8)
    assert first["address"].startswith("op:aten.div.Tensor#")
    assert first["file"] == __file__


def test_duckdb_picks_one_rank_by_its_number(blown: Path) -> None:
    run = f"read_parquet('{blown}/rank=*/events-*.parquet')"
    one = duckdb.sql(f"SELECT DISTINCT rank::INT FROM {run} WHERE rank = 2").fetchall()
    assert one == [(2,)]
    whole = duckdb.sql(f"SELECT count(*) FROM {run}").fetchall()
    assert whole == [(len(clew.load(blown).events),)]


def test_polars_queries_all_ranks_as_one(blown: Path) -> None:
    found = (
        pl.scan_parquet(f"{blown}/rank=*/events-*.parquet")
        .filter(pl.col("nan") > 0)
        .sort("step", "end")
        .first()
        .collect()
    )
    assert found.select("rank", "step").row(0) == (1, 1)
    assert found["name"][0] == "aten.div.Tensor"


def test_pandas_reads_all_ranks_as_one(blown: Path) -> None:
    table = pd.concat(map(pd.read_parquet, sorted(blown.glob("rank=*/events-*.parquet"))))
    assert sorted(table["rank"].unique()) == [0, 1, 2]
    first = table[table.nan > 0].sort_values(["step", "end"]).iloc[0]
    assert (first["rank"], first["step"], first["name"]) == (1, 1, "aten.div.Tensor")


def test_the_exported_parquet_says_what_the_native_files_say(blown: Path, tmp_path: Path) -> None:
    clew.load(blown).export("parquet", tmp_path / "x.parquet")
    exported = pl.read_parquet(tmp_path / "x.parquet")
    native = pl.read_parquet(f"{blown}/rank=*/events-*.parquet")
    native = native.select(exported.columns).sort("rank", "id")
    assert native.equals(exported)


def test_safetensors_opens_sealed_shards(full: clew.Trace, tmp_path: Path) -> None:
    folder = full.export("parquet", tmp_path / "x").path.parent
    model = nn.Linear(64, 4096)
    with clew.trace(model, values="full", out=folder / "run.clew") as t:
        y = model(torch.ones(2, 64))
    assert t.path is not None
    shards = list(t.path.glob("rank=*/shard-*.safetensors"))
    assert shards
    found = []
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            found += [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert any(tensor.shape == y.shape and torch.equal(tensor, y) for tensor in found)
