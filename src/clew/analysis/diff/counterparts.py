"""Which results correspond, though their values say nothing of it yet: those of ops that do.

Input: two data flows of other code, and the partners found by value. Output: the partners, and with
them the results of ops of one name that took partners. Errors grow on their way, and a result that
is off by a little more than rounding equals no value of the other run.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from clew.analysis.diff.distance import ValueFacts
from clew.analysis.diff.flow_graph import FlowGraph
from clew.events.columns import Ints

# The order of what these take says nothing.
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logical_and", "logical_or"})


def with_counterparts(
    mine: FlowGraph, facts: ValueFacts, other: FlowGraph, other_facts: ValueFacts, partner: Ints
) -> Ints:
    """Return a partner for each value, -1 for none: those given, and results of the same ops."""
    known = facts.known.tolist()
    counts, other_counts = facts.count.tolist(), other_facts.count.tolist()
    roots, other_roots = moved_from(mine, counts), moved_from(other, other_counts)
    ops = {_key(other, op, [other_roots[v] for v in other.takes[op]]): op
           for op in range(len(other) - 1, -1, -1)}  # fmt: skip
    found = partner.tolist()
    for op in range(len(mine)):
        gives, takes = mine.gives[op], mine.takes[op]
        if not takes or all(found[v] >= 0 or not known[v] for v in gives):
            continue
        theirs = [max(found[v], found[roots[v]]) for v in takes]
        beside = -1 if min(theirs) < 0 else ops.get(
            _key(mine, op, [other_roots[v] for v in theirs]), -1)  # fmt: skip
        if beside < 0 or len(other.gives[beside]) != len(gives):
            continue
        for value, result in zip(gives, other.gives[beside], strict=True):
            if found[value] < 0 and known[value] and counts[value] == other_counts[result]:
                found[value] = result
    return np.array(found, dtype=np.int64)


def _key(graph: FlowGraph, op: int, took: list[int]) -> Hashable:
    name = graph.names[int(graph.name_codes[op])]
    return name, tuple(sorted(took) if name in _COMMUTATIVE else took)


def moved_from(graph: FlowGraph, counts: list[int]) -> list[int]:
    """Return for each value that whose elements were moved to give it, all of them."""
    roots = list(range(len(counts)))
    for op in np.flatnonzero(graph.is_move).tolist():
        takes = graph.takes[op]
        for value in graph.gives[op] if takes else ():
            if counts[value] == counts[takes[0]]:
                roots[value] = roots[takes[0]]
    return roots
