"""What training runs begin with and what goes into each step: parameters, batches, labels.

Input: `Compared` training runs. Output: the first tensor of an iteration that is not the same in
both runs, and sentences that say whether another step of the other run has it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.distance import SAME_ELEMENTS, distances
from clew.analysis.diff.draws import draws_said
from clew.analysis.diff.iterations import Iterations
from clew.analysis.diff.parting import INPUTS, WRONG, PartingPlace
from clew.analysis.diff.passed import where
from clew.events.vocabulary import BACKWARD

Key = tuple[object, ...]


class Batches:
    """The tensors that the iterations of one run take from outside the model."""

    def __init__(self, half: Half, iterations: Iterations) -> None:
        self._half, self._iterations = half, iterations

    @cached_property
    def given(self) -> dict[int, list[int]]:
        """Return what the forward passes of each iteration were given."""
        run, tensors = self._half.graph.run, self._half.graph.run.tensors
        at = np.full(len(run), -1, dtype=np.int64)
        for one in self._iterations.passes:
            at[one.row] = one.iteration
        mine = ~tensors.is_output & (at[tensors.event] >= 0)
        found: dict[int, list[int]] = {}
        for row, value in zip(tensors.event[mine].tolist(), tensors.value[mine].tolist(),
                              strict=True):  # fmt: skip
            if not self._is_computed(value):
                found.setdefault(int(at[row]), []).append(value)
        return found

    @cached_property
    def beside(self) -> dict[int, list[int]]:
        """Return what the ops around the model took that it was not given: labels, weights."""
        graph, iterations = self._half.graph, self._iterations
        outside = (graph.run.owner_row[graph.rows] < 0) & iterations.from_parameters
        outside &= (graph.run.phase[graph.rows] != BACKWARD) & ~iterations.from_gradients
        found: dict[int, list[int]] = {}
        for op in np.flatnonzero(outside & ~iterations.updates).tolist():
            values = [v for v in graph.takes[op] if not self._is_computed(v)]
            found.setdefault(int(iterations.of_op[op]), []).extend(values)
        return found

    def _is_computed(self, value: int) -> bool:
        """Return whether a value is a parameter, or was computed from parameters."""
        graph = self._half.graph
        if graph.run.columns.value_name[value] >= 0:
            return True
        maker = int(graph.maker[value])
        return maker >= 0 and bool(self._iterations.from_parameters[maker])

    def sources(self, number: int) -> set[Key]:
        """Return what identifies the tensors that the batch of an iteration was made from."""
        graph, facts = self._half.graph, self._half.facts
        waiting = list(self.given.get(number, ())) + list(self.beside.get(number, ()))
        seen = set(waiting)
        while waiting:
            maker = int(graph.maker[waiting.pop()])
            new = set(graph.takes[maker]) - seen if maker >= 0 else set()
            seen |= new
            waiting += new
        return {self.key(v) for v in seen if facts.says_much[v]}

    def key(self, value: int) -> Key:
        """Return what tells a tensor from others: its digest, else its statistics."""
        facts = self._half.facts
        if facts.digest[value] >= 0:
            return ("digest", int(facts.digest[value]))
        return (int(facts.count[value]), float(facts.total[value]), float(facts.norm[value]),
                float(facts.low[value]), float(facts.high[value]))  # fmt: skip


def other_batch(found: Compared, number: int) -> PartingPlace | None:
    """Return where the first tensor of an iteration was made that differs, None if none does."""
    batches = _batches(found)
    for lists in (tuple(one.given for one in batches), tuple(one.beside for one in batches)):
        of_a, of_b = (one.get(number, []) for one in lists)
        if len(of_a) != len(of_b):
            continue
        for mine, theirs in zip(of_a, of_b, strict=True):
            if _differs(found, mine, theirs):
                return _made(found, theirs, number)
    return None


def other_parameter(found: Compared) -> PartingPlace | None:
    """Return where the first parameter or buffer was made that differs when it is first used."""
    a, b = (one.first_used for one in found.iterations)
    for name, value in b.items():
        if name in a and _differs(found, a[name], value):
            return _made(found, value, 0)
    return None


def _batches(found: Compared) -> tuple[Batches, Batches]:
    a, b = found.iterations
    return Batches(found.a, a), Batches(found.b, b)


def _differs(found: Compared, of_a: int, of_b: int) -> bool:
    far = distances(found.a.facts, np.array([of_a]), found.b.facts, np.array([of_b]))[0]
    digests = found.a.facts.digest[of_a], found.b.facts.digest[of_b]
    other = min(digests) >= 0 and digests[0] != digests[1]
    return bool(far > found.b.noise[of_b] or (other and far <= SAME_ELEMENTS))


def _made(found: Compared, value: int, number: int) -> PartingPlace | None:
    """Return the op that made a value of `b`, or the first of an iteration that took it."""
    graph = found.b.graph
    op = int(graph.maker[value])
    if op >= 0:
        return PartingPlace(WRONG, int(found.pairs[op]), op, value, of_a=False)
    for op in np.flatnonzero(found.iterations[1].of_op == number).tolist():
        if value in graph.takes[op]:
            return PartingPlace(INPUTS, int(found.pairs[op]), op, value, of_a=False)
    return None


def batch_said(found: Compared, number: int, labels: list[int]) -> list[str]:
    """Say what the batch of an iteration of `b` is, as far as its tensors tell."""
    a, b = _batches(found)
    said = _which(found, a, b, number, labels)
    return [*said, *_drawn(found, number)]


def _which(found: Compared, a: Batches, b: Batches, number: int, labels: list[int]) -> list[str]:
    """Say which batch of `a` an iteration of `b` has."""
    mine, theirs = a.given.get(number, []), b.given.get(number, [])
    keys = {n: [a.key(v) for v in values] for n, values in a.given.items()}
    wanted = [b.key(v) for v in theirs]
    if not wanted or number not in keys:
        return []
    if wanted == keys[number]:
        return ["the model is given the same in both: labels, targets or weights differ"]
    said: list[str] = []
    same = [n for n, key in keys.items() if key == wanted]
    here = f"the batch of step {labels[number]} of b"
    if same:
        said.append(f"{here} is the batch of step {labels[same[0]]} of a")
    elif len(mine) == len(theirs) and _is_reordered(found, mine, theirs):
        said.append(f"{here} has the elements of that of a, in another order")
    else:
        said += _from_other_step(a, b, number, labels, here)
    keyed = [sorted(repr([one.key(v) for v in vs]) for vs in one.given.values()) for one in (a, b)]
    if len(keyed[0]) > 1 and keyed[0] == keyed[1]:
        said.append("over all steps b has the batches of a, in another order")
    return said


def _from_other_step(
    a: Batches, b: Batches, number: int, labels: list[int], here: str
) -> list[str]:
    """Say which step of `a` has tensors that the batch of `b` was made from."""
    wanted = b.sources(number)
    shared = a.sources(number)
    if wanted == shared:
        return [f"{here} is made from the tensors that that of a is made from"]
    lacking = wanted - shared
    counts = {n: len(lacking & a.sources(n)) for n in a.given if n != number}
    best = max(counts, key=lambda n: counts[n], default=-1)
    if best < 0 or not counts[best]:
        return []
    if len(lacking) == counts[best]:
        return [f"{here} is made from what the batch of step {labels[best]} of a is made from"]
    return [f"{here} has samples that the batch of step {labels[best]} of a has"]


def _drawn(found: Compared, number: int) -> list[str]:
    """Say which op before the model drew other random numbers, if the data hangs on any."""
    b = found.iterations[1]
    graph = b.graph
    drew = graph.run.columns.generator[graph.rows] >= 0
    before = drew & (b.of_op <= number) & (graph.run.owner_row[graph.rows] < 0)
    for op in np.flatnonzero(before & ~b.from_parameters).tolist():
        op_a, gives = int(found.pairs[op]), graph.gives[op]
        if op_a < 0 or not gives or found.b.partner[gives[0]] < 0:
            continue
        if _differs(found, int(found.b.partner[gives[0]]), gives[0]):
            said = draws_said(found, op_a, op)
            return [f"{where(found.b, op)}: {said[0]}", *said[1:]] if said else []
    return []


def _is_reordered(found: Compared, of_a: list[int], of_b: list[int]) -> bool:
    far = distances(found.a.facts, np.array(of_a), found.b.facts, np.array(of_b))
    return bool((far <= SAME_ELEMENTS).all())
