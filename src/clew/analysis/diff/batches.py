"""Whether the batch of a step of one run is that of another step of the other.

Input: `Compared` training runs and an iteration. Output: sentences about the batch of `b`.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import SAME_ELEMENTS, distances
from clew.analysis.diff.iterations import Iterations

Key = tuple[object, ...]


def batch_said(found: Compared, number: int, labels: list[int]) -> list[str]:
    """Say what the batch of an iteration of `b` is, as far as its tensors tell."""
    halves = found.a, found.b
    taken = [_taken(one) for one in found.iterations]
    keys = [
        {n: tuple(_key(half, v) for v in values) for n, values in of.items()}
        for half, of in zip(halves, taken, strict=True)
    ]
    if number not in keys[0] or number not in keys[1]:
        return []
    mine = keys[1][number]
    if mine == keys[0][number]:
        return ["the model gets the same inputs in both: labels, targets or weights differ"]
    same = [n for n, key in keys[0].items() if key == mine and n < len(labels)]
    said = []
    if same:
        said.append(f"the batch of step {labels[number]} of b is the batch of step "
                    f"{labels[same[0]]} of a")  # fmt: skip
    elif _is_reordered(found, taken[0][number], taken[1][number]):
        said.append("it has the same elements as that of a, in another order")
    if len(keys[1]) > 1 and sorted(map(repr, keys[0].values())) == sorted(
        map(repr, keys[1].values())
    ):
        said.append("over all steps b has the batches of a, in another order")
    return said


def _taken(iterations: Iterations) -> dict[int, list[int]]:
    """Return the tensors that the passes of each iteration were given."""
    run, tensors = iterations.graph.run, iterations.graph.run.tensors
    at = np.full(len(run), -1, dtype=np.int64)
    for one in iterations.passes:
        at[one.row] = one.iteration
    mine = ~tensors.is_output & (at[tensors.event] >= 0)
    found: dict[int, list[int]] = {}
    for row, value in zip(
        tensors.event[mine].tolist(), tensors.value[mine].tolist(), strict=True
    ):
        found.setdefault(int(at[row]), []).append(value)
    return found


def _key(half: Half, value: int) -> Key:
    """Return what tells a tensor from others: its digest, else its statistics."""
    facts = half.facts
    if facts.digest[value] >= 0:
        return ("digest", int(facts.digest[value]))
    return (int(facts.count[value]), float(facts.total[value]), float(facts.norm[value]),
            float(facts.low[value]), float(facts.high[value]))  # fmt: skip


def _is_reordered(found: Compared, of_a: list[int], of_b: list[int]) -> bool:
    if not of_a or len(of_a) != len(of_b):
        return False
    far = distances(found.a.facts, np.array(of_a), found.b.facts, np.array(of_b))
    return bool((far <= SAME_ELEMENTS).all())
