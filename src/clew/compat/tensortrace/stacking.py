"""TensorTracer's ready callbacks: the values of a variable as one tensor.

They take a result, or the lists of the README's interface. There the iterations and ranks are
stacked as well, so that `iterations[0][n, w, g]` and `ranks[0][n, w]` are those of
`values[0][n, w, g]`; where ragged ones are filled up, the iteration is 0 and the rank -1.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from clew.compat.tensortrace.variable import row_of, stacked_facts


def stack_tensors(
    name: str, results: Any, iterations: list[Any] | None = None, ranks: list[Any] | None = None
) -> None:
    """Stack values of one shape along a new first dimension."""
    _replace(_stacked, results, iterations, ranks)


def stack_padded_tensors(
    name: str, results: Any, iterations: list[Any] | None = None, ranks: list[Any] | None = None
) -> None:
    """Stack values of any shapes: aligned at their last dimensions, zeros at the end of each."""
    _replace(_padded, results, iterations, ranks)


def _replace(
    stack: Any, results: Any, iterations: list[Any] | None, ranks: list[Any] | None
) -> None:
    if iterations is None:
        results.values = stack(results.values)
        return
    results[:] = [stack(results)]  # first: it may fail
    iterations[:] = [stacked_facts(iterations)]
    if ranks is not None:
        ranks[:] = [stacked_facts(ranks, padding=-1)]


def _tensors(values: Any) -> list[Tensor]:
    tensors = [torch.as_tensor(value) for value in values]
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors), torch.bool)
    return [tensor.to(dtype) for tensor in tensors]


def _stacked(values: Any) -> Tensor:
    return torch.stack(_tensors(values)) if len(values) else torch.tensor([])


def _padded(values: Any) -> Tensor:
    tensors = _tensors(values)
    if not tensors:
        return torch.tensor([])
    ndim = max(tensor.ndim for tensor in tensors)
    tensors = [tensor.reshape((1,) * (ndim - tensor.ndim) + tensor.shape) for tensor in tensors]
    shape = [max(tensor.shape[axis] for tensor in tensors) for axis in range(ndim)]
    result = tensors[0].new_zeros((len(tensors), *shape))
    for number, tensor in enumerate(tensors):
        result[row_of(number, tensor.shape)] = tensor
    return result
