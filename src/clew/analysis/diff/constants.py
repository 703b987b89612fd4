"""Constants of a program that differ: a table of angles, positions, distances.

Input: `Compared` and the ops at which two runs of other code part. Output: the op of `b`, with its
counterpart in `a`, that made the constant wrong which leads there. A constant without a partner
proves nothing by itself, as other code may need it in another form. But two ops of one name that
lead to the same place and give as many other numbers are twins: if they took the same, they differ
themselves, else what made the input that is not the same.
"""

from __future__ import annotations

from clew.analysis.diff.compared import Compared, Half


def different_constants(found: Compared, op_a: int, op_b: int) -> tuple[int, int] | None:
    """Return the ops that make different constants, which lead to two others; None for none."""
    if op_a < 0 or op_b < 0:
        return None
    leading_a = _leading_to(found.a, op_a)
    for maker_b in _leading_to(found.b, op_b):
        if not _is_unconfirmed(found.b, maker_b):
            continue
        for maker_a in leading_a:
            if _are_twins(found, maker_a, maker_b):
                return _first_different(found, maker_a, maker_b)
    return None


def _leading_to(half: Half, op: int) -> list[int]:
    """Return the ops that make the constants which an op takes, the last first."""
    graph = half.graph
    found, open_ops = set(), [op]
    while open_ops:
        for value in graph.takes[open_ops.pop()]:
            maker = int(graph.maker[value])
            if maker >= 0 and maker not in found and not graph.depends[value]:
                found.add(maker)
                open_ops.append(maker)
    return sorted((one for one in found if not graph.is_move[one]), reverse=True)


def _is_unconfirmed(half: Half, op: int) -> bool:
    """Return whether an op gave numbers, and none that the other run has."""
    gives = half.graph.gives[op]
    return all(half.facts.says_much[v] and half.partner[v] < 0 for v in gives)


def _are_twins(found: Compared, op_a: int, op_b: int) -> bool:
    """Return whether two ops have one name and give as many numbers, which are not the same."""
    a, b = found.a, found.b
    names = (
        half.graph.names[int(half.graph.name_codes[op])] for half, op in ((a, op_a), (b, op_b))
    )
    gives_a, gives_b = a.graph.gives[op_a], b.graph.gives[op_b]
    return (
        len(set(names)) == 1
        and a.facts.count[gives_a].tolist() == b.facts.count[gives_b].tolist()
        and len(a.graph.takes[op_a]) == len(b.graph.takes[op_b])
        and not any(_are_equal(found, x, y) for x, y in zip(gives_a, gives_b, strict=True))
    )


def _first_different(found: Compared, op_a: int, op_b: int) -> tuple[int, int]:
    """Go back from twins, as long as just one input of each is not the same, to what made it."""
    a, b = found.a, found.b
    takes_a, takes_b = a.graph.takes[op_a], b.graph.takes[op_b]
    other_a = [x for x in takes_a if not any(_are_equal(found, x, y) for y in takes_b)]
    other_b = [y for y in takes_b if not any(_are_equal(found, x, y) for x in takes_a)]
    if len(other_a) != 1 or len(other_b) != 1:
        return op_a, op_b
    maker_a, maker_b = _maker(a, other_a[0]), _maker(b, other_b[0])
    if min(maker_a, maker_b) < 0:
        return op_a, op_b
    if _are_twins(found, maker_a, maker_b):
        return _first_different(found, maker_a, maker_b)
    return maker_a, maker_b


def _maker(half: Half, value: int) -> int:
    """Return the op that made a value, before elements were moved; -1 for none."""
    graph = half.graph
    maker = int(graph.maker[value])
    while maker >= 0 and graph.is_move[maker]:
        maker = int(graph.maker[graph.takes[maker][0]])
    return maker


def _are_equal(found: Compared, of_a: int, of_b: int) -> bool:
    digest = found.a.facts.digest[of_a]
    if digest >= 0 and digest == found.b.facts.digest[of_b]:
        return True
    return bool(found.b.partner[of_b] == of_a or found.a.partner[of_a] == of_b)
