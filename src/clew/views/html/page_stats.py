"""Statistics for the charts of the page: recorded ones, and those of data kept without any.

Input: a run and the values that a chart is of. Output: columns as `Run.stats` has them.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Ints
from clew.events.tensor_text import stats_of
from clew.run.run import Run
from clew.run.value import numbers_in
from clew.run.value_stats import NUMBERS, StatColumns, numbers_with_data

# Elements that are read of data without statistics.
_MOST = 50_000_000


def stats_for(run: Run, values: Ints) -> StatColumns:
    """Return statistics of all values; of the given ones also where only their data was kept."""
    kept = run.columns.kept
    lacking = np.intersect1d(numbers_with_data(kept), values[run.stats["count"][values] < 0])
    if not len(lacking):
        return run.stats
    stats = {name: column.copy() for name, column in run.stats.items()}
    room = _MOST
    for number in lacking.tolist():
        array = numbers_in(kept[number])
        if array is None:
            continue
        room -= array.size
        if room < 0:
            break
        for name, figure in stats_of(array).to_dict().items():
            if name in stats:
                missing = np.nan if name in NUMBERS else 0
                stats[name][number] = missing if figure is None else figure
    return stats
