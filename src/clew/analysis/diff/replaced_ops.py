"""Which op of other code does something else than the original, by what is given to it.

Input: `Compared` and the regions in which two runs part. Output: an op of each run. In other code
most steps of a region have no counterpart. But both need the same numbers, an epsilon or a scale,
and the same functions: where each run has one that the other lacks, one stands for the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from clew.analysis.diff.arguments import constants_of
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.diff.unmatched_regions import Region

# Functions of one number, by what they are computed with where they are written out.
_FUNCTIONS = {
    "relu": "relu", "clamp_min": "relu", "threshold": "relu", "sigmoid": "sigmoid",
    "silu": "sigmoid", "tanh": "tanh", "erf": "erf", "softplus": "softplus", "log1p": "softplus",
    "elu": "elu", "leaky_relu": "leaky_relu", "hardtanh": "hardtanh", "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid", "mish": "mish", "sin": "sin", "cos": "cos",
}  # fmt: skip
_SCALING = frozenset({"mul", "div"})
# Numbers this large hide others, and are as good as infinite.
_HIDING = 1e3
# Numbers this small are added, so that nothing is divided by zero; others are factors.
_SMALL = 0.02
_CLOSE = 1e-5


def replaced_ops(found: Compared, of_a: Region, of_b: Region) -> tuple[int, int] | None:
    """Return an op of each run, of which one stands for the other; None if none is known."""
    return (
        _other_arguments(found, of_a, of_b)
        or _other_numbers(found, of_a, of_b)
        or _other_functions(found, of_a, of_b)
        or _other_numbers(found, of_a, of_b, _is_same_small)
    )


def _other_arguments(found: Compared, of_a: Region, of_b: Region) -> tuple[int, int] | None:
    """Return ops of a name that each region has once, which got equal shapes and other numbers."""
    a, b = found.a.graph, found.b.graph
    once_a, once_b = _once(a, of_a), _once(b, of_b)
    for name, op_b in once_b.items():
        op_a = once_a.get(name, -1)
        if op_a < 0 or a.is_move[op_a] or not _same_shapes(a, op_a, b, op_b):
            continue
        axes = len(b.run.value(b.takes[op_b][0]).shape or ())
        mine, theirs = (_plain(graph, op, axes) for graph, op in ((a, op_a), (b, op_b)))
        if mine.keys() == theirs.keys() and mine != theirs:
            return op_a, op_b
    return None


def _once(graph: FlowGraph, region: Region) -> dict[str, int]:
    names = [graph.names[int(graph.name_codes[op])] for op in region.ops]
    counts = Counter(names)
    return {name: op for name, op in zip(names, region.ops, strict=True) if counts[name] == 1}


def _same_shapes(a: FlowGraph, op_a: int, b: FlowGraph, op_b: int) -> bool:
    shapes_a = [a.run.value(v).shape for v in a.takes[op_a]]
    return bool(shapes_a) and shapes_a == [b.run.value(v).shape for v in b.takes[op_b]]


def _plain(graph: FlowGraph, op: int, axes: int) -> dict[str, object]:
    """Return the numbers and texts given to an op; whole ones as axes counted from the first."""
    given = constants_of(graph.run, int(graph.rows[op]))
    return {
        path: one % axes if type(one) is int and -axes <= one < axes and axes else one
        for path, one in given.items()
        if isinstance(one, int | float | str)
    }


def _other_numbers(
    found: Compared, of_a: Region, of_b: Region, same: Callable[[float, float], bool] | None = None
) -> tuple[int, int] | None:
    """Return the ops with the numbers nearest to each other that only one run has."""
    same = same or _is_same
    numbers_a, numbers_b = _numbers(found.a, of_a), _numbers(found.b, of_b)
    only_a = [one for one in numbers_a if not any(same(one[0], x) for x, _ in numbers_b)]
    only_b = [one for one in numbers_b if not any(same(one[0], x) for x, _ in numbers_a)]
    pairs = [
        (abs(math.log(x / y)), op_b, op_a)
        for x, op_a in only_a
        for y, op_b in only_b
        if (x < _SMALL) == (y < _SMALL)
    ]
    if not pairs:
        return None
    _, op_b, op_a = min(pairs)
    return op_a, op_b


def _numbers(half: Half, region: Region) -> list[tuple[float, int]]:
    """Return the sizes of the numbers that are no whole ones, and the ops they are given to."""
    graph = half.graph
    found = []
    for op in [*region.ops, *region.constants]:
        given = constants_of(graph.run, int(graph.rows[op]))
        for path, one in given.items():
            size = abs(one) if isinstance(one, float) else 0.0
            if size not in (0.0, 1.0) and size < _HIDING and path != "p":
                found.append((size, op))
        if graph.names[int(graph.name_codes[op])].startswith("_scaled_dot_product"):
            size = (graph.run.value(graph.takes[op][0]).shape or (1,))[-1]
            found += [(size**-0.5, op)] if given.get("scale") is None and size > 1 else []
    return found


def after_factors(found: Compared, of_a: Region, of_b: Region, op: int) -> int:
    """Return the next op of a region that may be at fault, if an op of it scales by a known number.

    Which of two factors is scaled by a number is a choice, and the other run scales by it, too.
    """
    graph = found.b.graph
    numbers = [x for x, _ in _numbers(found.a, of_a)]
    scaled, skipped = set[int](), graph.is_move | graph.is_blind
    for one in [op, *(other for other in of_b.ops if other > op)]:
        if one != op and (skipped[one] or not _leads_on(found.b, one, scaled)):
            scaled.update(graph.gives[one] if not scaled.isdisjoint(graph.takes[one]) else ())
            continue
        given = [y for y, _ in _numbers(found.b, Region([one], [], frozenset()))]
        is_factor = graph.names[int(graph.name_codes[one])] in _SCALING and len(given) == 1
        if not is_factor or not any(_is_same(given[0], x) for x in numbers):
            return one
        scaled.update(graph.gives[one])
    return op


def _leads_on(half: Half, op: int, scaled: set[int]) -> bool:
    """Return whether an op took only right values, or such as were only scaled."""
    return all(half.right[v] or v in scaled for v in half.graph.takes[op])


def _is_same(x: float, y: float) -> bool:
    """Return whether a number is another, as a factor or divisor, or its root or square."""
    forms = (y, 1 / y, y * y, 1 / (y * y), math.sqrt(y), 1 / math.sqrt(y))
    return any(abs(x - form) <= _CLOSE * x for form in forms)


def _is_same_small(x: float, y: float) -> bool:
    """Return whether a number is another, which a small one is only if they are equal.

    An epsilon of 1e-3 has the root of 1e-6 for a number, but is seldom meant as such.
    """
    if min(x, y) < _SMALL:
        return abs(x - y) <= _CLOSE * x
    return _is_same(x, y)


def _other_functions(found: Compared, of_a: Region, of_b: Region) -> tuple[int, int] | None:
    """Return the first ops with functions that only one run has, if each has one."""
    mine, theirs = _functions(found.a.graph, of_a), _functions(found.b.graph, of_b)
    only_a = [op for name, op in mine.items() if name not in theirs]
    only_b = [op for name, op in theirs.items() if name not in mine]
    return (only_a[0], only_b[0]) if len(only_a) == len(only_b) == 1 else None


def _functions(graph: FlowGraph, region: Region) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in region.ops:
        name = graph.names[int(graph.name_codes[op])].rstrip("_")
        if name == "gelu":
            given = constants_of(graph.run, int(graph.rows[op]))
            found.setdefault("tanh" if given.get("approximate") == "tanh" else "erf", op)
        elif name in _FUNCTIONS:
            found.setdefault(_FUNCTIONS[name], op)
    return found


def maker_of_parts(half: Half, op: int) -> int:
    """Return what made a value of which an op takes a wrong part, if another part is right.

    The parts are cut as in the other run, so that the value was wrong before: a fused projection.
    """
    graph = half.graph
    if not graph.is_move[op] or not graph.takes[op]:
        return op
    whole = graph.takes[op][0]
    if half.partner[whole] >= 0 or graph.maker[whole] < 0:
        return op
    count, partner = half.facts.count, half.partner
    takers = [
        n
        for n in range(int(graph.maker[whole]) + 1, len(graph))
        if whole in graph.takes[n] and graph.is_move[n]
    ]
    parts = [v for n in takers for v in graph.gives[n]]
    if not any(partner[v] >= 0 and count[v] < count[whole] for v in parts):
        return op
    maker = int(graph.maker[whole])
    while graph.is_move[maker] and graph.maker[graph.takes[maker][0]] >= 0:
        maker = int(graph.maker[graph.takes[maker][0]])
    return maker
