"""Where two training runs part: the first iteration whose results differ, and the op in it.

Input: `Compared` runs that both compute gradients. Output: a `PartingPlace`, or None. The results of
an iteration are the parameters and buffers it leaves, its losses, and what its passes return.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.arguments import different_arguments
from clew.analysis.diff.compared import Compared
from clew.analysis.diff.distance import distances
from clew.analysis.diff.iterations import Iterations
from clew.analysis.diff.optimizer_settings import different_optimizers
from clew.analysis.diff.parting import EXTRA, MISSING, WRONG, PartingPlace, Window, parting_in


def training_parting(found: Compared) -> PartingPlace | None:
    """Return the first place where two training runs part, None if they agree up to noise."""
    a, b = found.iterations
    results = _Results(found)
    for number in range(min(len(a.written), len(b.written))):
        wrong_a, wrong_b = results.wrong(number)
        if not wrong_a and not wrong_b:
            continue
        until = [int(np.searchsorted(one.of_op, number, side="right")) for one in (a, b)]
        place = parting_in(found, Window(wrong_a, wrong_b, *until))
        return place or _at_result(found, wrong_b)
    return _other_settings(found) or _other_count(found)


def _at_result(found: Compared, wrong: list[int]) -> PartingPlace | None:
    """Return the op that made the first wrong result, where no op is at fault by itself."""
    makers = [(int(found.b.graph.maker[v]), v) for v in wrong if found.b.graph.maker[v] >= 0]
    if not makers:
        return None
    op, value = min(makers)
    return PartingPlace(WRONG, int(found.pairs[op]), op, value, of_a=False)


class _Results:
    """What comes out of the iterations of two runs, iteration by iteration."""

    def __init__(self, found: Compared) -> None:
        self._found = found
        a, b = found.iterations
        self._versions = dict(a.given), dict(b.given)

    def wrong(self, number: int) -> tuple[list[int], list[int]]:
        """Return the results of an iteration of `a` and of `b` that differ; ask in order."""
        found, (a, b) = self._found, self._found.iterations
        names = [*dict.fromkeys([*a.written[number], *b.written[number]])]
        versions = self._versions
        if names:
            versions[0].update(a.written[number])
            versions[1].update(b.written[number])
        else:
            names = [*dict.fromkeys([*a.gradients[number], *b.gradients[number]])]
            versions = a.gradients[number], b.gradients[number]
        both = [name for name in names if all(name in one for one in versions)]
        of_a, of_b = ([one[name] for name in both] for one in versions)
        off = _far(found, of_a, of_b)
        wrong_a = [of_a[at] for at in off]
        wrong_b = [of_b[at] for at in off]
        for mine, theirs in zip((a.losses, a.outputs), (b.losses, b.outputs), strict=True):
            values = mine[number], theirs[number]
            if len(values[0]) == len(values[1]):
                off = _far(found, *values)
                wrong_a += [values[0][at] for at in off]
                wrong_b += [values[1][at] for at in off]
        return wrong_a, wrong_b


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
    value = longer.graph.gives[op][0]
    return PartingPlace(MISSING if of_a else EXTRA, op if of_a else -1, -1 if of_a else op, value,
                        of_a=of_a)  # fmt: skip


def _beginning(iterations: Iterations, number: int) -> int:
    """Return the first op of a forward pass of an iteration, or its first op."""
    graph = iterations.graph
    mine = np.flatnonzero(iterations.of_op == number)
    mine = mine[[bool(graph.gives[op]) for op in mine.tolist()]]
    inside = mine[graph.run.owner_row[graph.rows[mine]] >= 0]
    return int(inside[0]) if len(inside) else int(mine[0])
