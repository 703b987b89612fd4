"""Memory of copies is used again, and never while somebody has the copy."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from clew.keep import buffers
from clew.keep.buffers import Buffers

SIZE = 300_000

HOLDERS: dict[str, Callable[[Any], Any]] = {
    "the array": lambda array: array,
    "a part of it": lambda array: array[10:20],
    "other numbers on it": lambda array: array.view(np.float32)[1:],
    "a memoryview": lambda array: memoryview(array).cast("B"),
    "an array of a memoryview": lambda array: np.frombuffer(memoryview(array)[8:], np.uint8),
    "a tensor": lambda array: torch.from_numpy(array).view(torch.float32),
}


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_that_nobody_has_is_used_again() -> None:
    lender = Buffers()
    first = address(lender.take(SIZE))
    assert address(lender.take(SIZE - 1000)) == first


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_has_is_not(holder: str) -> None:
    lender = Buffers()
    array = lender.take(SIZE)
    array[:] = 7
    held, first = HOLDERS[holder](array), address(array)
    del array
    other = lender.take(SIZE)
    other[:] = 9
    assert address(other) != first
    assert 9 not in np.frombuffer(bytes(memoryview(np.asarray(held))), np.uint8)
    del held
    assert address(lender.take(SIZE)) == first


def test_memory_comes_back_from_other_threads() -> None:
    lender = Buffers()
    handed = [lender.take(SIZE)]
    first = address(handed[0])
    thread = threading.Thread(target=handed.clear)
    thread.start()
    thread.join()
    assert address(lender.take(SIZE)) == first


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_MOST_IDLE", 1 << 20)
    lender = Buffers()
    for round_ in range(4):
        taken = [lender.take(SIZE + round_ * (100 << 10)) for _ in range(8)]
        del taken
        lender.take(1)
        assert sum(map(sum, ([len(m) for m in idle] for idle in lender._idle.values()))) <= 1 << 20


def test_no_python_code_runs_when_an_array_is_gone() -> None:
    """Python drops what a signal handler raises there."""
    lender, called = Buffers(), list[str]()
    array: Any = lender.take(10)
    sys.setprofile(lambda frame, what, argument: called.append(f"{what} {frame.f_code.co_name}"))
    array = None
    sys.setprofile(None)
    assert array is None
    assert [one for one in called if one.startswith("call ")] == []
