"""Which values are right because something right was computed from them.

Input: the data flow of one run and which of its values agree with the other run. Output: which are
right. One sweep from the end of the run to its beginning.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.distance import ValueFacts
from clew.analysis.diff.flow_graph import FlowGraph
from clew.events.columns import Flags


def with_sources(
    graph: FlowGraph, agrees: Flags, facts: ValueFacts, differs: Flags, neutral: Flags
) -> Flags:
    """Count as right also what a right value was computed from.

    What differs from its partner is right only if everything computed from it is: a norm forgives a
    factor that others do not. A result of the program that differs is wrong even if what was
    computed from a part of it is right. Values that may agree by chance prove nothing, and
    `neutral` ones, of which nothing is known to come, refute nothing. A mean agrees for many
    values, and a part says nothing of the rest: they prove what they come from only if all else
    that was computed from it, and from nothing wrong, is proved.
    """
    sweep = _Sweep(graph, agrees, facts, differs, neutral)
    first = sweep.right(doubtful=[False] * len(graph))
    return sweep.right(doubtful=_took_no_wrong(graph, first.tolist()))


class _Sweep:
    """Goes from the end of a run to its beginning."""

    def __init__(
        self, graph: FlowGraph, agrees: Flags, facts: ValueFacts, differs: Flags, neutral: Flags
    ) -> None:
        self._graph, self._agrees = graph, agrees
        self._forgetful, self._off = graph.is_forgetful.tolist(), differs.tolist()
        self._partial = (graph.is_summary | _are_parts(graph, facts)).tolist()
        self._moves = graph.is_move.tolist()
        self._proves = agrees & (facts.says_much | ~facts.known)
        self._known = (facts.known & ~neutral).tolist()

    def right(self, doubtful: list[bool]) -> Flags:
        """Return which values are right.

        If the results of `doubtful` ops are not proved, neither is what they took by a part of it.
        """
        graph, known, off = self._graph, self._known, self._off
        forgetful, partial, moves = self._forgetful, self._partial, self._moves
        proves = self._proves.tolist()
        refuted, used, by_part, unproved = ([False] * len(proves) for _ in range(4))
        for value in graph.ends:
            refuted[value], used[value] = off[value], True
        for op in range(len(graph) - 1, -1, -1):
            gives, takes = graph.gives[op], graph.takes[op]
            for value in gives:
                proves[value] = proves[value] or (by_part[value] and not unproved[value])
            rest = [v for v in gives if known[v] and used[v] and not proves[v]]
            # A part is in doubt for what was made of it, not because it is a part.
            rest = [v for v in rest if unproved[v]] if moves[op] else rest
            if not forgetful[op]:
                shown = [v for v in gives if proves[v] and not refuted[v]]
                whole = any(not partial[v] for v in shown)
                is_used = any(used[v] for v in gives)
                for value in takes:
                    used[value] = used[value] or is_used
                    proves[value] = proves[value] or whole
                    by_part[value] = by_part[value] or bool(shown)
                if whole:
                    continue
            for value in takes if rest and doubtful[op] else ():
                unproved[value] = True
            if any(known[v] and off[v] and (refuted[v] or not proves[v]) for v in gives):
                for value in takes:
                    refuted[value] = refuted[value] or off[value]
        for value in np.flatnonzero(graph.maker < 0).tolist():
            proves[value] = proves[value] or (by_part[value] and not unproved[value])
        led = np.array(proves, dtype=bool) & ~np.array(refuted, dtype=bool)
        return np.asarray(self._agrees | led)


def _took_no_wrong(graph: FlowGraph, right: list[bool]) -> list[bool]:
    """Return which ops took only right values, or such as are wrong first."""
    moves = graph.is_move.tolist()
    clean, found = right.copy(), []
    for op in range(len(graph)):
        takes = graph.takes[op]
        found.append(all(clean[v] for v in takes))
        if found[op] and (moves[op] or all(right[v] for v in takes)):
            for value in graph.gives[op]:
                clean[value] = True
    return found


def _are_parts(graph: FlowGraph, facts: ValueFacts) -> Flags:
    """Return for each value whether it has some of the elements of another, and no others."""
    starts = np.array(graph.takes.first, dtype=np.int64)
    moved = np.flatnonzero(graph.is_move & (starts[1:] > starts[:-1]))
    whole = np.full(len(graph) + 1, -1, dtype=np.int64)
    whole[moved] = facts.count[graph.takes.values[starts[moved]]]
    return np.asarray((graph.maker >= 0) & (facts.count < whole[graph.maker]))
