"""What was passed to two ops that correspond: tensors that are not the same ones in both runs.

Input: `Compared` and an op of each run. Output: a sentence for each tensor that only one of them
got, that has another shape or dtype, or that another op made, and where it was made.
"""

from __future__ import annotations

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.source_changes import own_places, short_file
from clew.events.columns import IN

_MOST_CALLERS = 3
# What passes a call on and says little: wrappers of decorators, and what calls a module.
_PASSES_ON = (".<locals>.wrapper", ".__call__")


def different_tensors(found: Compared, op_a: int, op_b: int) -> list[str]:
    """Say which tensors two ops got that differ, and who made them."""
    a, b = found.a, found.b
    mine, theirs = tensors_of(a, op_a), tensors_of(b, op_b)
    if a.graph.run.name(int(a.graph.rows[op_a])) != b.graph.run.name(int(b.graph.rows[op_b])):
        return _other_weights(found, mine, theirs)
    said = []
    for path in dict.fromkeys([*mine, *theirs]):
        if path not in mine or path not in theirs:
            sides = [_given(half, one.get(path)) for half, one in ((a, mine), (b, theirs))]
            said.append(f"argument {path}: {sides[0]} in a, {sides[1]} in b")
        else:
            said += _unlike(found, path, mine[path], theirs[path])
    return said


def _other_weights(found: Compared, mine: dict[str, int], theirs: dict[str, int]) -> list[str]:
    """Say which parameters only one of two ops of different names got."""
    names = [
        {name for value in values.values() if (name := half.graph.run.value(value).name)}
        for half, values in ((found.a, mine), (found.b, theirs))
    ]
    only = (("a", names[0] - names[1]), ("b", names[1] - names[0]))
    return [f"only {side} gets {', '.join(sorted(extra))}" for side, extra in only if extra]


def tensors_of(half: Half, op: int) -> dict[str, int]:
    """Return the tensors that an op got, by their path in its arguments."""
    graph = half.graph
    leaves = graph.run.leaf_values(int(graph.rows[op]))
    return {leaf.path: number for leaf, number in leaves if leaf.role == IN}


def _given(half: Half, value: int | None) -> str:
    if value is None:
        return "not given"
    return f"{half.graph.run.value(value).look}, {made_by(half, value)}"


def _unlike(found: Compared, path: str, of_a: int, of_b: int) -> list[str]:
    a, b = found.a, found.b
    looks = a.graph.run.value(of_a).look, b.graph.run.value(of_b).look
    if looks[0] != looks[1]:
        return [f"argument {path}: {looks[0]}, {made_by(a, of_a)}, in a, "
                f"{looks[1]}, {made_by(b, of_b)}, in b"]  # fmt: skip
    partner = int(b.partner[of_b])
    same = a.facts.digest[of_a] >= 0 and a.facts.digest[of_a] == b.facts.digest[of_b]
    if same or partner == of_a:
        return []
    makers = made_by(a, of_a), made_by(b, of_b)
    return (
        [] if makers[0] == makers[1] else [f"argument {path}: {makers[0]} in a, {makers[1]} in b"]
    )


def made_by(half: Half, value: int) -> str:
    """Say which op made a value, before its elements were moved, or that it came from outside."""
    graph = half.graph
    while graph.maker[value] >= 0 and graph.is_move[graph.maker[value]]:
        value = graph.takes[int(graph.maker[value])][0]
    maker = int(graph.maker[value])
    if maker >= 0:
        return f"made by {where(half, maker)}"
    name = graph.run.value(value).name
    return f"which is {name}" if name else "which came from outside"


def where(half: Half, op: int) -> str:
    """Write an op with its module, its line and that of its caller."""
    run, row = half.graph.run, int(half.graph.rows[op])
    source, module = run.source(row), run.module_path(row)
    name = f"{run.name(row)} in {module}" if module else run.name(row)
    if source is None:
        return name
    caller = callers(half, op, most=1)
    line = f"{name} at {short_file(source.file)}:{source.line}"
    return f"{line}, called from {caller}" if caller else line


def callers(half: Half, op: int, most: int = _MOST_CALLERS) -> str:
    """Write the lines of user code that called the function of an op, nearest first."""
    places = own_places(half.graph.run, int(half.graph.rows[op]))[1:]
    shown = [place for place in places if not place.function.endswith(_PASSES_ON)][:most]
    return " < ".join(
        f"{short_file(place.file)}:{place.line} in {place.function}" for place in shown
    )
