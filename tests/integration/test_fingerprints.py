"""`values="fingerprint"`: recorded by both engines, kept in every store, the same from the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import clew
from clew.events.fingerprint import Fingerprint, fingerprint_of, unpacked
from clew.keep.fingerprints import DeviceFingerprints
from clew.keep.tensor_statistics import statistics
from clew.run.value import Value

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OTHERS = (
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64,
    torch.complex128,
)  # fmt: skip


def assert_same(found: Fingerprint | None, expected: Fingerprint | None) -> None:
    """They agree up to the rounding of sums of float64."""
    assert found is not None
    assert expected is not None
    assert (found.shape, found.count, found.nonfinite) == (
        expected.shape, expected.count, expected.nonfinite,
    )  # fmt: skip
    assert (found.min, found.max) == pytest.approx((expected.min, expected.max))
    size = max(expected.absolute, 1e-300)
    assert found.total == pytest.approx(expected.total, rel=1e-12, abs=1e-12 * size)
    for name in ("absolute", "squares", "cubes"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    for mine, theirs in zip(found.marginals, expected.marginals, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12, abs=1e-12 * size)


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    nan, inf = float("nan"), float("inf")
    made = {f"of {dtype}": (torch.randn(3, 5, 40) * 9).to(dtype) for dtype in (*FLOATS, *OTHERS)}
    with_others = torch.randn(4, 70)
    with_others[1, 3], with_others[2, 50], with_others[0, 0] = nan, inf, -inf
    return made | {
        "transposed": torch.randn(5, 6, 7).permute(2, 0, 1),
        "a head split": torch.randn(2, 9, 4, 8).transpose(1, 2),
        "every third": torch.randn(100)[::3],
        "a part of rows": torch.randn(20, 30)[3:17, 5:21],
        "expanded": torch.randn(5, 1, 3).expand(5, 4, 3),
        "a scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "with NaN and Inf": with_others,
        "of bfloat16 with Inf": with_others.bfloat16(),
        "nothing finite": torch.tensor([nan, inf]),
        "rows of 2000": torch.randn(3, 2000),
        "rows of 5000": torch.randn(2, 3, 5000),
        "many axes": torch.randn(2, 3, 1, 2, 1, 2, 2, 2, 3, 2),
        "large": torch.randn(64, 33, 65),
        "images": torch.randn(2, 8, 7, 7),
        "channels last": torch.randn(2, 8, 7, 7).to(memory_format=torch.channels_last),
        "largest": torch.tensor([[3e38, -3e38], [3e38, 1.0]]),
    }


def inputs_of(values: str, out: Path | None = None) -> list[Value]:
    """The values of all tensors, in the order that they are listed in."""
    every = list(tensors().values())
    with clew.trace(values=values, out=out) as t:
        for tensor in every:
            tensor.clone()
    return [event.inputs["0"] for event in t.ops if event.name == "aten.clone.default"]


def test_each_tensor_has_the_fingerprint_of_its_data() -> None:
    names = list(tensors())
    marked, full = inputs_of("fingerprint"), inputs_of("full")
    assert len(marked) == len(full) == len(names)
    for name, value, whole, tensor in zip(names, marked, full, tensors().values(), strict=True):
        with pytest.raises(clew.ClewError, match="was not kept"):
            value.array()
        data = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        expected = fingerprint_of(data.to(torch.float64).numpy())
        try:
            assert_same(value.fingerprint, expected)
            assert_same(whole.fingerprint, expected)
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from wrong


@pytest.mark.parametrize("values", ["meta", "stats"])
def test_lower_levels_have_none(values: str) -> None:
    assert [value.fingerprint for value in inputs_of(values)] == [None] * len(tensors())


def test_views_have_fingerprints_of_their_own_shape() -> None:
    x = torch.randn(2, 6, 8)
    with clew.trace(values="fingerprint") as t:
        y = x * 2
        seen = [y, y.view(2, 6, 2, 4), y.transpose(1, 2), y.view(12, 8).t(), y[0], y[:, :, 1:]]
        seen.append(y.view(2, 6, 2, 4).transpose(1, 2).contiguous())
    ends = [event.outputs["0"] for event in t.ops]
    found = {(value.shape, value.stride): value.fingerprint for value in ends}
    for tensor in seen:
        key = tuple(tensor.shape), tuple(tensor.stride())
        assert_same(found[key], fingerprint_of(tensor.double().numpy()))


def test_a_trace_in_a_folder_has_the_same_as_one_in_memory(tmp_path: Path) -> None:
    live = [value.fingerprint for value in inputs_of("fingerprint")]
    inputs_of("fingerprint", out=tmp_path / "run.clew")
    t = clew.load(tmp_path / "run.clew")
    loaded = [e.inputs["0"].fingerprint for e in t.ops if e.name == "aten.clone.default"]
    assert loaded == live
    again = clew.load(t.save(tmp_path / "again.clew"))
    saved = [e.inputs["0"].fingerprint for e in again.ops if e.name == "aten.clone.default"]
    assert saved == live


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).relu()


def test_parameters_gradients_and_later_steps(tmp_path: Path) -> None:
    model = Small()
    model(torch.ones(2, 6))
    weight = model.up.weight.detach().clone()
    schedule = clew.schedule(wait=1, active=1)
    with clew.trace(model, values="fingerprint", schedule=schedule, redact=True) as t:
        for _ in range(3):
            model(torch.ones(2, 6)).sum().backward()
            t.step()
    values = [v for event in t.events for v in (*event.inputs.values(), *event.outputs.values())]
    (mark, *_) = [v.fingerprint for v in values if v.name == "up.weight"]
    assert_same(mark, fingerprint_of(weight.double().numpy()))
    assert all(v.fingerprint is not None for v in values if v.stats is not None)


def test_what_a_limit_leaves_out_keeps_its_fingerprint() -> None:
    x = torch.randn(50, 60)
    with clew.trace(values="full", limits=clew.Limits(bytes=10)) as t:
        x.clone()
    value = t.ops[0].inputs["0"]
    with pytest.raises(clew.ClewError, match="not kept"):
        value.array()
    assert_same(value.fingerprint, fingerprint_of(x.double().numpy()))


def test_captured_data_has_a_fingerprint_at_any_level() -> None:
    model = Small()
    with clew.trace(model, values="meta", capture=["up"]) as t:
        y = model.up(torch.ones(2, 6))
    assert_same(t["up"].one.outputs["0"].fingerprint, fingerprint_of(y.detach().double().numpy()))


def test_meta_tensors_have_none() -> None:
    with clew.trace(values="fingerprint") as t:
        torch.empty(3, device="meta") * 2
    assert [v.fingerprint for event in t.ops for v in event.outputs.values()] == [None, None]


def test_a_write_in_place_has_a_fingerprint_of_its_own() -> None:
    x = torch.ones(3, 4)
    with clew.trace(values="fingerprint") as t:
        x.clone()
        x[1] += 5
        x.clone()
    first, last = [e.inputs["0"].fingerprint for e in t.ops if "clone" in e.name]
    assert first is not None
    assert last is not None
    assert (first.marginals[0], last.marginals[0]) == ((4, 4, 4), (4, 24, 4))


@pytest.mark.parametrize("name", list(tensors()))
def test_devices_compute_the_same(name: str) -> None:
    """By torch ops, which are tried here on the processor."""
    tensor = tensors()[name]
    measured = DeviceFingerprints()
    other = measured.measure(torch.ones(2))
    found = unpacked(measured.measure(tensor)(), statistics(tensor))
    data = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    assert_same(found, fingerprint_of(data.to(torch.float64).numpy()))
    assert unpacked(other(), {}).total == 2


def test_data_from_a_stranger_is_refused_clearly(tmp_path: Path) -> None:
    with clew.trace(values="fingerprint", out=tmp_path / "run.clew"):
        torch.ones(2, 3) * 2
    (part,) = (tmp_path / "run.clew").rglob("values-*.parquet")
    table = pq.read_table(part)
    column = table.column_names.index("fingerprint")
    cells = table["fingerprint"].to_pylist()
    wrong = [None if cell is None else [1e9, *cell[1:]] for cell in cells]
    damaged = table.set_column(column, "fingerprint", pa.array(wrong, pa.list_(pa.float64())))
    pq.write_table(damaged, part)
    for footer in (tmp_path / "run.clew").rglob(".values-*.footer"):
        footer.unlink()
    t = clew.load(tmp_path / "run.clew")
    with pytest.raises(clew.ClewError, match="fingerprint of a value is damaged"):
        _ = t.ops[0].outputs["0"].fingerprint
    assert np.isfinite(t.ops[0].outputs["0"].stats.mean)
