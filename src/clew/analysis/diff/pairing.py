"""Which op of one run corresponds to which of the other, if both ran about the same code.

Input: two `FlowGraph`s. Output: for each op of the second the op of the first, or -1. Ops are
paired within the same call of the same module, by name and source text, in order. In different code
an op of the same name at the same place says nothing: none is paired. In training, calls are
counted in each forward pass anew, so that an evaluation that only one run makes moves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher

import numpy as np

from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.iterations import Iterations, Pass
from clew.events.columns import Ints

# Lists longer than this are compared in pieces, as the comparison is quadratic at worst.
_PIECE = 2_000
# The part of the ops whose lines are equal in two runs of about the same code.
_ALIKE = 0.5
# Where less than this part of the longer run is alike, the other may do in one call what it does
# in several.
_MOST = 0.75

Rename = Callable[[str], str]


def pair_ops(of_a: Iterations, of_b: Iterations, rename: Rename | None = None) -> Ints:
    """Return for each op of `b` the op of `a` that it corresponds to, -1 for none.

    With `rename`, the structure is said to be the same, whatever the lines are.
    """
    a, b = of_a.graph, of_b.graph
    pairs: Ints = np.full(len(b), -1, dtype=np.int64)
    if rename is None and not _may_be_same_code(a, b):
        return pairs
    if of_a.is_training and of_b.is_training:
        numbers = aligned_passes(of_a.passes, of_b.passes)
        lists_a = _training_calls(of_a, numbers[0], str)
        lists_b = _training_calls(of_b, numbers[1], rename or str)
    else:
        lists_a, lists_b = _calls(a, str), _calls(b, rename or str)
    for call, ops_b in lists_b.items():
        ops_a = lists_a.get(call)
        if ops_a is not None:
            _pair_lists(a, ops_a, b, ops_b, pairs)
    if rename is None and not _is_same_code(a, b, pairs):
        pairs[:] = -1
    return pairs


def _may_be_same_code(a: FlowGraph, b: FlowGraph) -> bool:
    """Return whether there are enough lines with the same text, whichever ops are paired.

    In other code this is soon known, while to pair long lists of ops takes a long time.
    """
    of_a, of_b = (Counter(graph.texts(np.arange(len(graph)))) for graph in (a, b))
    return (of_a & of_b).total() >= _ALIKE * len(b)


def _is_same_code(a: FlowGraph, b: FlowGraph, pairs: Ints) -> bool:
    """Return whether most ops ran at lines with the same text.

    A line that one run goes through many times, for slices of what the other computes at once, does
    something else there.
    """
    ops_b = np.flatnonzero(pairs >= 0)
    texts = a.texts(pairs[ops_b]), b.texts(ops_b)
    same = sum(mine == theirs for mine, theirs in zip(*texts, strict=True))
    if same < _MOST * max(len(a), len(b)):
        shapes = [_result_shapes(graph, ops) for graph, ops in ((a, pairs[ops_b]), (b, ops_b))]
        same -= sum(mine != theirs for mine, theirs in zip(*shapes, strict=True))
    return same >= _ALIKE * len(pairs)


def _result_shapes(graph: FlowGraph, ops: Ints) -> list[list[object]]:
    """Return the shapes of the results of each op."""
    metas, meta = graph.run.metas, graph.run.columns.meta.tolist()
    return [[metas[meta[v]].shape if meta[v] >= 0 else None for v in graph.gives[op]]
            for op in ops.tolist()]  # fmt: skip


def _calls(graph: FlowGraph, rename: Rename) -> dict[Hashable, list[int]]:
    """Group ops by step, phase and the module call they belong to."""
    run, rows = graph.run, graph.rows
    paths = [rename(path) for path in run.derived.paths] + [""]
    module = run.derived.module[rows].tolist()
    owner = run.owner_row[rows]
    call = np.where(owner >= 0, run.call[owner], -1).tolist()
    first = min(run.steps, default=0)
    steps, phases = (run.step[rows] - first).tolist(), run.phase[rows].tolist()
    found: dict[Hashable, list[int]] = {}
    for op, (m, c, s, p) in enumerate(zip(module, call, steps, phases, strict=True)):
        found.setdefault((s, p, paths[m], c), []).append(op)
    return found


def _training_calls(
    iterations: Iterations, numbers: list[int], rename: Rename
) -> dict[Hashable, list[int]]:
    """Group ops by iteration, phase, forward pass and the call in it that they belong to."""
    run, rows = iterations.graph.run, iterations.graph.rows
    paths = [rename(path) for path in run.derived.paths] + [""]
    module, owner = run.derived.module[rows].tolist(), run.owner_row[rows]
    call = np.where(owner >= 0, iterations.call_in_pass[owner], -1).tolist()
    index = np.where(owner >= 0, iterations.pass_of[owner], -1)
    passes = np.array([*numbers, -1], dtype=np.int64)[index].tolist()
    phases, steps = run.phase[rows].tolist(), iterations.of_op.tolist()
    found: dict[Hashable, list[int]] = {}
    for op, key in enumerate(zip(steps, phases, passes, module, call, strict=True)):
        found.setdefault((*key[:3], paths[key[3]], key[4]), []).append(op)
    return found


def aligned_passes(a: list[Pass], b: list[Pass]) -> tuple[list[int], list[int]]:
    """Give the forward passes of two runs numbers, the same to those that correspond.

    Within an iteration they correspond in order, if there are as many in both, else in the order
    of those in the same mode.
    """
    found = [-2] * len(a), [-2] * len(b)
    of_a, of_b = _by_iteration(a), _by_iteration(b)
    for number in of_a.keys() | of_b.keys():
        mine, theirs = of_a.get(number, []), of_b.get(number, [])
        is_same = len(mine) == len(theirs)
        for side, (passes, indices) in enumerate(((a, mine), (b, theirs))):
            counts: dict[int, int] = {}
            for index in indices:
                mode = 0 if is_same else passes[index].training
                counts[mode] = count = counts.get(mode, -1) + 1
                found[side][index] = 3 * count + mode + 1
    return found


def _by_iteration(passes: list[Pass]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, one in enumerate(passes):
        found.setdefault(one.iteration, []).append(index)
    return found


def _pair_lists(
    a: FlowGraph, ops_a: list[int], b: FlowGraph, ops_b: list[int], pairs: Ints
) -> None:
    names_a = [a.names[code] for code in a.name_codes[ops_a].tolist()]
    names_b = [b.names[code] for code in b.name_codes[ops_b].tolist()]
    if names_a == names_b:
        pairs[ops_b] = ops_a
        return
    keys_a = list(zip(names_a, a.texts(ops_a), strict=True))
    keys_b = list(zip(names_b, b.texts(ops_b), strict=True))
    done_a, done_b = _common_ends(keys_a, keys_b, ops_a, ops_b, pairs)
    for first in range(0, max(len(done_a), len(done_b)), _PIECE):
        mine_a, mine_b = done_a[first : first + _PIECE], done_b[first : first + _PIECE]
        _match([names_a[i] for i in mine_a], [names_b[i] for i in mine_b],
               [keys_a[i] for i in mine_a], [keys_b[i] for i in mine_b],
               [ops_a[i] for i in mine_a], [ops_b[i] for i in mine_b], pairs)  # fmt: skip


def _common_ends(
    keys_a: Sequence[object], keys_b: Sequence[object], ops_a: list[int], ops_b: list[int],
    pairs: Ints,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Pair equal beginnings and ends; return the positions that are left."""
    head, size = 0, min(len(keys_a), len(keys_b))
    while head < size and keys_a[head] == keys_b[head]:
        pairs[ops_b[head]] = ops_a[head]
        head += 1
    tail = 0
    while tail < size - head and keys_a[-1 - tail] == keys_b[-1 - tail]:
        pairs[ops_b[-1 - tail]] = ops_a[-1 - tail]
        tail += 1
    return list(range(head, len(keys_a) - tail)), list(range(head, len(keys_b) - tail))


def _match(
    names_a: list[str], names_b: list[str], keys_a: list[tuple[str, str]],
    keys_b: list[tuple[str, str]], ops_a: list[int], ops_b: list[int], pairs: Ints,
) -> None:  # fmt: skip
    """Pair by name and text, then by name alone between what was paired."""
    at_a = at_b = 0
    blocks = SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_matching_blocks()
    for start_a, start_b, size in blocks:
        between = SequenceMatcher(
            None, names_a[at_a:start_a], names_b[at_b:start_b], autojunk=False
        )
        for i, j, length in between.get_matching_blocks():
            for k in range(length):
                pairs[ops_b[at_b + j + k]] = ops_a[at_a + i + k]
        for k in range(size):
            pairs[ops_b[start_b + k]] = ops_a[start_a + k]
        at_a, at_b = start_a + size, start_b + size
