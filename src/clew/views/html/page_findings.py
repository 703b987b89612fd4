"""Findings of a run as data for the page, and the choice of events that the page holds.

Input: a run, its findings, and a function from events to rows of the report. Output: plain data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from clew.analysis.findings import INFO, Finding
from clew.analysis.nonfinite import NonFiniteOrigin
from clew.analysis.tree.levels import top_rows
from clew.events.columns import Ints
from clew.events.model import Gap
from clew.events.vocabulary import COMPOSITE, FORWARD, MODULE
from clew.run.run import Run

_MOST_ORIGINS = 50
_MOST_GAPS = 200

# The row of an event in the report, -1 if it was left out.
RowOf = Callable[[int], int]


def finding_list(found: Iterable[Finding], row_of: RowOf) -> list[dict[str, Any]]:
    """Return the findings, each with the row to go to, -1 for none."""
    return [
        {
            "severity": finding.severity,
            "kind": finding.kind,
            "text": finding.text,
            "count": finding.count,
            "row": -1 if finding.event is None else row_of(finding.event.row),
        }
        for finding in found
    ]


def start_row(run: Run, found: Iterable[Finding], row_of: RowOf) -> int:
    """Return the row that the page opens at: the worst finding's, else the model's forward pass.

    What is only for information is no place to open at. The model is the one that was given to
    the trace; failing that, the outermost call with most events in it. -1 stands for an empty page.
    """
    for finding in found:
        if finding.event is not None and finding.severity != INFO:
            row = row_of(finding.event.row)
            if row >= 0:
                return row
    c = run.columns
    outermost = (c.kind == MODULE) & (run.parent_row < 0)
    forward = outermost & (run.phase == FORWARD)
    rows: list[int] = np.flatnonzero(forward if forward.any() else outermost).tolist()
    calls = [row for row in rows if row_of(row) >= 0]
    model = next((row for row in calls if c.modules[int(c.subject[row])].path == ""), None)
    if model is not None:
        return row_of(model)
    if calls:
        sizes = np.bincount(top_rows(run), minlength=len(run))[calls]
        return row_of(calls[int(np.argmax(sizes))])
    return next((row_of(row) for row in range(len(run)) if row_of(row) >= 0), -1)


def origin_list(origins: Sequence[NonFiniteOrigin], row_of: RowOf) -> list[dict[str, Any]]:
    """Return where NaN and Inf come from: the first of each kind."""
    counts: Counter[tuple[str, str]] = Counter()
    listed = []
    for origin in origins:
        counts[origin.kind, origin.severity] += 1
        if counts[origin.kind, origin.severity] <= _MOST_ORIGINS:
            listed.append(
                {
                    "kind": origin.kind,
                    "severity": origin.severity,
                    "what": origin.what,
                    "hint": origin.hint,
                    "row": row_of(origin.event.row),
                }
            )
    return listed


def gaps(listed: Iterable[Gap]) -> dict[str, Any]:
    """Return coverage gaps, each with its remedy."""
    all_gaps = list(listed)
    shown = [[g.what, g.where, g.why, g.remedy] for g in all_gaps[:_MOST_GAPS]]
    return {"total": len(all_gaps), "first": shown}


def kept_rows(run: Run, most: int, found: Iterable[Finding] = ()) -> Ints:
    """Choose the events that fit: first and last of each rank; findings, errors, their callers.

    Composites are left out: the page shows the ops in them.
    """
    shown = run.columns.kind != COMPOSITE
    if int(shown.sum()) <= most:
        return np.flatnonzero(shown)
    keep = shown.copy()
    share = max(most // len(run.ranks), 1)
    for rank in run.ranks:
        mine = np.flatnonzero(shown & (run.process == rank))
        keep[mine[share - share // 5 : max(len(mine) - share // 5, 0)]] = False
    keep |= run.columns.error >= 0
    keep[[finding.event.row for finding in found if finding.event is not None]] = True
    # A row begins after the one it lies in, so one pass from the end finds all callers.
    parents = run.parent_row
    for row in np.flatnonzero(keep)[::-1].tolist():
        above = int(parents[row])
        while above >= 0 and not keep[above]:
            keep[above] = True
            above = int(parents[above])
    return np.flatnonzero(keep & shown)
