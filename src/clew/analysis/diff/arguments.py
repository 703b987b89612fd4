"""Which numbers and texts given to two ops differ, and which settings of two modules.

Input: an op or a call of each of two runs. Output: a phrase for each argument or setting.
"""

from __future__ import annotations

from typing import Any

from clew.analysis.diff.flow_graph import FlowGraph
from clew.events.columns import IN, Tensor
from clew.run.run import Run

_ABSENT = object()


def different_arguments(a: FlowGraph, op_a: int, b: FlowGraph, op_b: int) -> list[str]:
    """Say which numbers and texts given to two ops of the same name differ."""
    run_a, run_b = a.run, b.run
    row_a, row_b = int(a.rows[op_a]), int(b.rows[op_b])
    if run_a.name(row_a) != run_b.name(row_b):
        return [f"a runs {run_a.name(row_a)}, b {run_b.name(row_b)}"]
    mine, theirs = constants_of(run_a, row_a), constants_of(run_b, row_b)
    paths = dict.fromkeys([*mine, *theirs])
    return [
        f"argument {path}: {_given(mine, path)} in a, {_given(theirs, path)} in b"
        for path in paths
        if not is_same(mine.get(path, _ABSENT), theirs.get(path, _ABSENT))
    ]


def different_attributes(a: Run, call_a: int, b: Run, call_b: int) -> list[str]:
    """Say which settings of the module of two calls differ."""
    mine, theirs = a.attributes(call_a), b.attributes(call_b)
    path = b.module_path(call_b) or "the root module"
    return [
        f"{path}: {name} is {mine[name]!r} in a, {theirs[name]!r} in b"
        for name in mine
        if name in theirs and not is_same(mine[name], theirs[name])
    ]


def _given(constants: dict[str, Any], path: str) -> str:
    return repr(constants[path]) if path in constants else "not given"


def constants_of(run: Run, row: int) -> dict[str, Any]:
    """Return what was given to an op that is no tensor, by its path."""
    template = run.columns.templates[int(run.columns.template[row])]
    return {
        leaf.path: leaf.constant
        for leaf in template.leaves
        if leaf.role == IN and leaf.constant is not Tensor
    }


def is_same(x: object, y: object) -> bool:
    """Return whether two constants are equal; NaN equals NaN."""
    return bool(x == y) or (x != x and y != y)
