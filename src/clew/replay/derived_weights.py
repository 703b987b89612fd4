"""Which parameters of a model were computed from those of another, not only put together of them.

Input: tensors of two models, with the numbers of one dtype. Output: those of the first that have
other numbers. A packed projection has rows of several tensors, as they are, in any order. A norm
that is folded into a factor has numbers of its own, which are rounded as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[Any]


def derived(tensors: Sequence[Tensor], reference: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that are not put together of rows, columns or parts of the others."""
    if not tensors:
        return []
    # A hash of each row, as the rows themselves would take as much memory as the model.
    known = {hash(line) for one in reference for line in _lines(_numbers(one))}
    flat = [_numbers(one).ravel() for one in reference if one.dim() <= 1]
    return [one for one in tensors if not _is_put_together(_numbers(one), known, flat)]


def _numbers(tensor: Tensor) -> Numbers:
    found: Numbers = tensor.detach().to("cpu").numpy()
    return found


def _is_put_together(numbers: Numbers, known: set[int], flat: list[Numbers]) -> bool:
    if numbers.ndim <= 1:
        return _is_part(numbers.ravel(), flat) or _is_joined(numbers.ravel(), flat)
    return any(all(hash(row.tobytes()) in known for row in table) for table in _tables(numbers))


def _lines(numbers: Numbers) -> Iterator[bytes]:
    """Give the rows and columns of a tensor that has such."""
    for table in _tables(numbers):
        yield from (row.tobytes() for row in table)


def _tables(numbers: Numbers) -> Iterable[Numbers]:
    """Return a tensor as a table and turned, its axes after the first taken together."""
    if numbers.ndim < 2 or not numbers.size:
        return ()
    table = numbers.reshape(len(numbers), -1)
    return table, table.T


def _is_part(numbers: Numbers, wholes: list[Numbers]) -> bool:
    """Return whether some tensor has these numbers in a row."""
    return any(numbers.tobytes() in one.tobytes() for one in wholes if one.size >= numbers.size)


def _is_joined(numbers: Numbers, parts: list[Numbers]) -> bool:
    """Return whether numbers are those of other tensors, one after another."""
    while numbers.size:
        fitting = (
            one.size
            for one in parts
            if 0 < one.size <= numbers.size and np.array_equal(one, numbers[: one.size])
        )
        length = max(fitting, default=0)
        if not length:
            return False
        numbers = numbers[length:]
    return True
