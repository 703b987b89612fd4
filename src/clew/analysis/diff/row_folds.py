"""Which rows of two aligned runs repeat: neighbouring calls alike in everything but their names.

Input: rows of two forests, and their states. Output: a `Fold` for each stretch of siblings that one
row can stand for. Calls are alike if they have the same classes, ops and states inside, so a layer
in which something differs is not hidden among layers in which nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.analysis.diff.call_forest import CALL, CallForest
from clew.analysis.diff.forest_alignment import SideBySide
from clew.analysis.fold import name_range
from clew.events.columns import Ints

_FEWEST = 3


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that one row can stand for, and the names of all of them in each run."""

    rows: list[int]
    names: tuple[str, str]


def folded(a: CallForest, b: CallForest, rows: SideBySide, state: Ints, first: int) -> list[Fold]:
    """Return the stretches of siblings that repeat; the row `first` is in none of them."""
    parents = rows.parent.tolist()
    nodes = list(zip(rows.a.tolist(), rows.b.tolist(), strict=True))
    signs = _signatures(a, b, nodes, parents, state.tolist(), first)
    siblings: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        siblings.setdefault(parent, []).append(row)
    found: list[Fold] = []
    for mine in siblings.values():
        for stretch in _stretches(mine, signs):
            if len(stretch) >= _FEWEST and _is_call(a, b, *nodes[stretch[0]]):
                ends = nodes[stretch[0]], nodes[stretch[-1]]
                found.append(Fold(stretch, (_names(a, ends, 0), _names(b, ends, 1))))
    return found


def _signatures(
    a: CallForest, b: CallForest, nodes: list[tuple[int, int]], parents: list[int],
    states: list[int], first: int,
) -> list[int]:  # fmt: skip
    """Return a number for each row, the same for rows alike in themselves and in what is in them.

    Rows come after the row they are in, so going back everything inside a row comes before it.
    """
    numbers: dict[object, int] = {}
    inside: list[list[int]] = [[] for _ in nodes]
    signs = [0] * len(nodes)
    for row in range(len(nodes) - 1, -1, -1):
        x, y = nodes[row]
        sign = (
            "" if x < 0 else a.name(x), "" if y < 0 else b.name(y), states[row], row == first,
            tuple(inside[row]),
        )  # fmt: skip
        signs[row] = numbers.setdefault(sign, len(numbers))
        if parents[row] >= 0:
            inside[parents[row]].append(signs[row])
        inside[row] = []
    return signs


def _stretches(rows: list[int], signs: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for row in rows:
        if found and signs[found[-1][-1]] == signs[row]:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _is_call(a: CallForest, b: CallForest, x: int, y: int) -> bool:
    return (a.kind(x) if x >= 0 else b.kind(y)) == CALL


def _names(forest: CallForest, ends: tuple[tuple[int, int], tuple[int, int]], side: int) -> str:
    first, last = ends[0][side], ends[1][side]
    return "" if first < 0 else name_range(forest.path(first), forest.path(last))
