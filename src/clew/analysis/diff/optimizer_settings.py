"""Which settings of optimizers differ between two training runs: rates, betas, decay, parameters.

Input: the `Iterations` of both runs. Output: phrases for each iteration whose update has other
settings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.analysis.diff.arguments import is_same
from clew.analysis.diff.iterations import Iterations

# How an update is computed, not what it computes.
_HOW = frozenset({"foreach", "fused", "capturable", "differentiable", "frozen", "params"})
# What a schedule keeps of the rate that it started from.
_STARTED = "initial_lr"
_MOST_NAMES = 4

Groups = dict[tuple[int, int], dict[str, Any]]


def different_optimizers(a: Iterations, b: Iterations) -> dict[int, list[str]]:
    """Return what differs between the optimizers of two runs, by iteration, where anything does."""
    found: dict[int, list[str]] = {}
    for number, (mine, theirs) in enumerate(zip(_settings(a), _settings(b), strict=False)):
        said: list[str] = []
        for key in [key for key in mine if key in theirs]:
            said += _different(mine[key], theirs[key], _group_name(key, mine))
        if said:
            found[number] = said
    return found


def _settings(iterations: Iterations) -> list[Groups]:
    """Return the settings of all groups of all optimizers at the update of each iteration."""
    run = iterations.graph.run
    noted = sorted(
        (one for one in run.parts[0][0].attributes if one.kind == "optimizer"),
        key=lambda one: one.event,
    )
    updates = np.flatnonzero(iterations.updates)
    ids = run.columns.id[iterations.graph.rows[updates]]
    of_update = iterations.of_op[updates]
    state: Groups = {}
    found: list[Groups] = []
    at = 0
    for number in range(iterations.count):
        mine = ids[of_update == number]
        end = int(mine[-1]) if len(mine) else -1
        while at < len(noted) and noted[at].event <= end:
            one = noted[at]
            key = one.number, one.group
            state = {**state, key: {**state.get(key, {}), **one.values}}
            at += 1
        found.append(state)
    return found


def _group_name(key: tuple[int, int], groups: Groups) -> str:
    """Name a group where there are several."""
    if len(groups) == 1:
        return ""
    group = f"group {key[1]}"
    several = len({number for number, _ in groups}) > 1
    return f" of optimizer {key[0]}, {group}" if several else f" of {group}"


def _different(a: dict[str, Any], b: dict[str, Any], group: str) -> list[str]:
    said = []
    if a.get("class") != b.get("class"):
        said.append(f"the optimizer is {a.get('class')} in a, {b.get('class')} in b")
    names = [name for name in a if name in b and name not in _HOW and name != "class"]
    names = [name for name in names if not is_same(a[name], b[name])]
    if "lr" in names:
        names = [name for name in names if name != _STARTED]
    said += [f"{name}{group} is {a[name]!r} in a, {b[name]!r} in b" for name in names]
    held = [{name for name in one.get("params") or () if name != "?"} for one in (a, b)]
    for side, only in (("a", held[0] - held[1]), ("b", held[1] - held[0])):
        if only:
            shown = ", ".join(sorted(only)[:_MOST_NAMES])
            more = f" and {len(only) - _MOST_NAMES} more" if len(only) > _MOST_NAMES else ""
            said.append(f"only the optimizer of {side} has {shown}{more}")
    return said
