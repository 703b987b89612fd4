"""Why an op drew other random numbers: another seed, or a draw that only one run made before.

Input: `Compared` and an op of each run. Output: sentences, none if neither op draws.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.passed import where


def draws_said(found: Compared, op_a: int, op_b: int) -> list[str]:
    """Say why two ops that draw random numbers drew others."""
    halves, ops = (found.a, found.b), (op_a, op_b)
    drew = [None if op < 0 else _draw(half, op) for half, op in zip(halves, ops, strict=True)]
    if drew[0] is None and drew[1] is None:
        return []
    if min(ops) >= 0 and different_arguments(found.a.graph, op_a, found.b.graph, op_b):
        return []  # asked for other numbers, it would draw others anyway
    if drew[0] is None or drew[1] is None:
        side = "b" if drew[0] is None else "a"
        return [f"only {side} draws random numbers here"]
    name = drew[1]
    lists = [
        _draws_before(half, one, op)
        for half, one, op in zip(halves, (drew[0], drew[1]), ops, strict=True)
    ]
    keys = [[_key(half, op) for op in mine] for half, mine in zip(halves, lists, strict=True)]
    first = next(
        (n for n, (x, y) in enumerate(zip(*keys, strict=False)) if x != y), min(map(len, keys))
    )
    if first == len(keys[0]) == len(keys[1]):
        return [
            f"it drew other random numbers: the generator {name} was used {first} times before in "
            "both runs, by the same ops, so it began with another seed or state"
        ]
    said = [f"it drew other random numbers: the generator {name} was used {len(keys[0])} times "
            f"before in a, {len(keys[1])} times in b"]  # fmt: skip
    at = 1 if len(keys[1]) >= len(keys[0]) else 0
    if first < len(lists[at]):
        said.append(f"only {'ab'[at]} draws before it: {where(halves[at], lists[at][first])}")
    return said


def _draw(half: Half, op: int) -> str | None:
    """Return the generator that an op drew from, None if it drew nothing."""
    event = half.graph.run.event(int(half.graph.rows[op]))
    return None if event.draw is None else event.draw[0]


def _draws_before(half: Half, name: str, end: int) -> list[int]:
    """Return the ops before one that drew from a generator."""
    c = half.graph.run.columns
    generators = c.generator[half.graph.rows[:end]]
    wanted = [number for number, known in enumerate(c.generators) if known == name]
    found: list[int] = np.flatnonzero(np.isin(generators, wanted)).tolist()
    return found


def _key(half: Half, op: int) -> tuple[str, str]:
    return half.graph.names[int(half.graph.name_codes[op])], half.graph.texts([op])[0]
