"""Module calls by step for the page: a row per module in depth order, a column per step.

Input: a run and the rows of its events in the report. Output: columns `layers.*` with an entry for
each module, step and rank that ran, and a head with what the entries are of. Long runs have several
steps in a column. Of several calls in an entry the largest figure counts, shares are of all of
them, and the time is that of a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.events.columns import Ints
from clew.events.vocabulary import MODULE, RECOMPUTE
from clew.run.run import Run
from clew.views.html.page_stats import stats_for
from clew.views.html.payload import Packer

_COLUMNS = 400
_LARGEST = ("std", "max", "norm")
_COUNTS = ("nan", "inf", "zeros", "count")


def pack_layers(run: Run, new_row: Ints, packer: Packer, prefix: str) -> dict[str, Any]:
    """Pack the figures of module calls; return modules, steps and ranks.

    `new_row` has for each event its row in the report, -1 if it was left out.
    """
    calls = np.flatnonzero((run.columns.kind == MODULE) & (run.phase != RECOMPUTE))
    modules, of_module = _modules(run)
    module = of_module[run.columns.subject[calls]]
    # A call begins before those inside it, so the order of first calls is that of depth.
    codes, first, path = np.unique(module, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    codes, first, path = codes[order], calls[first[order]], place[path]
    columns, column = _columns(run.step[calls])
    figures = _figures(run, calls)
    bad = (figures["nan"][calls] > 0) | (figures["inf"][calls] > 0)
    # Calls of one entry follow one another, those with NaN or Inf first.
    order = np.lexsort((calls, ~bad, column, path, run.rank[calls]))
    keys = np.stack([run.rank[calls], path, column])[:, order]
    starts = np.flatnonzero(np.append(True, (np.diff(keys) != 0).any(axis=0))[: len(order)])
    calls = calls[order]
    figures["step"] = run.step
    _pack_entries(figures, calls, starts, keys[:, starts], new_row, packer, f"{prefix}layers.")
    return {
        "paths": [modules[code][0] for code in codes.tolist()],
        "classes": [modules[code][1] for code in codes.tolist()],
        "depths": _depths(run, first),
        "columns": columns,
        "ranks": np.unique(keys[0]).tolist(),
        "taken": bool((figures["count"][calls] > 0).any()),
    }


def _columns(step: Ints) -> tuple[list[list[int]], Ints]:
    """Return first and last step of each column, and the column of each call."""
    steps, at = np.unique(step, return_inverse=True)
    each = -(-len(steps) // _COLUMNS)
    starts = np.arange(0, len(steps), max(each, 1))
    ends = np.append(starts[1:], len(steps)) - 1
    listed = np.stack([steps[starts], steps[ends]], axis=1).tolist() if len(steps) else []
    return listed, at // max(each, 1)


def _modules(run: Run) -> tuple[list[tuple[str, str]], Ints]:
    """Return paths and classes of modules, and the number of each module of the tables.

    A wrapper and the model in it share a path.
    """
    numbers: dict[tuple[str, str], int] = {}
    of_module = [
        numbers.setdefault((module.path, module.cls), len(numbers))
        for module in run.columns.modules
    ]
    return list(numbers), np.array(of_module or [0], dtype=np.int64)


def _depths(run: Run, first: Ints) -> list[int]:
    """Return in how many other calls the first call of each module lies."""
    depths = []
    for row in first.tolist():
        above, depth = int(run.parent_row[row]), 0
        while above >= 0:
            above, depth = int(run.parent_row[above]), depth + 1
        depths.append(depth)
    return depths


def _figures(run: Run, calls: Ints) -> dict[str, NDArray[Any]]:
    """Return figures of the results of calls: of the first, and counts over all of them."""
    tensors = run.tensors
    is_call = np.zeros(len(run), dtype=bool)
    is_call[calls] = True
    given = tensors.is_output & is_call[tensors.event]
    stats = stats_for(run, tensors.value[given])
    known = given & (stats["count"][tensors.value] >= 0)
    event, value = tensors.event[known], tensors.value[known]
    is_first = np.append(True, np.diff(event) != 0)[: len(event)]
    found: dict[str, NDArray[Any]] = {
        name: np.bincount(event, stats[name][value], len(run)) for name in _COUNTS
    }
    event, value = event[is_first], value[is_first]
    extreme = np.fmax(np.abs(stats["min"][value]), np.abs(stats["max"][value]))
    for name, column in (
        ("std", stats["std"][value]), ("max", extreme), ("norm", stats["norm"][value]),
    ):  # fmt: skip
        found[name] = np.full(len(run), np.nan)
        found[name][event] = column
    found["time"] = np.where(run.end >= 0, run.end - run.start, 0)
    return found


def _pack_entries(
    figures: dict[str, NDArray[Any]],
    calls: Ints,
    starts: Ints,
    keys: Ints,
    new_row: Ints,
    packer: Packer,
    prefix: str,
) -> None:
    """Pack the entries, which begin at `starts` of the ordered calls."""
    for name, key in zip(("rank", "path", "column"), keys, strict=True):
        packer.add(prefix + name, key)
    packer.add(prefix + "event", new_row[calls[starts]] + 1)
    packer.add(prefix + "calls", np.diff(np.append(starts, len(calls))))
    for name in _LARGEST:
        packer.add(prefix + name, _joined(np.fmax, figures[name][calls], starts))
    count = _joined(np.add, figures["count"][calls], starts)
    packer.add(prefix + "taken", count > 0)
    for name in ("nan", "inf", "zeros"):
        share = _joined(np.add, figures[name][calls], starts) / np.maximum(count, 1)
        packer.add(prefix + name, share)
    entry = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(calls))))
    steps = np.unique(np.stack([entry, figures["step"][calls]]), axis=1)[0]
    steps_of = np.maximum(np.bincount(steps, minlength=len(starts)), 1)
    packer.add(prefix + "time", _joined(np.add, figures["time"][calls], starts) / steps_of)


def _joined(join: np.ufunc, column: NDArray[Any], starts: Ints) -> NDArray[Any]:
    joined = join.reduceat(column, starts) if len(starts) else column[:0]
    most = np.finfo(np.float32).max
    return np.clip(joined, -most, most).astype(np.float32)
