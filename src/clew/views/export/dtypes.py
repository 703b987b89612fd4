"""Dtypes of exported data: as recorded, one that holds all of it exactly, or as asked for.

NumPy, HDF5 and Zarr lack bf16 and fp8: those are stored as float32, which represents them exactly.
Nothing else changes unless `dtype=` is given. Then only precision may be lost: an integer that does
not fit, a float that becomes infinite or a complex number that loses its imaginary part is an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from clew.errors import ClewError
from clew.events.tensor_text import short_dtype

DType = np.dtype[Any]
Array = np.ndarray[Any, Any]

# `dtype=` is one dtype for all floating-point data, or a dict: recorded dtype → dtype.
Asked = str | Mapping[str, str] | None


class Dtypes:
    """Dtypes that an export was asked for."""

    def __init__(self, asked: Asked) -> None:
        self._floating: DType | None = None
        self._by_name: dict[str, DType] = {}
        if isinstance(asked, str):
            self._floating = _known(asked)
            if self._floating.kind != "f":
                raise ClewError(
                    f"dtype={asked!r} is not a floating-point type; integers and complex numbers "
                    f"are converted only by name, as in dtype={{'int64': {asked!r}}}"
                )
        elif asked is not None:
            self._by_name = {_recorded(name): _known(target) for name, target in asked.items()}

    def of(self, recorded: str, array_dtype: DType) -> DType:
        """Return the dtype for data recorded as `recorded` that NumPy holds as `array_dtype`."""
        if array_dtype.kind not in "biufc":
            raise ClewError(f"it is {recorded}, not numbers, which these files hold; json has it")
        if recorded in self._by_name:
            return self._by_name[recorded]
        if self._floating is not None and array_dtype.kind == "f":
            return self._floating
        return array_dtype


def _recorded(name: str) -> str:
    # Every dtype but the quantised ones has a short form; a name without one is a typing error.
    if short_dtype(name) == name and not name.startswith("q"):
        raise ClewError(f"{name!r} is not a dtype that torch records, such as 'int64'")
    return name


def _known(name: str) -> DType:
    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biufc":
        raise ClewError(f"dtype={name!r} is not a NumPy number type, such as 'float32' or 'int64'")
    return found


def common(dtypes: Iterable[DType]) -> DType | None:
    """Return one dtype that holds all of them exactly, None if there is none."""
    kinds = set(dtypes)
    if len(kinds) == 1:
        return kinds.pop()
    both = np.result_type(*kinds)
    # NumPy would promote int64 and float32 to float64, where 2**53 + 1 is 2**53.
    exact = all(_rank(d) == _rank(both) for d in kinds)
    return both if exact else None


def _rank(dtype: DType) -> str:
    return {"i": "integer", "u": "integer", "f": "real", "c": "real"}.get(dtype.kind, dtype.kind)


def cast(array: Array, target: DType, what: str) -> Array:
    """Return the array in another dtype; raise if that changes more than the precision."""
    if array.dtype == target:
        return array
    if array.dtype.kind == "c" and target.kind != "c":
        raise ClewError(f"{what} is complex; {target} would lose its imaginary part")
    with np.errstate(all="ignore"):
        result = array.astype(target)
    if array.dtype.kind in "fc" and target.kind in "fc":
        kept = np.isfinite(result) == np.isfinite(array)
    else:
        kept = np.asarray(_same(result, array))
    if not kept.all():
        worst = array[~kept].flat[0]
        raise ClewError(f"{what} holds {worst!r}, which {target} cannot hold; leave dtype= out")
    return result


def _same(result: Array, array: Array) -> object:
    """Return where two arrays hold the same numbers, in Python's exact arithmetic if needed."""
    with np.errstate(all="ignore"):
        back = result.astype(array.dtype)
    same = back == array
    if result.dtype.kind in "iu" and array.dtype.kind in "iu":
        same &= (result < 0) == (array < 0)
    elif result.dtype.kind in "iu" and array.dtype.kind == "f":
        # Casting back a number out of range is undefined: it may wrap to the original number.
        limits = np.iinfo(result.dtype)
        same &= (array >= float(limits.min)) & (array < float(limits.max) + 1)
    return same
