"""What two runs of one program did in another order.

Input: `Compared` of reruns. Output: ops of threads that ran at another moment and did the same,
which is no difference, and sentences about tensors that were given in another order, which is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.events.columns import Flags


def moved_ops(found: Compared) -> tuple[Flags, Flags]:
    """Return which ops of each run, in threads other than the first, did what an op of the other
    did.

    Threads take turns as they like. Ops at the same line that took and gave the same bits are the
    same, whichever came first.
    """
    keys_a, keys_b = _thread_ops(found.a), _thread_ops(found.b)
    left = Counter(keys_a.values()) & Counter(keys_b.values())
    return _chosen(found.a, keys_a, Counter(left)), _chosen(found.b, keys_b, Counter(left))


def _chosen(half: Half, keys: dict[int, Hashable], left: Counter[Hashable]) -> Flags:
    flags = np.zeros(len(half.graph), dtype=bool)
    for op, key in keys.items():
        if left[key] > 0:
            left[key] -= 1
            flags[op] = True
    return flags


def _thread_ops(half: Half) -> dict[int, Hashable]:
    """Return what ops outside the first thread did: name, line, what they took and gave."""
    graph, run = half.graph, half.graph.run
    if not len(graph):
        return {}
    threads = run.thread[graph.rows]
    elsewhere = np.flatnonzero(threads != threads[0]).tolist()
    digest, texts = half.facts.digest, graph.texts(elsewhere) if elsewhere else []
    found: dict[int, Hashable] = {}
    for op, text in zip(elsewhere, texts, strict=True):
        values = tuple(int(digest[v]) for v in (*graph.takes[op], -1, *graph.gives[op]) if v >= 0)
        if -1 not in values:
            found[op] = (graph.names[int(graph.name_codes[op])], text, values)
    return found


def order_evidence(found: Compared, op_a: int, op_b: int) -> str:
    """Say if an op of `b` was given what `a` has too, but at another place; empty if not."""
    a, b = found.a, found.b
    mine, theirs = (
        [int(half.facts.digest[v]) for v in (half.graph.takes[op] if op >= 0 else ())]
        for half, op in ((a, op_a), (b, op_b))
    )
    if not mine or len(mine) != len(theirs) or -1 in mine + theirs:
        return ""
    if mine != theirs and sorted(mine) == sorted(theirs):
        return "it was given the same tensors in another order"
    known = set(a.facts.digest.tolist())
    for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        value = b.graph.takes[op_b][at]
        if one != other and other in known and b.facts.says_much[value]:
            return "it was given what a was given at another moment: things come in another order"
    return ""
