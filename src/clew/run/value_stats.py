"""Statistics of values as columns, one row per value.

In comes what was kept of values, out come arrays: numbers that were not taken are NaN, counts -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.events.records import Kept

NUMBERS = ("min", "max", "mean", "std", "norm")
COUNTS = ("nan", "inf", "zeros", "count")

StatColumns: TypeAlias = dict[str, NDArray[Any]]


def stat_columns(kept: Mapping[int, Kept], count: int) -> StatColumns:
    """Give the statistics of the first `count` values as columns."""
    columns: StatColumns = {name: np.full(count, np.nan) for name in NUMBERS}
    columns |= {name: np.full(count, -1, dtype=np.int64) for name in COUNTS}
    whole = getattr(kept, "stat_columns", None)
    if whole is not None:
        numbers, found = whole()
        mine = (numbers >= 0) & (numbers < count)
        for name in COUNTS:
            columns[name][numbers[mine]] = 0
        for name, column in found.items():
            columns[name][numbers[mine]] = column[mine]
        return columns
    for number, one in kept.items():
        stats = one.stats
        if stats is None or not 0 <= number < count:
            continue
        for name in NUMBERS:
            taken = stats.get(name)
            if taken is not None:
                columns[name][number] = taken
        for name in COUNTS:
            columns[name][number] = stats.get(name, 0)
    return columns


def over_outputs(stats: StatColumns, values: NDArray[Any], event: NDArray[Any], count: int) -> Any:
    """Join the statistics of each event's results: extremes and sums over all of them.

    `values` are rows of `stats`, `event` says whose result each is, of `count` events.
    """
    known = stats["count"][values] >= 0
    values, event = values[known], event[known]
    joined: StatColumns = {
        "min": np.full(count, np.inf), "max": np.full(count, -np.inf),
        "nan": np.full(count, -1, dtype=np.int64), "inf": np.full(count, -1, dtype=np.int64),
    }  # fmt: skip
    for name, extreme in (("min", np.fmin), ("max", np.fmax)):
        taken = stats[name][values]
        finite = ~np.isnan(taken)
        extreme.at(joined[name], event[finite], taken[finite])
        joined[name][np.isinf(joined[name])] = np.nan
    for name in ("nan", "inf"):
        joined[name][event] = 0
        np.add.at(joined[name], event, stats[name][values])
    return joined
