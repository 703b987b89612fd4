"""Statistics of values as columns, one row per value.

Input: the statistics and data kept of values. Output: arrays in which missing numbers are NaN,
missing counts -1; and digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.events.vocabulary import Kept

NUMBERS = ("min", "max", "mean", "std", "norm")
COUNTS = ("nan", "inf", "zeros", "count")

StatColumns: TypeAlias = dict[str, NDArray[Any]]

_MISSING: dict[str, float] = dict.fromkeys(NUMBERS, np.nan) | dict.fromkeys(COUNTS, 0)
_IN_ORDER = itemgetter(*_MISSING)


def stat_columns(kept: Mapping[int, Kept], count: int) -> StatColumns:
    """Return the statistics of the first `count` values as columns."""
    whole = getattr(kept, "stat_columns", None)
    numbers, found = _listed(kept) if whole is None else whole()
    columns: StatColumns = {name: np.full(count, np.nan) for name in NUMBERS}
    if np.array_equal(numbers, np.arange(count)):
        columns |= {name: np.zeros(count, dtype=np.int64) for name in COUNTS}
        for name, column in found.items():
            columns[name] = np.ascontiguousarray(column, columns[name].dtype)
        return columns
    columns |= {name: np.full(count, -1, dtype=np.int64) for name in COUNTS}
    mine = (numbers >= 0) & (numbers < count)
    for name in COUNTS:
        columns[name][numbers[mine]] = 0
    for name, column in found.items():
        columns[name][numbers[mine]] = column[mine]
    return columns


def _listed(kept: Mapping[int, Kept]) -> tuple[NDArray[Any], StatColumns]:
    """Return the values that have statistics, and those as columns."""
    taken = {number: one.stats for number, one in kept.items() if one.stats is not None}
    numbers = np.fromiter(taken, np.int64, len(taken))
    size = len(taken) * len(_MISSING)
    try:
        flat = np.fromiter(chain.from_iterable(map(_IN_ORDER, taken.values())), np.float64, size)
    except (KeyError, TypeError):
        # A tensor without elements has no mean.
        whole = (_MISSING | {n: s for n, s in o.items() if s is not None} for o in taken.values())
        flat = np.fromiter(chain.from_iterable(map(_IN_ORDER, whole)), np.float64, size)
    columns = dict(zip(_MISSING, flat.reshape(len(taken), -1).T, strict=True)) if size else {}
    return numbers, columns


def numbers_with_data(kept: Mapping[int, Kept]) -> NDArray[Any]:
    """Return the values whose data was kept."""
    listed = getattr(kept, "with_data", None)
    if listed is not None:
        numbers: NDArray[Any] = listed()
        return numbers
    return np.array([n for n, one in kept.items() if one.payload is not None], dtype=np.int64)


def over_outputs(
    stats: StatColumns, values: NDArray[Any], event: NDArray[Any], count: int
) -> StatColumns:
    """Join the statistics of each event's results: extremes and sums over all of them.

    `values` are rows of `stats`; `event` has the event of each result, of `count` events in order.
    """
    known = stats["count"][values] >= 0
    values, event = values[known], event[known]
    joined: StatColumns = {
        "min": np.full(count, np.nan), "max": np.full(count, np.nan),
        "nan": np.full(count, -1, dtype=np.int64), "inf": np.full(count, -1, dtype=np.int64),
    }  # fmt: skip
    first = np.flatnonzero(np.append(True, np.diff(event) != 0)[: len(event)])
    if not len(first):
        return joined
    rows = event[first]
    for name, join in (("min", np.fmin), ("max", np.fmax), ("nan", np.add), ("inf", np.add)):
        joined[name][rows] = join.reduceat(stats[name][values], first)
    for name in ("min", "max"):
        joined[name][np.isinf(joined[name])] = np.nan
    return joined


def digests(kept: Mapping[int, Kept], count: int) -> list[str | None]:
    """Return the digests of the first `count` values, None where none was recorded."""
    whole = getattr(kept, "digests", None)
    found: list[str | None] = [None] * count
    pairs = (
        ((n, one.stats.get("digest")) for n, one in kept.items() if one.stats is not None)
        if whole is None
        else whole()
    )
    for number, digest in pairs:
        if 0 <= number < count:
            found[number] = digest
    return found
