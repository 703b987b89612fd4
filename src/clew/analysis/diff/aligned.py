"""Two runs side by side, row by row, as data: what the page of a comparison draws.

Input: `Compared`, and the events where the runs part. Output: `Aligned`. A row has an event of one
run or of both, or stands for several rows: a step, the backward pass, calls that repeat. States of
ops are those of their results in `Compared`; a call differs if something in it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.call_forest import CALL, OP, CallForest
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import distances
from clew.analysis.diff.divergence import Divergence
from clew.analysis.diff.forest_alignment import SideBySide, side_by_side
from clew.analysis.diff.row_folds import Fold, folded
from clew.events.columns import OUT, Flags, Floats, Ints
from clew.run.run import Run

STATES = ("matched", "changed", "only_a", "only_b", "unknown")
MATCHED, CHANGED, ONLY_A, ONLY_B, UNKNOWN = range(5)


@dataclass(frozen=True, slots=True)
class Aligned:
    """Rows of two runs, each after the row that it is in.

    `a` and `b` are rows of the runs, -1 for none; `parent` is a row of this table. `state` is an
    index into `STATES`. `harm` counts the ops in a row, itself included, that differ: a row in one
    run only whose results are right does no harm. `error` is that of the results, NaN where it is
    not known. `beyond` says whether the results of a call differ by more than noise. `texts` names
    rows without events; `folds` counts the calls that a row stands for; `first` is the row where
    the runs part, -1 for none.
    """

    a: Ints
    b: Ints
    parent: Ints
    state: Ints
    harm: Ints
    error: Floats
    beyond: Flags
    texts: dict[int, tuple[str, str]]
    folds: dict[int, int]
    first: int

    def __len__(self) -> int:
        return len(self.a)


def align(found: Compared, first: Divergence | None) -> Aligned:
    """Set two compared runs side by side; `first` is where they part."""
    a, b = CallForest(found.a.graph), CallForest(found.b.graph)
    rows = side_by_side(a, b, *_ties(found, a, b, first))
    event_a, event_b = _events(a, rows.a), _events(b, rows.b)
    facts = _RowStates(found, a, b, rows)
    at = -1 if first is None else _row_of(event_a, event_b, first)
    texts = {
        row: (a.groups.get(x, ""), b.groups.get(y, ""))
        for row, (x, y) in enumerate(zip(rows.a.tolist(), rows.b.tolist(), strict=True))
        if x in a.groups or y in b.groups
    }
    state = facts.state()
    folds = folded(a, b, rows, state, at)
    return _with_folds(
        Aligned(
            event_a, event_b, rows.parent, state, facts.harm, facts.error, facts.beyond, texts,
            {}, at,
        ),
        folds,
    )  # fmt: skip


def _events(forest: CallForest, nodes: Ints) -> Ints:
    return np.array([*forest.events, -1], dtype=np.int64)[nodes]


def _row_of(event_a: Ints, event_b: Ints, first: Divergence) -> int:
    """Return the row with both events, or else that of the event the divergence is about."""
    of_a, of_b = (
        set() if event is None else set(np.flatnonzero(column == event.row).tolist())
        for column, event in ((event_a, first.a), (event_b, first.b))
    )
    about, other = (of_a, of_b) if first.kind == "missing" else (of_b, of_a)
    return min((of_a & of_b) or about or other, default=-1)


def _ties(
    found: Compared, a: CallForest, b: CallForest, first: Divergence | None
) -> tuple[Ints, Ints]:
    """Return nodes of ops that correspond: paired, or with equal results; each at most once."""
    partner = found.pairs.copy()
    taken = set(partner[partner >= 0].tolist())
    moves_a, moves_b = found.a.graph.is_move, found.b.graph.is_move
    for op in np.flatnonzero((partner < 0) & ~moves_b).tolist():
        other = _maker_of_equal(found, op, moves_a)
        if other >= 0 and other not in taken:
            taken.add(other)
            partner[op] = other
    ops = np.flatnonzero(partner >= 0)
    nodes_a = a.node_of[found.a.graph.rows[partner[ops]]]
    nodes_b = b.node_of[found.b.graph.rows[ops]]
    if first is None or first.kind != "wrong" or first.a is None or first.b is None:
        return nodes_a, nodes_b
    # Where the runs part, both ops are shown side by side if their calls are.
    here = int(a.node_of[first.a.row]), int(b.node_of[first.b.row])
    # A variable is in no row; a call stands beside that of its name.
    if min(here) < 0 or "module" in (first.a.kind, first.b.kind):
        return nodes_a, nodes_b
    others = (nodes_a != here[0]) & (nodes_b != here[1])
    return np.append(nodes_a[others], here[0]), np.append(nodes_b[others], here[1])


def _maker_of_equal(found: Compared, op: int, moves: Flags) -> int:
    """Return the op of `a` that made a value equal to a result of an op of `b`, -1 for none."""
    a, b = found.a, found.b
    for value in b.graph.gives[op]:
        partner = int(b.partner[value])
        if partner < 0 or not b.right[value]:
            continue
        other = int(a.graph.maker[partner])
        while other >= 0 and moves[other] and a.graph.takes[other]:
            other = int(a.graph.maker[a.graph.takes[other][0]])
        if other >= 0:
            return other
    return -1


class _RowStates:
    """State and error of each row."""

    def __init__(self, found: Compared, a: CallForest, b: CallForest, rows: SideBySide) -> None:
        self._rows = rows
        self._found = found
        self._nodes_a, self._nodes_b = rows.a.tolist(), rows.b.tolist()
        self._kinds = [
            b.kind(y) if y >= 0 else a.kind(x)
            for x, y in zip(self._nodes_a, self._nodes_b, strict=True)
        ]
        self._of_ops = _per_op(found.a), _per_op(found.b)
        self.error: Floats = np.full(len(self._kinds), np.nan)
        self.beyond: Flags = np.zeros(len(self._kinds), dtype=bool)
        self._judge_calls(a, b)
        self._own = self._of_op_rows(a, b)
        self.harm = self._summed((self._own == CHANGED).astype(np.int64) + self._alone_and_wrong)
        # Calls with results of other sizes in which everything matches compute them elsewhere.
        unlike = np.isinf(self.error) & (self.harm == 0)
        self.error[unlike], self.beyond[unlike] = np.nan, False

    def _judge_calls(self, a: CallForest, b: CallForest) -> None:
        """Compare the results of calls that stand side by side."""
        at: list[int] = []
        left: list[int] = []
        right: list[int] = []
        for row, kind in enumerate(self._kinds):
            x, y = self._nodes_a[row], self._nodes_b[row]
            if kind == CALL and min(x, y) >= 0:
                mine = _results(b.run, b.events[y])
                theirs = _results(a.run, a.events[x])
                if len(mine) == len(theirs):
                    at += [row] * len(mine)
                    left += theirs
                    right += mine
        found = self._found
        numbers_a, numbers_b = np.array(left, dtype=np.int64), np.array(right, dtype=np.int64)
        far = distances(found.a.facts, numbers_a, found.b.facts, numbers_b)
        noise = np.maximum(found.a.noise[numbers_a], found.b.noise[numbers_b])
        places = np.array(at, dtype=np.int64)
        known = ~np.isnan(far)
        worst = np.full(len(self._kinds), -1.0)
        np.maximum.at(worst, places[known], far[known])
        self.error = np.where(worst >= 0, worst, np.nan)
        self.beyond[places[known & (far > noise)]] = True

    def _of_op_rows(self, a: CallForest, b: CallForest) -> Ints:
        """Return the state of rows of ops, and of calls in which no op was recorded."""
        own: Ints = np.full(len(self._kinds), UNKNOWN, dtype=np.int64)
        self._alone_and_wrong: Ints = np.zeros(len(self._kinds), dtype=np.int64)
        empty = set(range(len(self._kinds))) - set(self._rows.parent.tolist())
        if not all(len(half.graph) for half in (self._found.a, self._found.b)):
            empty = set(range(len(self._kinds)))  # nothing but its result tells of a call
        for row, kind in enumerate(self._kinds):
            x, y = self._nodes_a[row], self._nodes_b[row]
            if kind == OP:
                (judge, node, forest) = (
                    (self._of_ops[1], y, b) if y >= 0 else (self._of_ops[0], x, a)
                )
                known, wrong, far = judge[forest.events[node]]
                alone = min(x, y) < 0
                self.error[row] = np.nan if alone else far
                self._alone_and_wrong[row] = alone and wrong
                own[row] = (
                    (ONLY_A if y < 0 else ONLY_B) if alone
                    else CHANGED if wrong
                    else MATCHED if known else UNKNOWN
                )  # fmt: skip
            elif kind == CALL and row in empty and min(x, y) >= 0:
                known = not np.isnan(self.error[row])
                own[row] = CHANGED if self.beyond[row] else MATCHED if known else UNKNOWN
        return own

    def _summed(self, counts: Ints) -> Ints:
        """Add to each row what is in it."""
        sums = counts.tolist()
        parents = self._rows.parent.tolist()
        for row in range(len(sums) - 1, -1, -1):
            if parents[row] >= 0:
                sums[parents[row]] += sums[row]
        return np.array(sums, dtype=np.int64)

    def state(self) -> Ints:
        """Return the state of each row: that of a call follows from what is in it."""
        known = self._summed(np.isin(self._own, (MATCHED, CHANGED)).astype(np.int64))
        state = np.where(self.harm > 0, CHANGED, np.where(known > 0, MATCHED, UNKNOWN))
        leaf = self._own != UNKNOWN
        state = np.where(leaf, self._own, state)
        calls = np.array([kind != OP for kind in self._kinds], dtype=bool)
        state = np.where(calls & (self._rows.b < 0), ONLY_A, state)
        return np.where(calls & (self._rows.a < 0), ONLY_B, state)


def _per_op(half: Half) -> dict[int, tuple[bool, bool, float]]:
    """Return by the row of each op whether its results are known, whether one is wrong, its error.

    Memory that nothing has written yet is never wrong, nor a second result that nothing uses.
    """
    graph = half.graph
    used = np.zeros(len(half.right), dtype=bool)
    used[graph.takes.values] = True
    leads = used.tolist()
    known, far = half.facts.known.tolist(), half.far.tolist()
    # What is right because it leads to what agrees may differ all the same.
    right = (half.right & ~(half.far > half.noise)).tolist()
    unset = graph.is_uninitialised.tolist()
    found = {}
    for op, row in enumerate(graph.rows.tolist()):
        gives = [v for v in graph.gives[op] if known[v]]
        errors = [far[v] for v in gives if far[v] == far[v]]
        ends = not any(leads[v] for v in graph.gives[op])
        wrong = not unset[op] and any(not right[v] and (leads[v] or ends) for v in gives)
        found[row] = (bool(gives), wrong, max(errors, default=float("nan")))
    return found


def _results(run: Run, row: int) -> list[int]:
    return [number for leaf, number in run.direct_values(row) if leaf.role == OUT]


def _with_folds(rows: Aligned, folds: list[Fold]) -> Aligned:
    """Put a row above each stretch of calls that repeat."""
    if not folds:
        return rows
    starts = {fold.rows[0]: fold for fold in folds}
    inside = {row: fold.rows[0] for fold in folds for row in fold.rows}
    order: list[int] = []
    place: dict[int, int] = {}
    above: dict[int, int] = {}
    counts: dict[int, int] = {}
    texts: dict[int, tuple[str, str]] = {}
    parents: list[int] = []
    for row, parent in enumerate(rows.parent.tolist()):
        if row in starts:
            above[row] = len(order)
            counts[len(order)] = len(starts[row].rows)
            texts[len(order)] = starts[row].names
            parents.append(place.get(parent, -1))
            order.append(row)
        place[row] = len(order)
        if row in rows.texts:
            texts[len(order)] = rows.texts[row]
        parents.append(above[inside[row]] if row in inside else place.get(parent, -1))
        order.append(row)
    at = np.array(order, dtype=np.int64)
    synthetic = np.zeros(len(at), dtype=bool)
    synthetic[list(counts)] = True
    harm, error, beyond = rows.harm[at], rows.error[at], rows.beyond[at]
    for fold in folds:
        members = np.array(fold.rows)
        mine = above[fold.rows[0]]
        harm[mine] = int(rows.harm[members].sum())
        known = rows.error[members][~np.isnan(rows.error[members])]
        error[mine] = known.max() if len(known) else np.nan
        beyond[mine] = bool(rows.beyond[members].any())
    return Aligned(
        np.where(synthetic, -1, rows.a[at]), np.where(synthetic, -1, rows.b[at]),
        np.array(parents, dtype=np.int64), rows.state[at], harm, error, beyond, texts, counts,
        place.get(rows.first, -1),
    )  # fmt: skip
