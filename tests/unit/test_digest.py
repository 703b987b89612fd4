"""The checksum notices what happens to stored bytes, and what tells tensors apart."""

from __future__ import annotations

import numpy as np
import pytest

from clew.events.digest import checksum

SIZES = [1, 7, 8, 100, 4096, 8 * 512 * 3 + 40, 8 * 512 * 200 + 3]


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_every_bit_counts(size: int) -> None:
    data = noise(size)
    before = checksum(data)
    for at in np.unique(np.linspace(0, size - 1, 40).astype(int)):
        for bit in range(8):
            data[at] ^= 1 << bit
            assert checksum(data) != before, f"bit {bit} of byte {at}"
            data[at] ^= 1 << bit
    assert checksum(data) == before


@pytest.mark.parametrize("count", [2, 3, 511, 512, 1024, 512 * 70])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_negated_tensor_has_another_digest(count: int, dtype: str) -> None:
    data = np.random.default_rng(count).standard_normal(count).astype(dtype)
    assert checksum(data) != checksum(-data)
    pair = data.copy()
    pair[[0, -1]] *= -1
    assert checksum(data) != checksum(pair)


@pytest.mark.parametrize("distance", [1, 2, 512, 513, 512 * 64])
def test_swapped_elements_are_noticed(distance: int) -> None:
    data = np.random.default_rng(1).standard_normal(512 * 70)
    swapped = data.copy()
    swapped[[5, 5 + distance]] = swapped[[5 + distance, 5]]
    assert checksum(data) != checksum(swapped)


def test_lengths_of_zeros_differ() -> None:
    sizes = [0, 1, 8, 9, 4096, 4104, 8192]
    assert len({checksum(bytes(size)) for size in sizes}) == len(sizes)


def test_any_kind_of_buffer_gives_the_same() -> None:
    data = noise(5000)
    assert checksum(data) == checksum(data.tobytes()) == checksum(memoryview(data.tobytes()))
