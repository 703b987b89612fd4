"""What happens to the values of an address on their way, and ready reductions for it.

`Callbacks` says what to keep of a value, or to make of many. The reductions work on tensors and on
NumPy arrays, by the methods both have, so nothing here needs torch.

>>> import numpy as np
>>> from clew import callbacks
>>> callbacks.mean(0)(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
[2.0, 3.0]
>>> callbacks.reducer("absmax")(np.array([1.0, -5.0])).item()
5.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from clew.errors import ClewError

Dims: TypeAlias = int | tuple[int, ...] | None
Reduction: TypeAlias = Callable[..., Any]
# Of the values of an address, those of a gather or of the whole run.
Collection: TypeAlias = Callable[[list[Any]], Any]

_ONLY = (None, "train", "eval")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What is made of the values of one address, and in which steps.

    `save` gets each value as it is, on its rank, and returns what to record: a function, or the
    name of a reduction. With `clew.trace(gather=N)`, `before_gather` gets the values of N steps on
    each rank, and `after_gather` on rank 0 those of all ranks, rank by rank. `end` gets the whole
    run's when the recording stops. A list they return is several values, anything else is one, and
    None is none. One that fails is listed in `Trace.coverage`; what it was given is kept then.

    `every=N` records the last of every N steps, `only` is `"train"` or `"eval"`; steps of either
    kind are counted apart. `with_address` calls `save(value, address=...)`: which of the addresses
    that a pattern stands for the value has. The lists that the others get tell the same, and the
    steps and ranks: they have `.address`, `.steps`, `.ordinals` and `.ranks`. With `keep=False` the
    values are for the callbacks alone: only what a gather or the end makes of them is recorded.

    >>> import torch, clew
    >>> model = torch.nn.Identity()
    >>> with clew.trace(model, callbacks={"": clew.Callbacks(save="max", every=2)}) as t:
    ...     for step in range(6):
    ...         y = model(torch.arange(3.0) + step)
    ...         step = t.step()
    >>> t.series("").stack().tolist()
    [3.0, 5.0, 7.0]
    """

    save: Reduction | str | None = None
    before_gather: Collection | None = None
    after_gather: Collection | None = None
    end: Collection | None = None
    every: int = 1
    only: str | None = None
    with_address: bool = False
    keep: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.save, str):
            object.__setattr__(self, "save", reducer(self.save))
        for name in ("save", "before_gather", "after_gather", "end"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ClewError(
                    f"Callbacks({name}={function!r}): give a function of the value"
                    f"{'s' if name != 'save' else ', or the name of a reduction'}"
                )
        if type(self.every) is not int or self.every < 1:
            raise ClewError(f"Callbacks(every={self.every!r}): give a whole number, 1 or more")
        if self.only not in _ONLY:
            raise ClewError(f"Callbacks(only={self.only!r}): give 'train', 'eval' or None")

    @property
    def is_for_gather(self) -> bool:
        """Return whether there is something to do when values are gathered."""
        return self.before_gather is not None or self.after_gather is not None

    def is_due(self, steps: Any, training: Callable[[], bool | None]) -> bool:
        """Return whether values of this step are wanted, by the steps so far and its kind."""
        return bool(steps.is_due(self.every, self.only, training()))


def mean(dim: Dims = None) -> Reduction:
    """Reduce to the mean over some dimensions, or over everything."""
    return lambda value: _real(value).mean(**_over(value, dim))


def std(dim: Dims = None) -> Reduction:
    """Reduce to the standard deviation (of the elements, not an estimate) over some dimensions."""

    def deviation(value: Any) -> Any:
        value = _real(value)
        if isinstance(value, np.ndarray):
            return value.std(axis=dim)
        return value.std(dim=dim, correction=0)

    return deviation


def norm(dim: Dims = None) -> Reduction:
    """Reduce to the Euclidean norm over some dimensions, or over everything."""

    def length(value: Any) -> Any:
        value = _real(value)
        return (value.abs() ** 2 if not _is_array(value) else abs(value) ** 2).sum(
            **_over(value, dim)
        ) ** 0.5

    return length


def absmax() -> Reduction:
    """Reduce to the largest absolute value."""
    return lambda value: abs(value).max()


def topk(k: int) -> Reduction:
    """Reduce to the k largest elements, in descending order."""

    def largest(value: Any) -> Any:
        flat = value.reshape(-1)
        if _is_array(value):
            return np.sort(flat)[::-1][:k].copy()
        return flat.topk(min(k, flat.numel())).values

    return largest


def histogram(bins: int = 64, low: float | None = None, high: float | None = None) -> Reduction:
    """Reduce to counts of the finite elements in `bins` equal steps from `low` to `high`."""

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
    """Stack values of one shape into one array along a new first axis."""
    return np.stack([as_array(value) for value in values])


def stack_padded(values: Sequence[Any], fill: int = 0) -> np.ndarray[Any, Any]:
    """Stack values of any shapes: aligned at the last axes, with `fill` at the end of each."""
    arrays = [as_array(value) for value in values]
    rank = max((a.ndim for a in arrays), default=0)
    lifted = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]
    size = tuple(max(a.shape[axis] for a in lifted) for axis in range(rank))
    dtype = np.result_type(*arrays) if arrays else float
    result = np.full((len(arrays), *size), fill, dtype=dtype)
    for row, array in enumerate(lifted):
        place: tuple[int | slice, ...] = (row, *(slice(0, n) for n in array.shape))
        result[place] = array
    return result


def deterministic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as drawing no random numbers: it costs less, as no generator is restored."""

    def drawing_none(value: Any, **facts: Any) -> Any:
        return function(value, **facts)

    return drawing_none


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a tensor, array or number as NumPy, bf16 and fp8 as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            value = value.numpy()
        except TypeError:  # a dtype that NumPy has not
            value = value.float().numpy()
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
    """Return the reduction that has a name."""
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
    """Return whole numbers as floating point, which has a mean."""
    if _is_array(value):
        return value if value.dtype.kind in "fc" else value.astype(np.float64)
    return value if value.is_floating_point() or value.is_complex() else value.double()
