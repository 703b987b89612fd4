"""Gradients by depth for the page: an entry for each parameter in each step.

Input: a run and the rows of its events in the report. Output: columns `gradients.*` and a head, or
a sentence on how to record gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.address import written
from clew.analysis.health.training_facts import (
    NO_STATISTICS,
    RECORD_GRADIENTS,
    ParameterTable,
    TrainingFacts,
)
from clew.analysis.health.update_rules import update_norms
from clew.events.columns import Ints
from clew.run.run import Run
from clew.run.value_stats import StatColumns
from clew.views.html.page_stats import stats_for
from clew.views.html.payload import Packer

# Entries of a page; of longer runs some steps, evenly spread, are taken.
_MOST = 200_000


def pack_gradients(run: Run, new_row: Ints, packer: Packer, prefix: str) -> dict[str, Any]:
    """Pack the sizes of gradients; return parameters and steps, or why there are none.

    `new_row` has for each event its row in the report, -1 if it was left out.
    """
    facts = TrainingFacts(run)
    if not len(facts.gradients):
        return {"why": f"No gradients of parameters in this trace: {RECORD_GRADIENTS}."}
    tables = (facts.gradients, facts.captured_gradients, facts.weights, facts.updates)
    stats = stats_for(run, np.concatenate([table.value for table in tables]))
    with_stats = [one for one in tables[:2] if (stats["count"][one.value] >= 0).any()]
    if not with_stats:
        return {"why": f"Gradients were seen, but {NO_STATISTICS}."}
    table = with_stats[0]
    steps = np.unique(table.step)
    kept = _spread(steps, _MOST * len(steps) // max(len(table), 1))
    table = table.only(np.isin(table.step, kept))
    names = _by_depth(facts, table)
    place = np.full(len(facts.names), -1, dtype=np.int64)
    place[names] = np.arange(len(names))
    figures = _figures(facts, table, stats)
    whole = f"{prefix}gradients."
    packer.add(whole + "name", place[table.name])
    packer.add(whole + "step", np.searchsorted(kept, table.step))
    packer.add(whole + "rank", table.rank)
    packer.add(whole + "event", new_row[table.row] + 1)
    packer.add(whole + "taken", stats["count"][table.value] >= 0)
    for name, column in figures.items():
        packer.add(whole + name, _floats(column))
    return {
        "why": "",
        "names": [facts.names[number] for number in names.tolist()],
        "steps": kept.tolist(),
        "left_out": len(steps) - len(kept),
        "ranks": np.unique(table.rank).tolist(),
        "updates": bool(np.isfinite(figures["update"]).any()),
    }


def _figures(
    facts: TrainingFacts, table: ParameterTable, stats: StatColumns
) -> dict[str, NDArray[Any]]:
    """Return figures of each gradient, of its parameter, and of what the step added to that."""
    norm, count = stats["norm"], np.maximum(stats["count"][table.value], 1)
    weights = facts.weights
    sizes = dict(zip(_keys(weights), norm[weights.value].tolist(), strict=True))
    return {
        "norm": norm[table.value],
        "rms": norm[table.value] / np.sqrt(count),
        "max": np.fmax(np.abs(stats["min"][table.value]), np.abs(stats["max"][table.value])),
        "weight": _looked_up(sizes, table),
        "update": _looked_up(update_norms(facts, norm), table),
        **{name: stats[name][table.value] / count for name in ("nan", "inf", "zeros")},
    }


def _spread(steps: Ints, most: int) -> Ints:
    """Return no more than so many steps, the first and the last among them."""
    if len(steps) <= most:
        return steps
    return np.unique(steps[np.linspace(0, len(steps) - 1, max(most, 2)).astype(np.int64)])


def _by_depth(facts: TrainingFacts, table: ParameterTable) -> Ints:
    """Return the parameters that have a gradient in the order in which they were first used.

    Those whose use was not recorded follow as the model lists them.
    """
    weights = facts.weights
    used = np.full(len(facts.names), len(facts.run), dtype=np.int64)
    np.minimum.at(used, weights.name, weights.row)
    listed = {written(path): at for at, (path, _, _) in enumerate(facts.run.columns.parameters)}
    place = np.array([listed.get(name, len(listed)) for name in facts.names], dtype=np.int64)
    names = np.unique(table.name)
    return names[np.lexsort((names, place[names], used[names]))]


def _looked_up(found: dict[tuple[int, int, int], float], table: ParameterTable) -> NDArray[Any]:
    return np.array([found.get(key, np.nan) for key in _keys(table)], dtype=np.float64)


def _keys(table: ParameterTable) -> list[tuple[int, int, int]]:
    columns = (table.rank.tolist(), table.step.tolist(), table.name.tolist())
    return list(zip(*columns, strict=True))


def _floats(column: NDArray[Any]) -> NDArray[Any]:
    most = np.finfo(np.float32).max
    floats: NDArray[Any] = np.clip(column, -most, most).astype(np.float32)
    return floats
