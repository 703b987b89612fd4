"""What shows that two runs part where they do, as sentences.

Input: `Compared` and a `PartingPlace`. Output: evidence (what agrees, what differs, how) and
suspects (settings and arguments that differ before).
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.arguments import different_arguments, different_attributes
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.elements import Array, distance_text, element_relation
from clew.analysis.diff.parting import INPUTS, WRONG, PartingPlace, unmatched_parts
from clew.analysis.diff.passed import callers, different_tensors, where
from clew.analysis.diff.relation import relation
from clew.analysis.diff.source_changes import changed_functions
from clew.events.number_text import measured

_MOST_SUSPECTS = 6
# Of other code, where the ops before the next parameter cannot be told apart, so many are listed.
_MOST_OTHERS = 2
_REORDERED = "its result has the elements that a goes on with, in another order"


def evidence_of(found: Compared, parting: PartingPlace) -> tuple[str, ...]:
    """Say what agrees and what differs where the runs part."""
    a, b = found.a, found.b
    half, op = (a, parting.op_a) if parting.of_a else (b, parting.op_b)
    said = []
    if not found.has_values:
        pass  # nothing is known of what was given to the op, or of its result
    elif parting.kind == INPUTS:
        said.append(_input(half, parting.value))
    elif parting.kind == WRONG:
        result = _result(half, parting.value) if not parting.reordered else _REORDERED
        said.append(f"its inputs agree {_agreement(half, op)}, {result}")
    else:
        other = "b" if parting.of_a else "a"
        said.append(f"{other} has its inputs {_agreement(half, op)}, but not its result")
    said += _shapes(found, parting)
    said += _relation(found, parting)
    if parting.kind == WRONG and parting.op_a >= 0 and parting.op_b >= 0:
        said += different_arguments(a.graph, parting.op_a, b.graph, parting.op_b)
        said += different_tensors(found, parting.op_a, parting.op_b)
        said += different_settings(a, parting.op_a, b, parting.op_b)
    said += _called_from(found, parting)
    said += _below_noise(b) if parting.is_small else []
    return tuple(said)


def _below_noise(half: Half) -> list[str]:
    """Say how little the results of a run differ that agree up to noise."""
    far = [float(half.far[v]) for v in half.graph.ends if half.far[v] <= half.noise[v]]
    most = f"by {_size(max(far))} at most: " if far else ""
    return [f"what comes out differs {most}below the noise, but another number is no rounding"]


def _called_from(found: Compared, parting: PartingPlace) -> list[str]:
    """Write the callers of the lines where the runs part."""
    mine, theirs = (
        callers(half, op) if op >= 0 else ""
        for half, op in ((found.a, parting.op_a), (found.b, parting.op_b))
    )
    if mine == theirs:
        return [f"both are called from {mine}"] if mine else []
    sides = (("a", mine), ("b", theirs))
    return [f"{side} is called from {line}" for side, line in sides if line]


def _input(half: Half, value: int) -> str:
    name = half.graph.run.value(value).name
    what = f"the parameter or buffer {name}" if name else "a tensor from outside the recorded ops"
    return f"{what} differs by {_size(float(half.far[value]))}"


def _result(half: Half, value: int) -> str:
    if half.partner[value] < 0:
        return "its result equals no value of the other run"
    if half.far[value] == 0:
        return "its result is that of another op"
    return f"its result differs by {_size(float(half.far[value]))}"


def _agreement(half: Half, op: int) -> str:
    far = [float(half.far[v]) for v in half.graph.takes[op]]
    known = [error for error in far if not np.isnan(error)]
    if not known:
        return "as far as is known"
    worst = max(known)
    if worst == 0:
        return "bit for bit"
    return f"to {measured(worst, 1)}" if np.isfinite(worst) else "in what was computed from them"


def _size(error: float) -> str:
    if np.isnan(error):
        return "an unknown amount"
    return f"{measured(error, 2)} (relative)" if np.isfinite(error) else "more than rounding"


def _shapes(found: Compared, parting: PartingPlace) -> list[str]:
    value, of_a = parting.value, parting.of_a
    half = found.a if of_a else found.b
    partner = int(half.partner[value]) if value >= 0 else -1
    if partner < 0:
        return []
    other = found.b if of_a else found.a
    mine, theirs = half.graph.run.value(value), other.graph.run.value(partner)
    if (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype):
        return []
    return [f"a has {theirs.look}, b {mine.look}"]


def _relation(found: Compared, parting: PartingPlace) -> list[str]:
    """Write how the value of b comes from that of a, and how far apart their elements are."""
    if parting.value < 0 or not found.has_values:
        return []
    partner = -1 if parting.of_a else int(found.b.partner[parting.value])
    if partner < 0 and parting.kind == WRONG:
        partner = _result_beside(found, parting)
    if partner < 0:
        return []
    x, y = _data(found.a, partner), _data(found.b, parting.value)
    related, apart = "", ""
    if x is not None and y is not None:
        dtype = found.b.graph.run.value(parting.value).dtype
        related = element_relation(x, y)
        apart = distance_text(x, y, dtype) if x.shape == y.shape else ""
    related = related or relation(found.a.facts, partner, found.b.facts, parting.value)
    return [said for said in (related, apart) if said]


def _result_beside(found: Compared, parting: PartingPlace) -> int:
    """Return the one result of the op of a of the same size as the value of b, -1 for none."""
    counts = found.a.facts.count
    size = found.b.facts.count[parting.value]
    gives = found.a.graph.gives[parting.op_a] if parting.op_a >= 0 else []
    same = [value for value in gives if counts[value] == size]
    return same[0] if len(same) == 1 else -1


def _data(half: Half, value: int) -> Array | None:
    """Return the numbers of a value, None if they were not kept."""
    kept = half.graph.run.columns.kept.get(value)
    if kept is None or kept.payload is None:
        return None
    array = half.graph.run.value(value).array()
    return array if array.size and array.dtype.kind in "fiu" else None


def different_settings(a: Half, op_a: int, b: Half, op_b: int) -> list[str]:
    """Say which settings of the module that two ops ran in differ."""
    said: list[str] = []
    runs = a.graph.run, b.graph.run
    rows = int(a.graph.rows[op_a]), int(b.graph.rows[op_b])
    owners = [int(run.owner_row[row]) for run, row in zip(runs, rows, strict=True)]
    while min(owners) >= 0 and len(said) < _MOST_SUSPECTS:
        said += different_attributes(runs[0], owners[0], runs[1], owners[1])
        owners = [int(run.parent_row[owner]) for run, owner in zip(runs, owners, strict=True)]
    return said


def suspects_of(found: Compared, parting: PartingPlace) -> tuple[str, ...]:
    """List arguments that differ in earlier ops, and inputs that agree only in another order."""
    b = found.b
    said: dict[str, None] = {}
    for value in b.graph.takes[parting.op_b] if parting.op_b >= 0 else ():
        maker = int(b.graph.maker[value])
        if maker >= 0 and b.far[value] == np.inf and b.right[value]:
            said[f"{where(b, maker)} gives the same elements in another order"] = None
    said |= dict.fromkeys(_changed_sources(found, parting))
    said |= dict.fromkeys(_changed_arguments(found, parting.op_b))
    said |= dict.fromkeys(_unconfirmed(b, parting.op_b))
    return (*tuple(said)[:_MOST_SUSPECTS], *_others_in_region(found, parting))


def _others_in_region(found: Compared, parting: PartingPlace) -> list[str]:
    """List further ops of other code that could be at fault, in order, a few of each run."""
    parts = unmatched_parts(found) if parting.kind == WRONG and not parting.reordered else None
    if parts is None:
        return []
    said = []
    sides = (("b", found.b, parting.op_b), ("a", found.a, parting.op_a))
    for (side, half, named), region in zip(sides, reversed(parts), strict=True):
        graph, lines = half.graph, dict[str, int]()
        for op in [named, *region.ops] if named >= 0 else region.ops:
            if not graph.is_move[op]:
                lines.setdefault(graph.texts([op])[0], op)
        others = [op for op in lines.values() if op != named]
        if side == "b":
            if not others:
                return []
            said.append(
                f"not sure: {len(lines)} lines of b give what a has not, up to the next parameter "
                "that both take; any of them may be at fault"
            )
        said += [f"{side}: {where(half, op)}" for op in others[:_MOST_OTHERS]]
    return said


def _changed_sources(found: Compared, parting: PartingPlace) -> list[str]:
    """List how the functions around the ops, and around what made their inputs, read otherwise."""
    rows = []
    for half, op in ((found.a, parting.op_a), (found.b, parting.op_b)):
        graph = half.graph
        makers = [int(graph.maker[v]) for v in graph.takes[op]] if op >= 0 else []
        rows.append([int(graph.rows[one]) for one in [op, *makers] if one >= 0])
    return changed_functions(found.a.graph.run, rows[0], found.b.graph.run, rows[1])


def _unconfirmed(half: Half, op: int) -> list[str]:
    """List constants of the program that an op took and that no other value confirms."""
    graph = half.graph
    said = []
    for value in graph.takes[op] if op >= 0 else ():
        while graph.maker[value] >= 0 and graph.is_move[graph.maker[value]]:
            value = graph.takes[int(graph.maker[value])][0]
        maker = int(graph.maker[value])
        if maker >= 0 and not graph.depends[value] and np.isnan(half.far[value]):
            said.append(f"{where(half, maker)} made a constant that nothing in a confirms")
    return said


def silent_changes(found: Compared) -> list[str]:
    """List arguments that differ between two runs that agree, where they change a result at all."""
    return list(dict.fromkeys(_changed_arguments(found, len(found.b.graph))))


def _changed_arguments(found: Compared, end: int) -> list[str]:
    """List arguments that differ in ops of `b` before one, and that change the result."""
    a, b = found.a, found.b
    said: list[str] = []
    for op_b in range(end):
        op_a = int(found.pairs[op_b])
        if op_a >= 0 and any(b.far[v] > 0 for v in b.graph.gives[op_b]):
            changed = different_arguments(a.graph, op_a, b.graph, op_b)
            said += [f"{where(b, op_b)}: {one}" for one in changed]
        if len(said) >= _MOST_SUSPECTS:
            break
    return said
