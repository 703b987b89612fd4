"""Memory that nothing has written, in a run that is compared with a rerun.

Input: one half of a comparison. Output: which values differ only because they hold such memory, and
where it comes from if something that was computed from it is never used up: a result of the run.
"""

from __future__ import annotations

from math import prod

import numpy as np

from clew.analysis.diff.compared import Half
from clew.analysis.diff.flow_graph import FlowGraph
from clew.events.columns import Flags, Ints
from clew.events.vocabulary import MODULE

# Torch passes what it has just filled with the program's own numbers through these.
_FRESH = frozenset({"lift_fresh", "lift_fresh_copy"})


def unwritten_values(half: Half) -> Flags:
    """Return which values differ because they hold memory that nothing has written.

    They come from `empty`, of which perhaps a part was written, or were computed from such values.
    """
    graph = half.graph
    storage, unwritten = graph.run.columns.storage, dict[int, int]()
    writes, fresh, sizes = graph.is_writer, graph.are(_FRESH), _element_counts(graph)
    unset = np.zeros(len(half.far), dtype=bool)
    for op in range(len(graph)):
        gives, takes = graph.gives[op], graph.takes[op]
        if graph.is_uninitialised[op]:
            unwritten.update((int(storage[value]), int(sizes[value])) for value in gives)
            unset[gives] = True
            continue
        if fresh[op]:
            for value in takes:
                unwritten.pop(int(storage[value]), None)
                unset[value] = False
        for value in takes:
            # A write through a view makes a value of the whole that no op returned, and a
            # parameter is a value of its own on the memory of the tensor it is made from.
            if int(storage[value]) in unwritten and not is_given(graph, value):
                unset[value] = True  # also if it is the same by chance
        if any(unset[value] for value in takes[int(writes[op]) :]):
            for value in gives:
                unset[value] = half.far[value] != 0 or int(storage[value]) in unwritten
        elif writes[op]:
            for value in gives:
                if sizes[value] == unwritten.get(int(storage[value])):
                    del unwritten[int(storage[value])]  # all of it is written
    return unset


def _element_counts(graph: FlowGraph) -> Ints:
    """Return how many elements each value has, -1 where its shape is not known."""
    counts = [-1 if meta.shape is None else prod(meta.shape) for meta in graph.run.metas]
    return np.array([*counts, -1], dtype=np.int64)[graph.run.columns.meta]


def is_given(graph: FlowGraph, value: int) -> bool:
    """Return whether an op that was recorded returned a value."""
    maker = int(graph.maker[value])
    return maker >= 0 and value in graph.gives[maker]


def unwritten_origin(half: Half, unset: Flags) -> tuple[int, int] | None:
    """Return the op that asked for memory which a result of the run depends on, and one that read
    it.

    A result is what the outermost calls returned, or what no op took. A buffer of which a part was
    never written is none: the part may never be used.
    """
    graph = half.graph
    storage = graph.run.columns.storage
    asked = {
        int(storage[value]): op
        for op in np.flatnonzero(graph.is_uninitialised).tolist()
        for value in graph.gives[op]
    }
    results = [v for v in _results(graph) if unset[v] and half.far[v] > 0]
    results = [value for value in results if int(storage[value]) not in asked]
    # What is known to differ leads there; else whatever may hold such memory.
    for follows in (unset & (half.far > 0), unset):
        for value in results:
            found = _read(graph, follows, asked, value)
            if found is not None:
                return found
    return None


def _results(graph: FlowGraph) -> list[int]:
    run, tensors = graph.run, graph.run.tensors
    outermost = (run.columns.kind == MODULE) & (run.parent_row < 0)
    returned = tensors.value[tensors.is_output & outermost[tensors.event]]
    taken = np.zeros(len(graph.maker), dtype=bool)
    taken[graph.takes.values] = True
    left = graph.gives.values[~taken[graph.gives.values]]
    found: list[int] = np.unique(np.concatenate([returned, left])).tolist()
    return found


def _read(
    graph: FlowGraph, follows: Flags, asked: dict[int, int], value: int
) -> tuple[int, int] | None:
    """Go back from a value to memory that nothing has written; return who asked, and who read."""
    storage = graph.run.columns.storage
    seen, waiting = {value}, [int(graph.maker[value])]
    while waiting:
        op = waiting.pop()
        for taken in graph.takes[op] if op >= 0 else ():
            if not follows[taken] or taken in seen:
                continue
            seen.add(taken)
            if int(storage[taken]) in asked:
                return asked[int(storage[taken])], op
            waiting.append(int(graph.maker[taken]))
    return None
