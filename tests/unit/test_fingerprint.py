"""Fingerprints: what they hold, what they forgive, and how those of shards add up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.events.fingerprint import (
    Fingerprint,
    bins_of,
    block_of,
    fingerprint_of,
    packed_fingerprint,
    unpacked,
)

sides = st.lists(st.integers(0, 5), max_size=4)


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def marginal(array: np.ndarray[Any, Any], axis: int) -> list[float]:
    """The sums along an axis, as plainly as they can be written."""
    slices = [np.take(array, index, axis).sum() for index in range(array.shape[axis])]
    block = block_of(len(slices))
    return [float(np.sum(slices[at : at + block])) for at in range(0, len(slices), block)]


def same(one: Fingerprint, other: Fingerprint) -> None:
    assert one.shape == other.shape
    assert (one.count, one.nonfinite, one.min, one.max) == (
        other.count, other.nonfinite, other.min, other.max,
    )  # fmt: skip
    for name in ("total", "absolute", "squares", "cubes"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12, abs=1e-12)
    for mine, theirs in zip(one.marginals, other.marginals, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(sides)
def test_it_holds_moments_and_sums_along_each_axis(shape: list[int]) -> None:
    array = numbers(tuple(shape))
    found = fingerprint_of(array)
    assert found.shape == array.shape
    assert found.count == array.size
    assert found.total == pytest.approx(array.sum(), abs=1e-12)
    assert found.absolute == pytest.approx(np.abs(array).sum())
    assert found.squares == pytest.approx((array**2).sum())
    assert found.cubes == pytest.approx((np.abs(array) ** 3).sum())
    for axis in range(array.ndim):
        assert found.marginals[axis] == pytest.approx(marginal(array, axis), abs=1e-12)


@pytest.mark.parametrize(
    ("size", "bins"), [(0, 0), (1, 1), (32, 32), (33, 17), (64, 32), (65, 17), (768, 24)]
)
def test_long_axes_are_cut_into_at_most_32_blocks(size: int, bins: int) -> None:
    assert bins_of(size) == bins
    array = numbers((2, size))
    assert fingerprint_of(array).marginals[1] == pytest.approx(marginal(array, 1), abs=1e-12)


def test_rows_longer_than_a_tile_and_many_rows() -> None:
    for shape in ((2, 200_000), (70_000, 3), (200_000,)):
        array = numbers(shape)
        found = fingerprint_of(array)
        for axis in range(array.ndim):
            assert found.marginals[axis] == pytest.approx(marginal(array, axis), rel=1e-9)


def test_non_finite_numbers_are_counted_and_add_nothing() -> None:
    array = numbers((3, 4))
    array[0, 1], array[2, 3], array[1, 0] = math.nan, math.inf, -math.inf
    found = fingerprint_of(array)
    filled = np.where(np.isfinite(array), array, 0)
    assert found.nonfinite == 3
    assert found.total == pytest.approx(filled.sum())
    assert found.marginals[0] == pytest.approx(filled.sum(axis=1))
    assert found.max == np.nanmax(array[np.isfinite(array)])
    nothing = fingerprint_of(np.full((2,), math.nan))
    assert (nothing.min, nothing.max, nothing.total) == (None, None, 0)


def test_a_transpose_and_a_head_split_keep_axes() -> None:
    array = numbers((2, 5, 12))
    found = fingerprint_of(array)
    turned = fingerprint_of(array.transpose(2, 0, 1))
    for sums, axis in zip(turned.marginals, (2, 0, 1), strict=True):
        assert sums == pytest.approx(found.marginals[axis])
    heads = fingerprint_of(array.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3))
    assert heads.marginals[2] == pytest.approx(found.marginals[1])
    assert heads.marginals[1] == pytest.approx(np.reshape(found.marginals[2], (3, 4)).sum(1))


def test_complex_numbers_are_those_of_their_parts() -> None:
    array = numbers((3, 4)) + 1j * numbers((3, 4), seed=1)
    same(fingerprint_of(array), fingerprint_of(np.stack([array.real, array.imag], -1)))


def test_only_the_last_eight_axes_have_sums() -> None:
    found = fingerprint_of(numbers((2,) * 10))
    assert [len(sums) for sums in found.marginals] == [0, 0, *[2] * 8]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.integers(1, 8), st.integers(1, 8), st.data())
def test_shards_add_up(axis: int, left: int, right: int, data: Any) -> None:
    """Along axes whose parts end where a block does, merging gives what the whole has."""
    shape = [3, 2, 4, 5]
    scale = data.draw(st.sampled_from([1, 8, 40]))
    sizes = [left * scale, right * scale]
    shape[axis] = sum(sizes)
    whole = numbers(tuple(shape))
    parts = np.split(whole, [sizes[0]], axis)
    merged = fingerprint_of(parts[0]).merge(fingerprint_of(parts[1]), axis)
    expected = fingerprint_of(whole)
    if sizes[0] % block_of(sum(sizes)):
        assert merged.marginals[axis] == ()
        assert merged.squares == pytest.approx(expected.squares)
    else:
        same(merged, expected)


def test_other_tensors_are_no_shards() -> None:
    one, other = fingerprint_of(numbers((2, 3))), fingerprint_of(numbers((2, 4)))
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\) are no shards along axis 0"):
        one.merge(other, 0)
    with pytest.raises(ValueError, match="no shards along axis 2"):
        one.merge(one, 2)


def test_it_is_plain_data() -> None:
    found = fingerprint_of(np.arange(6.0).reshape(2, 3))
    assert found.to_dict() == {
        "count": 6, "nonfinite": 0, "total": 15.0, "absolute": 15.0, "squares": 55.0,
        "cubes": 225.0, "min": 0.0, "max": 5.0, "shape": [2, 3],
        "marginals": [[3.0, 12.0], [3.0, 5.0, 7.0]],
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: b"",
        lambda packed: packed[:-8],
        lambda packed: packed + b"\0" * 8,
        lambda packed: np.array([9.0]).tobytes() + packed[8:],
        lambda packed: np.array([math.nan]).tobytes() + packed[8:],
        lambda packed: packed[:8] + np.array([1e300]).tobytes() + packed[16:],
    ],
)
def test_what_is_no_fingerprint_is_refused(damage: Any) -> None:
    packed = packed_fingerprint(numbers((2, 3)))
    assert unpacked(packed, {}).shape == (2, 3)
    with pytest.raises(ValueError, match="size of an axis|has .* numbers|zip"):
        unpacked(damage(packed), {})
