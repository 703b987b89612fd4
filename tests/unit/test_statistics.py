"""Statistics of arrays, where arithmetic in the type of the elements would fail."""

from __future__ import annotations

import numpy as np
import pytest

from clew.events.statistics import array_statistics


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("power", [-300, -160, -40, -30, 0, 30, 38, 160, 300])
@pytest.mark.parametrize("numbers", [[1.0, 2.0, -2.5], [1.0, 1.0 + 1e-5, 1.0 - 1e-5]])
def test_squares_may_be_too_large_or_too_small(
    dtype: type[np.floating], power: int, numbers: list[float]
) -> None:
    if abs(power) > 40 and dtype is np.float32:
        pytest.skip("no float32 is that large or small")
    array = np.array([number * 10.0**power for number in numbers], dtype)
    found = array_statistics(array)
    assert found is not None
    exact = array.astype(np.longdouble)
    norm = np.sqrt(np.square(exact).sum())
    assert found["mean"] == pytest.approx(float(exact.mean()), rel=1e-6)
    assert found["std"] == pytest.approx(float(exact.std()), rel=1e-4)
    assert found["norm"] == pytest.approx(float(norm), rel=1e-6)


@pytest.mark.parametrize("number", [0.1, 0.0, -3.3e-30, 1e300])
def test_a_constant_does_not_deviate(number: float) -> None:
    found = array_statistics(np.full(1001, number))
    assert found is not None
    assert (found["mean"], found["std"]) == (number, 0.0)
    assert found["norm"] == pytest.approx(abs(number) * 1001**0.5)
