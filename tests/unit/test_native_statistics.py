"""The native statistics are those of NumPy, whatever the elements, their layout, the processor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf, isclose, isnan, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clew.events.digest import checksum
from clew.events.statistics import Statistics
from clew.keep import tensor_statistics
from clew.keep.tensor_statistics import memory_of, numpy_statistics, statistics, statistics_of_bytes
from clew.native.loading import load, why_not

if load() is None:
    pytest.skip(f"no native engine: {why_not()}", allow_module_level=True)

ENGINE: Any = load()
NATIVE = tensor_statistics.native
ELEMENTS: dict[str, int] = ENGINE.elements()
SETS = [name for name in ("scalar", "avx2", "avx512") if ENGINE.use_instruction_set(name)]
ENGINE.use_instruction_set(None)
# Bytes that the kernel reads at a time.
BLOCK = 16 << 10
EXACT = ("min", "max", "nan", "inf", "zeros", "lowest", "highest", "digest", "count")

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

in_every_way = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=SETS, autouse=True)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run every test with each set of instructions that this processor has."""
    monkeypatch.delenv("CLEW_ENGINE", raising=False)
    NATIVE.cache_clear()
    assert ENGINE.use_instruction_set(request.param)
    yield request.param
    ENGINE.use_instruction_set(None)
    NATIVE.cache_clear()


def dtype_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def bytes_of(tensor: Tensor) -> bytes:
    """Return the bytes of the elements in row-major order."""
    rows = tensor.contiguous()
    return memory_of(rows).tobytes()


def wide_numbers(data: bytes, dtype: torch.dtype) -> Any:
    """Return the numbers as the widest floats there are; a complex number is two."""
    if dtype is torch.bool:
        return (np.frombuffer(data, np.uint8) != 0).astype(np.longdouble)
    parts = {torch.complex32: torch.float16, torch.complex64: torch.float32,
             torch.complex128: torch.float64}  # fmt: skip
    elements = torch.frombuffer(bytearray(data), dtype=parts.get(dtype, dtype))
    if elements.dtype.is_floating_point:
        elements = elements.to(torch.float64)
    with np.errstate(invalid="ignore"):  # NaNs of the signalling kind
        return elements.numpy().astype(np.float64).astype(np.longdouble)


def same_moments(found: Statistics, data: bytes, dtype: torch.dtype) -> None:
    """Check mean, std and norm against sums of wide floats."""
    numbers = wide_numbers(data, dtype)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        assert all(isnan(float(found[name])) for name in ("mean", "std", "norm"))
        return
    mean = numbers.mean()
    std = np.sqrt(np.square(numbers - mean).mean())
    norm = np.sqrt(np.square(numbers).sum())
    typical = float(norm / np.sqrt(len(numbers)))
    assert isclose(found["mean"], float(mean), rel_tol=1e-6, abs_tol=1e-6 * typical)
    assert isclose(found["std"], float(std), rel_tol=2e-6, abs_tol=1e-12 * typical)
    assert isclose(found["norm"], float(norm), rel_tol=1e-6)


def same(found: Statistics, data: bytes, dtype: torch.dtype, digest: bool = True) -> None:
    """Check statistics of bytes against NumPy's, those that are no sums to the last bit."""
    expected = numpy_statistics(bytearray(data), dtype, digest)
    assert list(found) == list(expected) or not data
    for name in EXACT:
        # Equal by `repr`: 0.0 is not -0.0, NaN is NaN.
        assert repr(found.get(name)) == repr(expected.get(name)), name
    if data:
        same_moments(found, data, dtype)


def measured(data: bytes, name: str) -> Statistics:
    found: Statistics = ENGINE.measure_bytes(data, ELEMENTS[name], True)
    return found


counts = st.one_of(
    st.integers(0, 130),
    st.sampled_from([255, 1000, 4095, 4096, 4097, 2 * BLOCK, 2 * BLOCK + 7, 70_001]),
)
SPECIAL = [0.0, -0.0, nan, inf, -inf, 1e-45, -1e-40, 3.4e38, -3.4e38, 65504.0, 6e-8, 1e300, 5e-324]


@pytest.mark.parametrize("name", ELEMENTS)
@in_every_way
@given(counts, st.integers(0, 2**32 - 1))
def test_any_bits(name: str, count: int, seed: int) -> None:
    dtype = dtype_of(name)
    data = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    same(measured(data, name), data, dtype)


@pytest.mark.parametrize("name", [name for name in ELEMENTS if "float" in name])
@in_every_way
@given(
    counts,
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, -30.0, 1e4, 1e-30, 1e30]),
    st.sampled_from([1.0, 1e-3, 1e-25, 1e25]),
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(SPECIAL)), max_size=6),
)
def test_numbers_with_special_ones_among_them(
    name: str, count: int, seed: int, mean: float, std: float, special: list[tuple[int, float]]
) -> None:
    numbers = torch.from_numpy(np.random.default_rng(seed).normal(mean, std, count))
    for at, number in special if count else []:
        numbers[at % count] = number
    data = bytes_of(numbers.to(dtype_of(name)))
    same(measured(data, name), data, dtype_of(name))


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("count", [1, 15, 64, 4097, 20_000])
def test_sparse_numbers_and_constants(name: str, count: int) -> None:
    for numbers in (torch.zeros(count), torch.ones(count), (torch.arange(count) % 3 == 0) * 2.0):
        tensor = numbers.to(dtype_of(name))
        data = bytes_of(tensor)
        same(measured(data, name), data, tensor.dtype)


def test_a_constant_does_not_deviate() -> None:
    found = measured(bytes_of(torch.full((100_001,), 0.1)), "float32")
    assert (found["mean"], found["std"]) == (np.float32(0.1), 0.0)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("power", [-1060, -560, -490, -470, -130, -50, -20, 50, 70, 120, 490, 560])
def test_squares_may_be_too_large_or_too_small(name: str, power: int) -> None:
    numbers = torch.linspace(-1, 2, 1001, dtype=torch.float64) * 2.0**power
    data = bytes_of(numbers.to(dtype_of(name)))
    same(measured(data, name), data, dtype_of(name))


def test_integers_beyond_those_that_a_double_holds() -> None:
    tensor = torch.tensor([2**63 - 1, -(2**63), 2**53 + 1, 0])
    found = measured(bytes_of(tensor), "int64")
    assert (found["min"], found["max"], found["zeros"]) == (-(2.0**63), 2.0**63, 1)


def test_the_sign_of_a_zero_is_that_of_the_first() -> None:
    for first in (0.0, -0.0):
        tensor = torch.ones(50_000)
        tensor[30_000:] = -first
        tensor[30_000] = first
        assert repr(measured(bytes_of(tensor), "float32")["min"]) == repr(first)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_ten_million_elements_are_added_up_exactly_enough(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for shift in (0.0, 100.0):
        tensor = (torch.rand(10_000_000, generator=generator) + shift).to(dtype_of(name))
        same_moments(statistics_of_bytes(memory_of(tensor), tensor.dtype),
                     bytes_of(tensor), tensor.dtype)  # fmt: skip


@st.composite
def views(draw: st.DrawFn) -> tuple[str, Tensor]:
    """Return a view of some tensor: permuted, sliced, expanded, with any number of dimensions."""
    name = draw(st.sampled_from(list(ELEMENTS)))
    dtype = dtype_of(name)
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 64, 150]), max_size=4))
    while np.prod(shape, dtype=int) > 200_000:
        shape.pop()
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, size, np.uint8)
    tensor = torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(["permute", "slice", "expand", "select", "empty"]))
        dim = draw(st.integers(0, tensor.dim() - 1)) if tensor.dim() else None
        if change == "permute":
            tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
        elif change == "expand":
            tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 5)), *tensor.shape)
        elif dim is not None and change == "slice" and tensor.shape[dim]:
            start = draw(st.integers(0, tensor.shape[dim] - 1))
            step = draw(st.integers(1, 3))
            tensor = tensor[(slice(None),) * dim + (slice(start, None, step),)]
        elif dim is not None and change == "select" and tensor.shape[dim]:
            tensor = tensor.select(dim, draw(st.integers(0, tensor.shape[dim] - 1)))
        elif dim is not None and change == "empty" and draw(st.booleans()):
            tensor = tensor.narrow(dim, 0, 0)
    return name, tensor


def measured_view(name: str, tensor: Tensor, digest: bool, copy_to: int = 0) -> Statistics:
    found: Statistics = ENGINE.measure_view(
        tensor.data_ptr(), ELEMENTS[name], tensor.shape, tensor.stride(), digest, copy_to
    )
    return found


@settings(in_every_way, max_examples=200)
@given(views(), st.booleans())
def test_views(view: tuple[str, Tensor], digest: bool) -> None:
    name, tensor = view
    rows = bytes_of(tensor)
    copy = np.zeros(len(rows), np.uint8)
    same(measured_view(name, tensor, digest, copy.ctypes.data), rows, tensor.dtype, digest)
    assert copy.tobytes() == rows
    if not digest:
        # In the order of the memory, which decides the sign of a zero.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        rows = bytes_of(tensor.permute(order))
    same(measured_view(name, tensor, digest), rows, tensor.dtype, digest)


LARGE = torch.arange(70 * 301 * 40).remainder(1000).sub(500).float().view(70, 301, 40)


@pytest.mark.parametrize(
    "tensor",
    [
        LARGE.transpose(0, 1), LARGE.transpose(1, 2), LARGE.permute(2, 1, 0), LARGE[:, ::3],
        LARGE[..., 5:], LARGE[:, :, 7], LARGE[3].expand(50, 301, 40),
        LARGE[..., :1].expand(LARGE.shape), LARGE.view(70, -1).t()[1:], LARGE.view(-1)[::7],
        LARGE.view(-1)[3:],
        LARGE.view(-1, 2, 2).transpose(1, 2), LARGE.view(2, -1).t(), LARGE.half().permute(2, 0, 1),
        LARGE.double().permute(1, 0, 2), torch.complex(LARGE, LARGE).permute(2, 0, 1),
        LARGE.view(-1)[:1].expand(100_000), torch.tensor(3.0), torch.tensor(3.0).expand(3, 0, 4),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype}",
)  # fmt: skip
@pytest.mark.parametrize("spoil", [False, True])
def test_large_views(tensor: Tensor, spoil: bool) -> None:
    if spoil:
        if 0 in tensor.stride() or tensor.is_complex():
            pytest.skip("its elements cannot be written one by one")
        spoiled = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        tensor = spoiled.copy_(tensor)
        tensor[(-1,) * tensor.dim()] = inf
        tensor[(0,) * tensor.dim()] = -inf
    rows = bytes_of(tensor)
    same(statistics(tensor), rows, tensor.dtype)
    copy = np.zeros(len(rows), np.uint8)
    name = str(tensor.dtype).removeprefix("torch.")
    same(measured_view(name, tensor, True, copy.ctypes.data), rows, tensor.dtype)
    assert copy.tobytes() == rows


def test_strides_may_be_negative() -> None:
    array = np.arange(12_000, dtype=np.float32).reshape(100, 120)[::-1, ::-2]
    strides = [stride // 4 for stride in array.strides]
    found = ENGINE.measure_view(array.__array_interface__["data"][0], 0, array.shape, strides, True)
    same(found, array.tobytes(), torch.float32)


def test_memory_need_not_be_aligned() -> None:
    data = np.random.default_rng(0).bytes(100_001)
    for name in ELEMENTS:
        part = memoryview(data)[1:]
        part = part[: len(part) // 16 * 16]
        same(ENGINE.measure_bytes(part, ELEMENTS[name], True), bytes(part), dtype_of(name))


@pytest.mark.parametrize("count", [0, 3, 5000, 400_003])
def test_a_copy_is_made_in_the_same_pass(count: int) -> None:
    tensor = torch.randn(count)
    data = np.full(count * 4, 7, np.uint8)
    same(statistics_of_bytes(data, torch.float32, source=memory_of(tensor)), data.tobytes(),
         torch.float32)  # fmt: skip
    assert data.tobytes() == bytes_of(tensor)
    other = torch.empty_like(tensor)
    found = ENGINE.measure(tensor.data_ptr(), count, 0, True, other.data_ptr())
    assert torch.equal(other, tensor)
    assert found == ENGINE.measure(tensor.data_ptr(), count, 0, True)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="denormals cannot be flushed here")
def test_numbers_that_the_program_flushes_to_zero_are_there() -> None:
    tensor = torch.tensor([1e-40, -1e-42, 1e-45, 0.0] * 20)
    expected = statistics(tensor)
    assert torch.set_flush_denormal(True)
    try:
        found = statistics(tensor)
        flushed = (tensor * 1.0 == 0).all().item()
    finally:
        torch.set_flush_denormal(False)
    assert flushed  # afterwards as well as before
    assert found == expected
    assert found["zeros"] == 20


def test_without_a_digest_there_is_none() -> None:
    tensor = torch.randn(1000)
    found = ENGINE.measure(tensor.data_ptr(), 1000, 0, False)
    assert "digest" not in found
    assert {**found, "digest": f"{checksum(memory_of(tensor)):016x}"} == statistics(tensor)


def test_the_engine_is_used_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("NumPy was asked")

    tensor = torch.randn(3, 4)
    expected = numpy_statistics(memory_of(tensor), tensor.dtype)
    monkeypatch.setattr(tensor_statistics, "numpy_statistics", fail)
    for found in (statistics(tensor), statistics_of_bytes(memory_of(tensor), tensor.dtype)):
        assert found["digest"] == expected["digest"]
    with pytest.raises(AssertionError, match="NumPy was asked"):
        statistics(tensor.to(torch.float8_e5m2))
    monkeypatch.setattr(tensor_statistics, "native", lambda: None)
    with pytest.raises(AssertionError, match="NumPy was asked"):
        statistics(tensor)


def test_arguments_that_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match=r"99 is no type of elements"):
        ENGINE.measure(0, 0, 99, True)
    with pytest.raises(ValueError, match="1 sizes and 2 strides"):
        ENGINE.measure_view(0, 0, [0], [1, 1], True)
    with pytest.raises(ValueError, match="4 bytes cannot be copied into 8"):
        ENGINE.measure_bytes(bytearray(8), 0, True, b"1234")
    with pytest.raises(BufferError):
        ENGINE.measure_bytes(b"12345678", 0, True, b"12345678")
    with pytest.raises(TypeError):
        ENGINE.measure_view(0, 0, ["a"], [1], True)
    with pytest.raises(TypeError):
        ENGINE.measure_bytes(b"")


def test_the_instructions_have_a_name(instructions: str) -> None:
    assert ENGINE.instruction_set() == instructions
    assert not ENGINE.use_instruction_set("mmx")
    assert ENGINE.instruction_set() == instructions
    assert ENGINE.use_instruction_set(None)
    assert ENGINE.instruction_set() == SETS[-1]


def test_every_reference_is_given_back() -> None:
    data = np.random.default_rng(0).bytes(4000)
    view = memoryview(data)
    before = sys.getrefcount(view)
    blocks = []
    for _ in range(3):
        for _ in range(2000):
            ENGINE.measure_bytes(view, 0, True)
            ENGINE.elements()
        blocks.append(sys.getallocatedblocks())
    assert sys.getrefcount(view) == before
    assert blocks[-1] - blocks[0] < 500
