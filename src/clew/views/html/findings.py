"""What a reader of a report should see first: the crash, values that are not finite, gaps.

In come readers and a way from events to rows of the report, out comes plain data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clew.address import matches_op
from clew.analysis.crash import failing_event
from clew.events.columns import Ints
from clew.events.model import Event, Gap, Value
from clew.events.records import OP, Kept
from clew.store.reader import Reader

_MOST_NONFINITE = 50
_MOST_GAPS = 200

# Ops whose result is whatever lay in memory before.
_UNINITIALISED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")

# The row of an event in the report, -1 if it was left out.
RowOf = Callable[[Reader, int], int]

# What was kept of each value of one rank, by its number.
AllKept = Mapping[int, Kept]


def crashes(readers: list[Reader], row_of: RowOf) -> list[dict[str, Any]]:
    """The exception that ended each rank, and the event it came from."""
    found = []
    for reader in readers:
        text = reader.columns.environment.get("crash")
        if text is not None:
            event = failing_event(reader)
            row = -1 if event is None else row_of(reader, event.row)
            found.append({"text": str(text), "row": row, "rank": reader.columns.rank})
    return found


def nonfinite(readers: list[Reader], kept: Sequence[AllKept], row_of: RowOf) -> dict[str, Any]:
    """Ops that made NaN or Inf out of finite inputs, as far as statistics were taken."""
    known = any(one.stats is not None for mine in kept for one in mine.values())
    found: list[dict[str, Any]] = []
    total = 0
    for reader, mine in zip(readers, kept, strict=True):
        for row, kind in _producers(reader, mine):
            total += 1
            if len(found) < _MOST_NONFINITE:
                found.append({"row": row_of(reader, row), "kind": kind})
    return {"known": known, "total": total, "first": found}


def gaps(listed: Iterable[Gap]) -> dict[str, Any]:
    """What was not seen, and what to do about it."""
    all_gaps = list(listed)
    shown = [[g.what, g.where, g.why, g.remedy] for g in all_gaps[:_MOST_GAPS]]
    return {"total": len(all_gaps), "first": shown}


def kept_rows(readers: list[Reader], most: int) -> list[Ints]:
    """Which events of each rank fit: the first ones and the last, crashes and their callers."""
    share = max(most // len(readers), 1)
    return [_kept_rows(reader, share) for reader in readers]


def _kept_rows(reader: Reader, most: int) -> Ints:
    count = len(reader)
    if count <= most:
        return np.arange(count)
    keep = np.zeros(count, dtype=bool)
    tail = most // 5
    keep[: most - tail] = True
    keep[count - tail :] = True
    keep |= reader.columns.error >= 0
    # A row begins after the one it lies in, so one pass from the end finds all callers.
    parents = reader.parent_row
    for row in np.flatnonzero(keep)[::-1].tolist():
        above = int(parents[row])
        while above >= 0 and not keep[above]:
            keep[above] = True
            above = int(parents[above])
    return np.flatnonzero(keep)


def _is_given(argument: Any, bad: dict[int, str]) -> bool:
    """Whether an argument is not finite itself, as the `-inf` of a mask is."""
    if isinstance(argument, Value):
        return argument.number in bad
    return isinstance(argument, float) and not math.isfinite(argument)


def _producers(reader: Reader, kept: AllKept) -> Iterable[tuple[int, str]]:
    """Rows of ops with a result that is not finite though all their tensors were."""
    c = reader.columns
    bad: dict[int, str] = {}
    for number, one in kept.items():
        stats = one.stats
        if stats is not None and (stats.get("nan") or stats.get("inf")):
            bad[number] = "NaN" if stats.get("nan") else "Inf"
    rows = {reader.row_of(int(c.producer[n])) for n in bad if c.producer[n] >= 0}
    for row in sorted(r for r in rows if r >= 0 and c.kind[r] == OP):
        event: Event = reader.event(row)
        if any(matches_op(name, event.name) for name in _UNINITIALISED):
            continue
        if not any(_is_given(given, bad) for given in event.arguments.values()):
            made = [bad[v.number] for v in event.outputs.values() if v.number in bad]
            if made:
                yield row, made[0]
