"""Which rows of two aligned runs a page holds, and what it says of calls.

Input: `Aligned`. Output: row numbers, counts and texts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clew.analysis.diff.aligned import MATCHED, UNKNOWN, Aligned
from clew.analysis.diff.arguments import is_same
from clew.events.columns import Ints
from clew.events.vocabulary import MODULE
from clew.run.run import Run

_MOST_CALLS = 2_000
# The part of the rows before, and after, the place where two runs part that are always shown.
_NEXT_TO_IT = 8
_MOST_SETTINGS = 500
_LONGEST = 200


def shown_rows(rows: Aligned, most: int, wanted: Iterable[int]) -> Ints:
    """Choose the rows that fit: next to where the runs part, then what differs, then the nearest.

    What a chosen row is in is chosen too.
    """
    if len(rows) <= most:
        return np.arange(len(rows))
    parents = rows.parent
    leaf = np.ones(len(rows), dtype=bool)
    leaf[parents[parents >= 0]] = False
    away = np.abs(np.arange(len(rows)) - max(rows.first, 0))
    same = leaf & np.isin(rows.state, (MATCHED, UNKNOWN)) & (away > most // _NEXT_TO_IT)
    keep = np.zeros(len(rows), dtype=bool)
    keep[np.lexsort((away, same))[:most]] = True
    keep[list(wanted)] = True
    # A row comes after the one it is in, so one pass from the end finds all of those.
    for row in np.flatnonzero(keep)[::-1].tolist():
        above = int(parents[row])
        while above >= 0 and not keep[above]:
            keep[above] = True
            above = int(parents[above])
    return np.flatnonzero(keep)


def left_out_inside(rows: Aligned, shown: Ints) -> Ints:
    """Count for each chosen row the rows in it that were not chosen and are in no chosen row."""
    kept = np.zeros(len(rows), dtype=bool)
    kept[shown] = True
    counts = [0] * len(rows)
    nearest = np.where(kept, np.arange(len(rows)), rows.parent).tolist()
    for row in np.flatnonzero(~kept).tolist():
        above = nearest[row]
        # What a row is in comes before it, so its nearest chosen row is known.
        nearest[row] = nearest[above] if above >= 0 else -1
        if nearest[row] >= 0:
            counts[nearest[row]] += 1
    return np.array(counts, dtype=np.int64)[shown]


def call_order(rows: Aligned, run_b: Run) -> tuple[list[int], int]:
    """Return the rows of calls that both runs have and whose error is known, as they ended in `b`.

    Of very many, those around the first that differs, and how many were left out.
    """
    calls = np.flatnonzero((rows.a >= 0) & (rows.b >= 0) & ~np.isnan(rows.error))
    calls = calls[np.isin(rows.b[calls], run_b.rows(MODULE))]
    calls = calls[np.argsort(run_b.end[rows.b[calls]], kind="stable")]
    off = np.flatnonzero(rows.beyond[calls])
    begin = max(0, min(int(off[0]) - 50, len(calls) - _MOST_CALLS)) if len(off) else 0
    found: list[int] = calls[begin : begin + _MOST_CALLS].tolist()
    return found, len(calls) - len(found)


def different_settings(rows: Aligned, run_a: Run, run_b: Run) -> dict[int, list[list[str]]]:
    """Return settings that differ, by the rows of the first calls with a difference in them."""
    found: dict[int, list[list[str]]] = {}
    both = np.flatnonzero((rows.a >= 0) & (rows.b >= 0) & (rows.harm > 0))
    calls = both[np.isin(rows.b[both], run_b.rows(MODULE))]
    for row in calls[:_MOST_SETTINGS].tolist():
        mine, theirs = run_a.attributes(int(rows.a[row])), run_b.attributes(int(rows.b[row]))
        other = [
            [name, repr(mine[name])[:_LONGEST], repr(theirs[name])[:_LONGEST]]
            for name in mine
            if name in theirs and not is_same(mine[name], theirs[name])
        ]
        if other:
            found[row] = other
    return found
