"""Ready reductions for taps and callbacks: less than a whole value, or many values as one.

Each works on tensors and on NumPy arrays, by the methods both have, so none of them needs torch.

>>> import numpy as np
>>> from clew import callbacks
>>> callbacks.mean(0)(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
[2.0, 3.0]
>>> callbacks.reducer("absmax")(np.array([1.0, -5.0])).item()
5.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.errors import ClewError

Dims: TypeAlias = int | tuple[int, ...] | None
Reduction: TypeAlias = Callable[[Any], Any]


def mean(dim: Dims = None) -> Reduction:
    """The mean over some dimensions, or over everything."""
    return lambda value: _real(value).mean(**_over(value, dim))


def std(dim: Dims = None) -> Reduction:
    """The standard deviation (of the elements, not an estimate) over some dimensions."""

    def deviation(value: Any) -> Any:
        value = _real(value)
        if isinstance(value, np.ndarray):
            return value.std(axis=dim)
        return value.std(dim=dim, correction=0)

    return deviation


def norm(dim: Dims = None) -> Reduction:
    """The Euclidean norm over some dimensions, or over everything."""

    def length(value: Any) -> Any:
        value = _real(value)
        return (value.abs() ** 2 if not _is_array(value) else abs(value) ** 2).sum(
            **_over(value, dim)
        ) ** 0.5

    return length


def absmax() -> Reduction:
    """The largest absolute value."""
    return lambda value: abs(value).max()


def topk(k: int) -> Reduction:
    """The k largest elements, in descending order."""

    def largest(value: Any) -> Any:
        flat = value.reshape(-1)
        if _is_array(value):
            return np.sort(flat)[::-1][:k].copy()
        return flat.topk(min(k, flat.numel())).values

    return largest


def histogram(bins: int = 64, low: float | None = None, high: float | None = None) -> Reduction:
    """Counts of the finite elements in `bins` equal steps from `low` to `high`."""

    def counts(value: Any) -> Any:
        array = value if _is_array(value) else _real(value).double().cpu().numpy()
        array = array[np.isfinite(array)]
        span = (
            low if low is not None else float(array.min(initial=0.0)),
            high if high is not None else float(array.max(initial=1.0)),
        )
        return np.histogram(array, bins=bins, range=span)[0]

    return counts


def stack(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Values of one shape as one array along a new first axis."""
    return np.stack([as_array(value) for value in values])


def stack_padded(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Values of any shapes as one array: aligned at the last axes, zeros at the end of each."""
    arrays = [as_array(value) for value in values]
    rank = max((a.ndim for a in arrays), default=0)
    lifted = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]
    size = tuple(max(a.shape[axis] for a in lifted) for axis in range(rank))
    result = np.zeros((len(arrays), *size), dtype=np.result_type(*arrays) if arrays else float)
    for row, array in zip(result, lifted, strict=True):
        row[tuple(slice(0, n) for n in array.shape)] = array
    return result


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor, array or number as NumPy, bf16 and fp8 as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        floating = value.dtype.is_floating_point
        value = (value.float() if floating and value.element_size() < 4 else value).numpy()
    return np.asarray(value)


_BY_NAME: dict[str, Reduction] = {
    "mean": mean(),
    "std": std(),
    "norm": norm(),
    "absmax": absmax(),
    "min": lambda value: value.min(),
    "max": lambda value: value.max(),
    "sum": lambda value: value.sum(),
}


def reducer(name: str) -> Reduction:
    """The reduction of a name."""
    found = _BY_NAME.get(name)
    if found is None:
        raise ClewError(f"no reduction is called {name!r}; there are: {', '.join(_BY_NAME)}")
    return found


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _over(value: Any, dim: Dims) -> dict[str, Any]:
    if dim is None:
        return {}
    return {"axis" if _is_array(value) else "dim": dim}


def _real(value: Any) -> Any:
    """Whole numbers as floating point, which has a mean."""
    if _is_array(value):
        return value if value.dtype.kind in "fc" else value.astype(np.float64)
    return value if value.is_floating_point() or value.is_complex() else value.double()
