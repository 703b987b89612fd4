"""Statistics of tensors on accelerators: by torch ops, without waiting. Tried on CPU and `meta`."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pytest
import torch

from clew.keep import device_statistics
from clew.keep.device_statistics import DeviceStatistics
from clew.keep.snapshots import device_snapshot
from clew.keep.tensor_statistics import numpy_statistics, statistics


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    inf, nan = float("inf"), float("nan")
    return {
        "normal": torch.randn(50, 7),
        "transposed": torch.randn(5, 6, 7).permute(2, 0, 1),
        "strided": torch.randn(40)[::3],
        "expanded": torch.randn(5, 1).expand(5, 4),
        "far from zero": 1e6 + torch.randn(100),
        "constant": torch.full((9,), -0.0),
        "with inf": torch.tensor([1.0, inf, -2.0, 0.0, -inf]),
        "with nan": torch.tensor([1.0, nan, -2.0, inf, 0.0]),
        "nothing finite": torch.tensor([nan, inf]),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "float64": torch.randn(20, dtype=torch.float64),
        "bfloat16": torch.randn(30).bfloat16(),
        "float16": torch.randn(30).half(),
        "int64": torch.randint(-5, 5, (30,)),
        "uint8": torch.randint(0, 5, (30,), dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "complex": torch.tensor([0j, 1 + 2j, -3j]),
    }


def assert_equal_but_digest(found: dict[str, Any], expected: dict[str, Any]) -> None:
    expected = {name: number for name, number in expected.items() if name != "digest"}
    assert set(found) == set(expected)
    for name, number in expected.items():
        if isinstance(number, float) and isnan(number):
            assert isnan(found[name]), name
        else:
            assert found[name] == pytest.approx(number, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("block", [1 << 22, 4])
@pytest.mark.parametrize("name", list(tensors()))
def test_they_equal_those_of_the_processor(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_statistics, "_BLOCK", block)
    tensor = tensors()[name]
    assert_equal_but_digest(DeviceStatistics().measure(tensor)(), statistics(tensor))


def test_buffers_that_are_full_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_statistics, "_ROWS", 4)
    measured = DeviceStatistics()
    later = [measured.measure(torch.full((2,), float(n))) for n in range(5)]
    assert later[1]()["mean"] == 1
    later += [measured.measure(torch.full((2,), float(n))) for n in range(5, 11)]
    assert [found()["mean"] for found in later] == list(range(11))


def test_a_row_is_copied_to_the_host_with_all_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copies.append(len(t)) or t.clone())
    measured = DeviceStatistics()
    later = [measured.measure(torch.ones(2)) for _ in range(5)]
    assert not copies
    assert all(found()["mean"] == 1 for found in reversed(later))
    assert copies == [5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_nothing_is_read_while_measuring(dtype: torch.dtype) -> None:
    """A tensor on `meta` has no elements: to wait for a number of it is an error."""
    DeviceStatistics().measure(torch.empty(3, 4, dtype=dtype, device="meta").t())


@pytest.mark.parametrize("name", list(tensors()))
def test_copies_hold_the_elements_in_order(name: str) -> None:
    tensor = tensors()[name]
    expected = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    copy = device_snapshot(tensor)
    assert copy.holds(expected)
    assert copy.stats == pytest.approx(numpy_statistics(expected, tensor.dtype), nan_ok=True)
    assert np.array_equal(np.frombuffer(copy.payload(tuple(tensor.shape)).data, np.uint8), expected)
