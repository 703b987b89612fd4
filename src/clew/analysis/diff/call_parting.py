"""Where two runs part by their module calls: one of them was recorded without ops.

Input: `Compared`. Output: the first call that gave something else for the same, or made something
else for a call inside it, and how much of each run agrees. A call is compared as it begins and as
it ends, in the order of `b`.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.diff.arguments import different_attributes
from clew.analysis.diff.compared import Compared
from clew.analysis.diff.distance import distances
from clew.analysis.diff.divergence import Divergence, Matched
from clew.analysis.diff.named_parting import between
from clew.analysis.diff.parting import EXTRA, INPUTS, MISSING, WRONG
from clew.analysis.diff.source_changes import changed_functions
from clew.events.columns import IN, OUT
from clew.events.number_text import measured
from clew.events.vocabulary import MODULE
from clew.run.run import Run

ONLY_CALLS = (
    "{} without ops, so module calls were compared; level='ops' records the op and the line where "
    "they part"
)


def has_only_calls(found: Compared) -> bool:
    """Return whether one run has no ops, and both have module calls."""
    halves = (found.a, found.b)
    return not all(len(half.graph) for half in halves) and all(
        len(half.graph.run.rows(MODULE)) for half in halves
    )


def without_ops(found: Compared) -> str:
    """Say which runs have no ops."""
    sides = [side for side, half in (("a", found.a), ("b", found.b)) if not len(half.graph)]
    return ONLY_CALLS.format(
        f"{' and '.join(sides)} {'was' if len(sides) == 1 else 'were'} recorded"
    )


def first_call(found: Compared) -> tuple[Divergence | None, Matched]:
    """Return the first call at which two runs part, and how many of the calls agree."""
    a, b = found.a.graph.run, found.b.graph.run
    of_a, of_b = _calls(a), _calls(b)
    # When each divergence came in `b`.
    parted: list[tuple[float, Divergence]] = []
    before, other = -np.inf, set[str]()
    for address, row in of_a.items():
        row_b = of_b.get(address)
        if row_b is None:
            parted.append((before, _only(found, MISSING, row)))
            continue
        before = float(b.start[row_b])
        given, made = (_difference(found, row, row_b, role) for role in (IN, OUT))
        if not found.has_values:
            made = made or different_attributes(a, row, b, row_b)
        if given:
            parted.append((before, _given(found, row, row_b, given)))
        if made:
            other.add(address)
            parted.append((float(b.end[row_b]), _made(found, row, row_b, made)))
    for address, row in of_b.items():
        if address not in of_a:
            parted.append((float(b.start[row]), _only(found, EXTRA, row)))
    agreeing = len(of_a.keys() & of_b.keys() - other)
    matched = Matched(agreeing / len(of_a), agreeing / len(of_b))
    return (min(parted, key=lambda one: one[0])[1] if parted else None), matched


def _calls(run: Run) -> dict[str, int]:
    """Return the calls of a run by address, in the order they began in."""
    rows = run.rows(MODULE)
    in_order = rows[np.argsort(run.start[rows], kind="stable")].tolist()
    return {run.address(row): row for row in in_order}


def _difference(found: Compared, row_a: int, row_b: int, role: str) -> list[str]:
    """Say how what two calls were given, or gave, differs; nothing if it agrees."""
    a, b = found.a.graph.run, found.b.graph.run
    mine, theirs = (
        {leaf.path: number for leaf, number in run.direct_values(row) if leaf.role == role}
        for run, row in ((a, row_a), (b, row_b))
    )
    if mine.keys() != theirs.keys():
        return [f"a has {', '.join(mine) or 'no tensor'} there, b {', '.join(theirs) or 'none'}"]
    for path in mine:
        said = between(found, mine[path], theirs[path])
        if said:
            return [f"at {path}: {said[0]}", *said[1:]] if path else said
    return []


def _only(found: Compared, kind: str, row: int) -> Divergence:
    run = (found.a if kind == MISSING else found.b).graph.run
    a, b = (run.event(row), None) if kind == MISSING else (None, run.event(row))
    return Divergence(kind, a, b, ("only one run calls this module",), ())


def _given(found: Compared, row_a: int, row_b: int, said: list[str]) -> Divergence:
    """Return the divergence of calls that were given other tensors: what made them is at fault."""
    a, b = found.a.graph.run, found.b.graph.run
    around_a, around_b = int(a.parent_row[row_a]), int(b.parent_row[row_b])
    if min(around_a, around_b) < 0:
        evidence = (f"what it is given differs: {said[0]}", *said[1:])
        return Divergence(INPUTS, a.event(row_a), b.event(row_b), evidence, ())
    called = b.event(row_b)
    line = "" if called.source is None else f" at {called.source.text}"
    evidence = (f"what it gives to {called.module}{line} differs: {said[0]}", *said[1:])
    return _wrong(found, around_a, around_b, evidence)


def _made(found: Compared, row_a: int, row_b: int, said: list[str]) -> Divergence:
    """Return the divergence of calls that gave something else, or are set otherwise."""
    if not found.has_values:
        return _wrong(found, row_a, row_b, tuple(said))
    evidence = (f"its inputs agree {_agreement(found, row_a, row_b)}, its result: {said[0]}",)
    return _wrong(found, row_a, row_b, (*evidence, *said[1:]))


def _wrong(found: Compared, row_a: int, row_b: int, evidence: tuple[str, ...]) -> Divergence:
    a, b = found.a.graph.run, found.b.graph.run
    said = dict.fromkeys((*evidence, *different_attributes(a, row_a, b, row_b)))
    suspects = tuple(changed_functions(a, [row_a], b, [row_b]))
    return Divergence(WRONG, a.event(row_a), b.event(row_b), tuple(said), suspects)


def _agreement(found: Compared, row_a: int, row_b: int) -> str:
    mine, theirs = (
        np.array([n for leaf, n in half.graph.run.direct_values(row) if leaf.role == IN], np.int64)
        for half, row in ((found.a, row_a), (found.b, row_b))
    )
    far = distances(found.a.facts, mine, found.b.facts, theirs)
    known = far[~np.isnan(far)]
    if not len(known):
        return "as far as is known"
    return f"to {measured(float(known.max()), 1)}" if known.max() > 0 else "bit for bit"
