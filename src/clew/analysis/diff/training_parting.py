"""Where two training runs part: the first iteration whose results differ, and the op in it.

Input: `Compared` runs that both compute gradients. Output: a `TrainingPlace`, or None. The results
of an iteration are the parameters and buffers it leaves, and what its passes return; without
updates, its losses and gradients. A parameter that differs does no harm if all that is computed
from it agrees: a bias before a norm has no gradient but rounding, which some optimizers make large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.batches import other_batch, other_parameter
from clew.analysis.diff.compared import Compared
from clew.analysis.diff.compiled_regions import has_compiled
from clew.analysis.diff.distance import distances
from clew.analysis.diff.drift import parameter_error
from clew.analysis.diff.iterations import Iterations
from clew.analysis.diff.optimizer_settings import different_optimizers
from clew.analysis.diff.parting import (
    EXTRA,
    INPUTS,
    MISSING,
    WRONG,
    PartingPlace,
    Window,
    parting_in,
)
from clew.events.vocabulary import BACKWARD, DATA

# Gradients are noisier than what they are computed from, so many times at most as a whole.
_GRADIENTS = 30.0


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """Where two training runs part, and the first iteration whose results show it."""

    place: PartingPlace
    iteration: int


def training_parting(found: Compared) -> TrainingPlace | None:
    """Return the first place where two training runs part, None if they agree up to noise."""
    a, b = found.iterations
    results = _Results(found)
    for number in range(min(len(a.written), len(b.written))):
        wrong_a, wrong_b = results.wrong(number)
        if wrong_a or wrong_b:
            place = _place(found, number, wrong_a, wrong_b)
            return None if place is None else TrainingPlace(place, number)
    place = _other_settings(found) or _other_count(found)
    return None if place is None else TrainingPlace(place, iteration_of(found, place))


def iteration_of(found: Compared, place: PartingPlace) -> int:
    """Return the iteration of the op of a place."""
    of_a = place.op_b < 0 or place.kind == MISSING
    return int(found.iterations[0 if of_a else 1].of_op[place.op_a if of_a else place.op_b])


def _place(
    found: Compared, number: int, wrong_a: list[int], wrong_b: list[int]
) -> PartingPlace | None:
    """Return the op that makes the results of an iteration wrong."""
    a, b = found.iterations
    passes = _other_passes(found, number)
    if passes is not None:
        return passes
    until = [int(np.searchsorted(one.of_op, number, side="right")) for one in (a, b)]
    place = None
    if not found.b.right[wrong_b].all():
        place = parting_in(found, Window(wrong_a, wrong_b, *until))
    place = place or _at_result(found, wrong_b, number)
    place = None if place is None else _forward_of(found, place, number)
    if place is not None and is_given_parameter(found, place):
        return place
    is_data = place is not None and is_before_model(found, place)
    if is_data and place is not None and iteration_of(found, place) == number:
        return place
    return other_batch(found, number) or (other_parameter(found) if not number else None) or place


def _forward_of(found: Compared, place: PartingPlace, number: int) -> PartingPlace:
    """Return the forward op of a backward op, if its result differs already, or is in one run only.

    A loss is a single number, which says little; the gradients of another loss say more.
    """
    of_a = place.op_b < 0 or place.kind == MISSING
    op = place.op_a if of_a else place.op_b
    graph = found.iterations[0 if of_a else 1].graph
    row = int(graph.run.forward_row[graph.rows[op]])
    at = int(np.searchsorted(graph.rows, row))
    if row < 0 or graph.run.phase[graph.rows[op]] != BACKWARD or graph.rows[at] != row:
        return place
    gives = graph.gives[at]
    if not gives:
        return place
    if of_a:
        return place if at in found.pairs else _alone(at, gives[0], of_a)
    if found.pairs[at] < 0:
        return _alone(at, gives[0], of_a)
    assert found.drift is not None
    off = [v for v in gives if found.b.far[v] > found.drift.level(number)]
    return (_at_result(found, off, number) if off else None) or place


def is_given_parameter(found: Compared, place: PartingPlace) -> bool:
    """Return whether a place is a parameter or buffer that differs as it was given."""
    half = found.a if place.of_a else found.b
    return place.kind == INPUTS and bool(half.graph.run.value(place.value).name)


def is_before_model(found: Compared, place: PartingPlace) -> bool:
    """Return whether a place prepares data: outside of modules, computed from no parameter."""
    of_a = place.op_b < 0 or place.kind == MISSING
    own = found.iterations[0 if of_a else 1]
    op = place.op_a if of_a else place.op_b
    run, row = own.graph.run, int(own.graph.rows[op])
    if int(run.phase[row]) == DATA:
        return True
    outside = run.owner_row[row] < 0 and not own.updates[op]
    return bool(outside and not own.from_parameters[op] and not own.from_gradients[op])


def _other_passes(found: Compared, number: int) -> PartingPlace | None:
    """Return the first op of a forward pass that only one run has in an iteration."""
    a, b = (_passes(one, number) for one in found.iterations)
    if len(a) == len(b):
        return None
    of_a = len(a) > len(b)
    iterations = found.iterations[0 if of_a else 1]
    row = (a if of_a else b)[min(len(a), len(b))]
    graph = iterations.graph
    mine = np.flatnonzero(iterations.pass_of[graph.run.owner_row[graph.rows]] == row)
    mine = mine[[bool(graph.gives[op]) for op in mine.tolist()]]
    if not len(mine):
        return None
    op = int(mine[0])
    return _alone(op, graph.gives[op][0], of_a)


def _passes(iterations: Iterations, number: int) -> list[int]:
    """Return the forward passes of an iteration whose results have gradients."""
    run, tensors = iterations.graph.run, iterations.graph.run.tensors
    given = tensors.event[tensors.is_output & (run.columns.grad[tensors.value] > 0)]
    rows = set(given.tolist())
    return [
        index
        for index, one in enumerate(iterations.passes)
        if one.iteration == number and one.row in rows
    ]


def _alone(op: int, value: int, of_a: bool) -> PartingPlace:
    if of_a:
        return PartingPlace(MISSING, op, -1, value, of_a=True)
    return PartingPlace(EXTRA, -1, op, value, of_a=False)


def _at_result(found: Compared, wrong: list[int], number: int) -> PartingPlace | None:
    """Return the first op on the way to a wrong result that took what agrees, or what is alone."""
    assert found.drift is not None
    half, graph, level = found.b, found.b.graph, found.drift.level(number)
    makers = [(int(graph.maker[v]), v) for v in wrong if graph.maker[v] >= 0]
    if not makers:
        return None
    op, value = min(makers)
    while True:
        takes = [v for v in graph.takes[op] if graph.maker[v] >= 0 and half.facts.known[v]]
        off = [v for v in takes if half.far[v] > level]
        off = off or [v for v in takes if np.isnan(half.far[v]) and graph.depends[v]]
        if not off:
            break
        op, value = int(graph.maker[off[0]]), off[0]
    op_a = int(found.pairs[op])
    return PartingPlace(WRONG if op_a >= 0 else EXTRA, op_a, op, value, of_a=False)


class _Results:
    """What comes out of the iterations of two runs, iteration by iteration."""

    def __init__(self, found: Compared) -> None:
        self._found = found
        a, b = found.iterations
        self._versions = dict(a.given), dict(b.given)
        self._parameters = {path for path, _, _ in b.graph.run.columns.parameters}
        self._is_taken = ~b.left_behind

    def wrong(self, number: int) -> tuple[list[int], list[int]]:
        """Return the results of an iteration of `a` and of `b` that differ; ask in order."""
        a, b = self._found.iterations
        names = [*dict.fromkeys([*a.written[number], *b.written[number]])]
        compared = names
        if has_compiled(self._found):  # what compiled code writes is not seen
            compared = [
                one for one in names if one in a.written[number] and one in b.written[number]
            ]
        off = self._other_versions(number, compared) if names else []
        off = off or self._other_gradients(number)
        pairs = [(a.outputs[number], b.outputs[number])]
        if not names:
            both = [name for name in a.gradients[number] if name in b.gradients[number]]
            of_a, of_b = ([one.gradients[number][name] for name in both] for one in (a, b))
            pairs += [(of_a, of_b), (a.losses[number], b.losses[number])]
        for mine, theirs in pairs:
            if len(mine) == len(theirs):
                off += [(mine[at], theirs[at]) for at in _far(self._found, mine, theirs)]
        return [one for one, _ in off], [one for _, one in off]

    def _other_gradients(self, number: int) -> list[tuple[int, int]]:
        """Return the gradients that optimizers took, if they differ as a whole.

        Some optimizers make the same of gradients that are all larger by a factor. Gradients that
        are nothing but rounding are small, and count little.
        """
        facts = self._found.a.facts, self._found.b.facts
        a, b = (one.used_gradients[number] for one in self._found.iterations)
        assert self._found.drift is not None
        most = _GRADIENTS * self._found.drift.level(number)
        if parameter_error(a, facts[0], b, facts[1]) <= most:
            return []
        both = [name for name in a if name in b]
        of_a, of_b = (np.array([one[name] for name in both]) for one in (a, b))
        off = distances(facts[0], of_a, facts[1], of_b) > most
        return [*zip(of_a[off].tolist(), of_b[off].tolist(), strict=True)]

    def _other_versions(self, number: int, names: list[str]) -> list[tuple[int, int]]:
        """Return the versions of parameters and buffers that differ, and do harm."""
        (a, b), half = self._found.iterations, self._found.b
        self._versions[0].update(a.written[number])
        self._versions[1].update(b.written[number])
        both = [name for name in names if all(name in one for one in self._versions)]
        of_a, of_b = ([one[name] for name in both] for one in self._versions)
        found = []
        for at in _far(self._found, of_a, of_b):
            # Of what nothing took, nothing shows whether it does harm.
            is_harmless = self._is_taken[of_b[at]] and bool(half.right[of_b[at]])
            is_buffer = both[at] not in self._parameters
            if not is_harmless or (is_buffer and self._is_local(of_b[at])):
                found.append((of_a[at], of_b[at]))
        return found

    def _is_local(self, value: int) -> bool:
        """Return whether a value differs though all that its op took agrees."""
        half = self._found.b
        takes = half.graph.takes[int(half.graph.maker[value])]
        return not (half.far[takes] > half.noise[takes]).any()


def _far(found: Compared, of_a: list[int], of_b: list[int]) -> list[int]:
    """Return the positions of pairs that differ by more than noise."""
    if not of_a:
        return []
    at_a, at_b = np.array(of_a), np.array(of_b)
    far = distances(found.a.facts, at_a, found.b.facts, at_b)
    noise = np.maximum(found.a.noise[at_a], found.b.noise[at_b])
    found_off: list[int] = np.flatnonzero(far > noise).tolist()
    return found_off


def _other_settings(found: Compared) -> PartingPlace | None:
    """Return the first update with other settings, if it changes a parameter at all.

    Settings are exact: a rate that is a little different is no rounding, though each single update
    may differ by no more than that.
    """
    a, b = found.iterations
    changes = different_optimizers(a, b)
    if not changes:
        return None
    number = min(changes)
    for op in np.flatnonzero(b.updates & (b.of_op == number)).tolist():
        to_a = int(found.pairs[op])
        off = [v for v in b.graph.gives[op] if found.b.far[v] > 0]
        if to_a >= 0 and off and different_arguments(a.graph, to_a, b.graph, op):
            return PartingPlace(WRONG, to_a, op, off[0], of_a=False)
    return None


def _other_count(found: Compared) -> PartingPlace | None:
    """Return the beginning of the first iteration that only one run has."""
    a, b = found.iterations
    if a.count == b.count:
        return None
    longer, of_a = (a, True) if a.count > b.count else (b, False)
    op = _beginning(longer, min(a.count, b.count))
    return _alone(op, longer.graph.gives[op][0], of_a)


def _beginning(iterations: Iterations, number: int) -> int:
    """Return the first op of a forward pass of an iteration, or its first op."""
    graph = iterations.graph
    mine = np.flatnonzero(iterations.of_op == number)
    mine = mine[[bool(graph.gives[op]) for op in mine.tolist()]]
    inside = mine[graph.run.owner_row[graph.rows[mine]] >= 0]
    return int(inside[0]) if len(inside) else int(mine[0])
