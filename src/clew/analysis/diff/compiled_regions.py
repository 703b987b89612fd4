"""Where a compiled run parts from an eager one: the compiled region, and what lies inside it.

Input: `Compared`, of which one run has compiled regions and the other has none. Output: a
`Divergence`, or None. Of a region only what goes in and comes out is seen, and what it keeps for
its backward pass. Whatever agrees with a value of the eager run, and whatever leads to it there, is
right; so the fault lies in the eager ops after the last value that agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import distances
from clew.analysis.diff.divergence import Divergence
from clew.analysis.diff.parting import WRONG
from clew.analysis.diff.passed import where
from clew.analysis.diff.source_changes import short_file
from clew.events.number_text import measured
from clew.events.vocabulary import BACKWARD, MODULE

_COMPILED = frozenset({"compiled"})
# Values further apart than this are hardly the same value, computed wrongly.
_NEAR = 0.5
# A value this small beside what its region gives may be 0 but for rounding.
_TINY = 1e-5
_MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class _Region:
    """A compiled region that is wrong, as the eager run has it.

    `value` is the result that differs, `end` the op that gives it in the eager run, `inside` the
    eager ops from the last value that agrees to the first that is seen to differ.
    """

    op: int
    value: int
    far: float
    end: int
    inside: list[int]


def compiled_divergence(found: Compared) -> Divergence | None:
    """Return the first compiled region whose result differs; None if there is none."""
    is_compiled = [bool(half.graph.are(_COMPILED).any()) for half in (found.a, found.b)]
    if sum(is_compiled) != 1:
        return None
    sides = (found.a, found.b) if is_compiled[1] else (found.b, found.a)
    eager, compiled = sides
    region = _first_region(eager, compiled)
    if region is None:
        return None
    events = (
        eager.graph.run.event(int(eager.graph.rows[region.inside[0]])),
        compiled.graph.run.event(int(compiled.graph.rows[region.op])),
    )
    a, b = events if is_compiled[1] else events[::-1]
    return Divergence(WRONG, a, b, tuple(_evidence(eager, compiled, region)), ())


def has_compiled(found: Compared) -> bool:
    """Return whether one of the runs has compiled regions."""
    return any(bool(half.graph.are(_COMPILED).any()) for half in (found.a, found.b))


def _first_region(eager: Half, compiled: Half) -> _Region | None:
    """Return the first region that gives something that differs from what the eager run has."""
    for op in np.flatnonzero(compiled.graph.are(_COMPILED)).tolist():
        results = _results(compiled, op)
        narrow = _other_dtype(eager, compiled, op, results)
        if narrow is not None:
            return narrow
        found = []
        for value in results:
            if _is_unlike(compiled, value) and not _is_noise(compiled, op, value):
                other, far = _counterpart(eager, compiled, op, value)
                end = int(eager.graph.maker[other]) if other >= 0 else -1
                found.append(_Region(op, value, far, end, _inside(eager, compiled, op, end)))
        found = [region for region in found if region.inside]
        if found:
            return min(found, key=lambda region: region.end)
    return None


def _other_dtype(eager: Half, compiled: Half, op: int, results: list[int]) -> _Region | None:
    """Return a region whose results agree, but in another precision: from the first op that has it
    in it.
    """
    partner = compiled.partner
    cast = [
        value
        for value in compiled.graph.gives[op]
        if partner[value] >= 0 and _precisions(eager, compiled, value) is not None
    ]
    value = next((value for value in cast if value in results), None)
    makers = [int(eager.graph.maker[partner[one]]) for one in cast]
    makers = [one for one in makers if one >= 0 and not eager.graph.is_move[one]]
    if value is None or not makers:
        return None
    end = int(eager.graph.maker[partner[value]])
    return _Region(op, value, float(compiled.far[value]), end, [min(makers)])


def _precisions(eager: Half, compiled: Half, value: int) -> tuple[str, str] | None:
    """Return the floating point dtypes of a compiled value and its partner, None if they agree."""
    mine = compiled.graph.run.value(value).dtype
    theirs = eager.graph.run.value(int(compiled.partner[value])).dtype
    return (mine, theirs) if mine != theirs and "float" in mine and "float" in theirs else None


def _is_noise(half: Half, op: int, value: int) -> bool:
    """Return whether a value is so small beside the others of its region that it may be 0."""
    facts = half.facts
    gives = np.array(half.graph.gives[op], dtype=np.int64)
    sizes = facts.norm[gives] / np.sqrt(np.maximum(facts.count[gives], 1))
    size = facts.norm[value] / np.sqrt(max(int(facts.count[value]), 1))
    return bool(size <= _TINY * sizes.max())


def _results(half: Half, op: int) -> list[int]:
    """Return what a region gives to the program, without what it keeps for its backward pass."""
    graph = half.graph
    gives = graph.gives[op]
    if _phase(half, op) == BACKWARD:
        return gives
    run, tensors = graph.run, graph.run.tensors
    outputs = tensors.is_output & (run.columns.kind == MODULE)[tensors.event]
    given = set(tensors.value[outputs].tolist())
    compiled = graph.are(_COMPILED)
    for later in range(op + 1, len(graph)):
        if not (compiled[later] and _phase(half, later) == BACKWARD):
            given.update(graph.takes[later])
    # Results of the program come before what is kept.
    return [value for at, value in enumerate(gives) if at == 0 or value in given]


def _phase(half: Half, op: int) -> int:
    return int(half.graph.run.phase[half.graph.rows[op]])


def _is_wrong(half: Half, value: int) -> bool:
    """Return whether an eager value neither equals a compiled one nor leads to one that does."""
    return bool(half.facts.known[value] and half.facts.says_much[value] and not half.right[value])


def _is_unlike(half: Half, value: int) -> bool:
    """Return whether a value of the compiled run equals none of the eager run.

    Where it leads to means nothing: a region takes much and gives much.
    """
    equal = half.partner[value] >= 0 and half.far[value] <= half.noise[value]
    return bool(half.facts.known[value] and half.facts.says_much[value] and not equal)


def _counterpart(eager: Half, compiled: Half, op: int, value: int) -> tuple[int, float]:
    """Return the value of the eager run that stands for one that differs, and how far it is off.

    It has the same shape, agrees with nothing either, and is the nearest of those; -1 for none.
    """
    phase = _phase(compiled, op)
    graph, shape = eager.graph, compiled.graph.run.value(value).shape
    candidates = [
        other
        for other_op in range(len(graph))
        if _phase(eager, other_op) == phase and not graph.is_uninitialised[other_op]
        for other in graph.gives[other_op]
        if _is_wrong(eager, other) and graph.run.value(other).shape == shape
    ]
    if not candidates:
        return -1, 0.0
    far = _apart(eager, candidates, compiled, value)
    best = int(np.nanargmin(far)) if not np.isnan(far).all() else len(far) - 1
    return candidates[best], float(far[best])


def _apart(eager: Half, candidates: list[int], compiled: Half, value: int) -> np.ndarray[
    tuple[int], np.dtype[np.float64]
]:  # fmt: skip
    of_b = np.full(len(candidates), value, dtype=np.int64)
    return distances(eager.facts, np.array(candidates, dtype=np.int64), compiled.facts, of_b)


def _inside(eager: Half, compiled: Half, op: int, end: int) -> list[int]:
    """Return the eager ops after the last values that agree, up to the first seen to differ."""
    graph = eager.graph
    waiting, ops = [end], set[int]()
    while waiting:
        one = waiting.pop()
        if one < 0 or one in ops or all(eager.right[v] for v in graph.gives[one][:1]):
            continue
        ops.add(one)
        waiting += [int(graph.maker[v]) for v in graph.takes[one]]
    inside = sorted(ops)
    seen = [one for one in inside if one != end and _is_seen(eager, one, compiled, op)]
    last = min(seen, default=end)
    return [one for one in inside if one <= last]


def _is_seen(eager: Half, one: int, compiled: Half, op: int) -> bool:
    """Return whether a region keeps a value that is near what an eager op gives, but not equal."""
    graph = eager.graph
    if graph.is_move[one] or not _is_wrong(eager, graph.gives[one][0]):
        return False
    value = graph.gives[one][0]
    shape = graph.run.value(value).shape
    kept = [
        other
        for other in compiled.graph.gives[op]
        if _is_unlike(compiled, other) and compiled.graph.run.value(other).shape == shape
    ]
    return bool(kept) and bool((_apart(compiled, kept, eager, value) < _NEAR).any())


def _evidence(eager: Half, compiled: Half, region: _Region) -> Iterator[str]:
    """Write what a region took and gave, and which eager ops lie where it goes wrong."""
    mine = compiled.graph.run.value(region.value)
    off = (
        f"{measured(region.far, 2)} (relative)" if np.isfinite(region.far) else "more than rounding"
    )
    yield f"the compiled region was given what agrees, and gives {mine.look} that differs by {off}"
    partner = int(compiled.partner[region.value])
    if partner >= 0 and _precisions(eager, compiled, region.value) is not None:
        theirs = eager.graph.run.value(partner)
        yield f"it is {theirs.look} in the eager run: autocast, or a model in another precision"
        yield f"the first result of another precision is that of {where(eager, region.inside[0])}"
        return
    agreeing = _last_agreeing(eager, region.inside)
    if agreeing >= 0:
        yield f"inside it, {where(eager, agreeing)} still agrees"
    yield f"the fault lies in {_listed(eager, region.inside)}"
    draw = _drawing(eager, region.inside)
    if draw >= 0:
        yield (
            f"{where(eager, draw)} draws random numbers: compiled code draws others, unless "
            "torch._inductor.config.fallback_random is True"
        )
    elif len({_line(eager, op) for op in region.inside}) > 1:
        keeps = _phase(compiled, region.op) != BACKWARD
        yield "to see more of it, put torch._dynamo.graph_break() between these lines" + (
            ", or record with gradients: it then gives out what it keeps for its backward pass"
            if keeps and len(compiled.graph.gives[region.op]) == 1
            else ""
        )


def _drawing(eager: Half, inside: list[int]) -> int:
    """Return an op whose random numbers lead to one of these ops, -1 if there is none."""
    graph, generator = eager.graph, eager.graph.run.columns.generator
    waiting, seen = list(inside), set[int]()
    while waiting:
        op = waiting.pop()
        if op < 0 or op in seen:
            continue
        seen.add(op)
        if generator[graph.rows[op]] >= 0:
            return op
        waiting += [int(graph.maker[v]) for v in graph.takes[op] if eager.partner[v] < 0]
    return -1


def _last_agreeing(eager: Half, inside: list[int]) -> int:
    """Return the last op that gave one of these ops a value that agrees with a compiled one."""
    graph = eager.graph
    makers = [
        int(graph.maker[v])
        for op in inside
        for v in graph.takes[op]
        if eager.right[v] and graph.maker[v] >= 0 and eager.partner[v] >= 0 and graph.depends[v]
    ]
    return max((op for op in makers if not graph.is_move[op]), default=-1)


def _listed(eager: Half, inside: list[int]) -> str:
    """Write eager ops by the lines that ran them."""
    graph, run = eager.graph, eager.graph.run
    lines: dict[str, list[str]] = {}
    for op in inside:
        name = graph.names[int(graph.name_codes[op])]
        if not graph.is_move[op] and name not in lines.setdefault(_line(eager, op), []):
            lines[_line(eager, op)].append(name)
    lines = {line: names for line, names in lines.items() if names}
    shown = [f"{', '.join(names)} at {line}" for line, names in list(lines.items())[:_MOST_LINES]]
    more = len(lines) - len(shown)
    modules = {run.module_path(int(graph.rows[op])) for op in inside}
    of = (
        f" of {modules.pop()}"
        if len(modules) == 1 and modules != {""} and modules != {None}
        else ""
    )
    count = f"{len(inside)} eager ops" if len(inside) > 1 else "1 eager op"
    return f"{count}{of}: {'; '.join(shown)}" + (f" and {more} more lines" if more > 0 else "")


def _line(half: Half, op: int) -> str:
    source = half.graph.run.source(int(half.graph.rows[op]))
    return "an unknown line" if source is None else f"{short_file(source.file)}:{source.line}"
