"""The native fingerprints are those of NumPy, whatever the elements, the layout, the processor."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.events.fingerprint import packed_fingerprint
from clew.native.loading import load, why_not

if load() is None:
    pytest.skip(f"no native engine: {why_not()}", allow_module_level=True)

ENGINE: Any = load()
ELEMENTS: dict[str, int] = ENGINE.elements()
SETS = [name for name in ("scalar", "avx2", "avx512") if ENGINE.use_instruction_set(name)]
ENGINE.use_instruction_set(None)

# Rows of every kind: all axes in one, a part of one axis, several indices of an axis.
SHAPES = [
    (), (0,), (1,), (3, 0, 2), (5,), (33,), (1500,), (7, 1031), (3, 5000), (400, 3), (37, 41, 3),
    (2, 3, 65, 17), (1030, 2), (33, 1, 64), (2,) * 9, (2, 1, 3, 1, 2, 1, 5, 1, 2, 2), (100_003,),
]  # fmt: skip


@pytest.fixture(params=SETS, autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test with each set of instructions that this processor has."""
    assert ENGINE.use_instruction_set(request.param)
    yield request.param
    ENGINE.use_instruction_set(None)


def native(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    packed = ENGINE.fingerprint_view(
        tensor.data_ptr(), ELEMENTS[name], tensor.shape, tensor.stride()
    )
    return np.frombuffer(packed)


def expected(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return np.frombuffer(packed_fingerprint(tensor.to(torch.float64).numpy()))


def assert_same(tensor: torch.Tensor) -> None:
    found, wanted = native(tensor), expected(tensor)
    assert len(found) == len(wanted)
    head = 1 + int(wanted[0])
    assert found[:head].tolist() == wanted[:head].tolist()
    size = wanted[head + 1] if len(wanted) > head + 1 else 0.0
    np.testing.assert_allclose(found[head:], wanted[head:], rtol=1e-12, atol=1e-13 * size)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_that_rows_are_made_of_in_every_way(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(shape)
    assert_same(tensor)
    assert_same(tensor.bfloat16())
    if tensor.dim() > 1:
        assert_same(tensor.transpose(0, -1))


@pytest.mark.parametrize("name", list(ELEMENTS))
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_all_types_of_elements(name: str) -> None:
    torch.manual_seed(0)
    dtype: torch.dtype = getattr(torch, name)
    tensor = (torch.randn(3, 41, 19) * 9).abs()
    if dtype == torch.complex32:
        pairs = tensor.half()
        found = native(torch.view_as_complex(torch.stack([pairs, -pairs], -1).contiguous()))
        wanted = expected(torch.stack([pairs, -pairs], -1))
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-9)
    else:
        assert_same(tensor.to(dtype))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_views_of_every_kind(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    tensor = torch.arange(float(np.prod(shape))).reshape(shape).sin()
    order = data.draw(st.permutations(range(len(shape))))
    tensor = tensor.permute(order)
    axis = data.draw(st.integers(0, len(shape) - 1))
    step = data.draw(st.integers(1, 3))
    tensor = tensor.narrow(axis, 0, tensor.shape[axis])[
        (slice(None),) * axis + (slice(0, None, step),)
    ]
    if data.draw(st.booleans()):
        tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], 3, *tensor.shape[axis:])
    assert_same(tensor)


def test_numbers_that_are_not_finite_add_nothing() -> None:
    tensor = torch.randn(5, 300)
    for at, x in enumerate((nan, inf, -inf, nan)):
        tensor[at, 77 * at] = x
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert_same(tensor.to(dtype))


def test_sizes_and_strides_belong_together() -> None:
    with pytest.raises(ValueError, match="1 sizes and 2 strides"):
        ENGINE.fingerprint_view(0, 0, [1], [1, 1])
