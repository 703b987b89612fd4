"""Compare two runs, and say where they part.

Input: two `Run`s, perhaps new names for modules of the second, and the error that counts as noise.
Output: a `Diff`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clew.analysis.diff.call_parting import first_call, has_only_calls, without_ops
from clew.analysis.diff.compared import Compared, Half, compare
from clew.analysis.diff.compiled_regions import compiled_divergence, has_compiled
from clew.analysis.diff.distance import distances
from clew.analysis.diff.divergence import Diff, Divergence, Matched, ModuleError
from clew.analysis.diff.evidence import evidence_of, silent_changes, suspects_of
from clew.analysis.diff.jumps import CROSS_NOISE, first_jump, precisions
from clew.analysis.diff.named_parting import first_named, has_only_names
from clew.analysis.diff.noise import NOISE, ROUNDING, Noise
from clew.analysis.diff.ops_alone import check_same_code, first_other_op, lacking, matched_ops
from clew.analysis.diff.orders import level_notes
from clew.analysis.diff.parting import INPUTS, PartingPlace, first_parting, small_parting
from clew.analysis.diff.renaming import renaming
from clew.analysis.diff.step_series import step_errors
from clew.analysis.diff.training_causes import DATA, PARAMETERS, STEPS, TrainingCause
from clew.analysis.diff.training_parting import TrainingPlace, iteration_of, training_parting
from clew.errors import ClewError
from clew.events.columns import OUT
from clew.events.vocabulary import MODULE
from clew.run.run import Run

# Of two runs of different programs less than this matches.
_FEW = 0.2


def diff_runs(
    a: Run,
    b: Run,
    names: Mapping[str, str] | None = None,
    tolerance: Noise | float | None = None,
) -> Diff:
    """Compare the first rank that both runs have; raise ClewError if one has nothing to compare."""
    a, b, notes = comparable(a, b)
    found = _compared(a, b, names, tolerance, notes)
    return replace(found, notes=(*found.notes, *_damage(a, b)))


def _damage(a: Run, b: Run) -> list[str]:
    """Say what could not be read of the runs, which may be why they differ or agree."""
    return [
        f"{side} is damaged: {gap.what}, {gap.why}"
        for side, run in (("a", a), ("b", b))
        for gap in run.damage
    ]


def _compared(
    a: Run,
    b: Run,
    names: Mapping[str, str] | None,
    tolerance: Noise | float | None,
    notes: list[str],
) -> Diff:
    """Compare one rank of two runs; `notes` are added to."""
    rename = renaming(names) if names else None
    found = compare(a, b, rename, tolerance)
    if has_only_names(found):
        first, matched = first_named(found)
        return answer(found, first, tolerance, notes, matched)
    if has_only_calls(found):
        first, matched = first_call(found)
        return answer(found, first, tolerance, [*notes, without_ops(found)], matched)
    if not found.has_values:
        return _by_ops_alone(found, notes)
    across = precisions(found.a.graph, found.b.graph) if tolerance is None else None
    parting: PartingPlace | TrainingPlace | None
    if across is None:
        parting = _first_parting(found) if found.drift is None else training_parting(found)
        if parting is None and not isinstance(tolerance, float | int):
            parting = _by_small_change(found)
    else:
        tolerance = CROSS_NOISE
        found = compare(a, b, rename, tolerance)
        parting = _across(found, across)
        notes.append(
            f"a is in {across[0]}, b in {across[1]}: only what adds far more than rounding is "
            "named; clew.diff_models compares models of two precisions without that"
        )
        if not (found.pairs >= 0).any():
            notes.append("the code differs too, so that the place named is a guess")
    first = None if parting is None else described(found, parting)
    if across is None and (first is None or first.kind != INPUTS):
        first = compiled_divergence(found) or first
    return answer(found, first, tolerance, notes)


def _by_ops_alone(found: Compared, notes: Sequence[str]) -> Diff:
    """Compare two runs of about the same code, one of which has no statistics of values."""
    check_same_code(found)
    place = first_other_op(found)
    first = None if place is None else described(found, place)
    said = (
        f"{lacking(found)}: only ops, shapes, and the numbers and texts given to ops were "
        "compared; record both with values='fingerprint'"
    )
    matched = matched_ops(found)
    return Diff(first is None, first, module_errors(found), matched, {}, (*notes, said), found)


def _first_parting(found: Compared) -> PartingPlace | None:
    """Return where two runs part; of what nothing was recorded, by the ops that are others."""
    place = first_parting(found)
    if place is None or not (found.pairs >= 0).any():
        return place
    sides = (found.a, found.b) if place.of_a else (found.b, found.a)
    op = place.op_a if place.of_a else place.op_b
    takes = np.array(sides[0].graph.takes[op], dtype=np.int64)
    partners = sides[0].partner[takes]
    unrecorded = ~sides[0].facts.known[takes]
    unrecorded |= (partners >= 0) & ~sides[1].facts.known[partners]
    if not unrecorded.any() or not np.isnan(sides[0].far[takes]).all():
        return place
    return first_other_op(found, None if place.op_b < 0 else place.op_b) or place


def _by_small_change(found: Compared) -> PartingPlace | TrainingPlace | None:
    """Return where runs that agree up to noise part by a number or text given to an op."""
    place = small_parting(found)
    if place is None or found.drift is None:
        return place
    return TrainingPlace(place, iteration_of(found, place))


def _across(found: Compared, dtypes: tuple[str, str]) -> PartingPlace | None:
    """Return where runs of two precisions part; in other code, whose ops have no partners, by what
    comes out.
    """
    if not (found.pairs >= 0).any():
        return first_parting(found)
    return first_jump(found, max(dtypes, key=ROUNDING.__getitem__))


def answer(
    found: Compared,
    first: Divergence | None,
    tolerance: Noise | float | None,
    notes: Sequence[str] = (),
    matched: Matched | None = None,
) -> Diff:
    """Return what was found as a `Diff`, with all that is to be said of the values.

    `matched` is computed of the values of ops if it is not given.
    """
    matched = matched or Matched(_matched(found.a), _matched(found.b))
    levels = level_notes(found.a.graph.run, found.b.graph.run)
    if not found.has_values:
        levels = [f"{lacking(found)}; record both with values='fingerprint'"]
    said = [*notes, *levels]
    said += [f"though {one}" for one in silent_changes(found)] if first is None else []
    said += _drifted(found) if first is None else []
    said += [str(tolerance)] if isinstance(tolerance, Noise) else []
    # Of a compiled region little is seen, so that little may match.
    if min(matched.a, matched.b) < _FEW and not has_compiled(found):
        said.append(
            f"almost nothing matches ({matched.b:.0%} of b): are these runs of the same model "
            "with the same inputs and weights?"
        )
    table, noise = module_errors(found), _noise(found, tolerance)
    steps = () if found.drift is None else step_errors(found)
    return Diff(first is None, first, table, matched, noise, tuple(said), found, steps)


def _drifted(found: Compared) -> list[str]:
    """Say how far training runs that agree drift apart, if it is more than noise is at first."""
    errors = [] if found.drift is None else found.drift.errors
    if found.drift is None or not errors or max(errors) <= found.drift.levels[0]:
        return []
    return [
        f"what the model returns drifts apart from {errors[0]:.0e} to {max(errors):.0e} over "
        f"{len(errors)} steps, as rounding does"
    ]


def comparable(a: Run, b: Run) -> tuple[Run, Run, list[str]]:
    """Return one rank of each run and what to say of that; ClewError if there is nothing."""
    for side, run in (("a", a), ("b", b)):
        if not len(run):
            raise ClewError(f"nothing was recorded in {side}: there is nothing to compare")
    if len(a.ranks) == len(b.ranks) == 1:
        return a, b, []
    common = sorted(set(a.ranks) & set(b.ranks))
    if not common:
        raise ClewError(f"the runs have no rank in common: a has {a.ranks}, b {b.ranks}")
    rank = common[0]
    note = f"only rank {rank} was compared; `t.only(rank=1)` gives another"
    return a.only(rank=rank), b.only(rank=rank), [note]


def _matched(half: Half) -> float:
    """Return the part of the values computed from inputs that is right."""
    computed = half.facts.known & (half.graph.maker >= 0) & half.graph.depends
    return float(half.right[computed].mean()) if computed.any() else 0.0


def described(found: Compared, place: PartingPlace | TrainingPlace) -> Divergence:
    """Return a place where runs part with both events, evidence and suspects."""
    parting = place.place if isinstance(place, TrainingPlace) else place
    a, b = (
        None if op < 0 else half.graph.run.event(int(half.graph.rows[op]))
        for half, op in ((found.a, parting.op_a), (found.b, parting.op_b))
    )
    evidence, suspects = evidence_of(found, parting), suspects_of(found, parting)
    if not isinstance(place, TrainingPlace):
        return Divergence(parting.kind, a, b, evidence, suspects)
    cause = TrainingCause(found, place)
    more = tuple(one for one in cause.said() if one not in evidence)
    if cause.cause == STEPS:
        evidence = more  # of an op that the other run never reaches there is nothing to compare
    else:
        # Of data it matters most which batch it is, then where it was made.
        evidence = (*more, *evidence) if cause.cause == DATA else (*evidence, *more)
    kind = INPUTS if cause.cause in (DATA, PARAMETERS) else parting.kind
    return Divergence(kind, a, b, evidence, suspects, cause.cause, cause.step)


def _noise(found: Compared, tolerance: Noise | float | None) -> dict[str, float]:
    """Return the noise of each dtype there is, of values whose own was not measured."""
    there = {run.metas[m].dtype for run in (found.a.graph.run, found.b.graph.run)
             for m in np.unique(run.columns.meta).tolist()}  # fmt: skip
    levels: Mapping[str, float] = NOISE
    if isinstance(tolerance, Noise):
        levels = {**NOISE, **tolerance.dtypes}
    elif tolerance is not None:
        levels = dict.fromkeys(NOISE, tolerance)
    return {dtype: level for dtype, level in levels.items() if dtype in there}


def module_errors(found: Compared) -> tuple[ModuleError, ...]:
    """Compare the outputs of the module calls that both runs have, in the order they ended in."""
    a, b = found.a.graph.run, found.b.graph.run
    calls = {a.address(row): row for row in a.rows(MODULE).tolist()}
    # The address of each call, and where its results begin and end among those compared.
    spans: list[tuple[str, int, int]] = []
    of_a: list[int] = []
    of_b: list[int] = []
    ended = b.rows(MODULE)
    for row in ended[np.argsort(b.end[ended], kind="stable")].tolist():
        address = b.address(row)
        other = calls.get(address)
        if other is None:
            continue
        mine, theirs = _results(b, row), _results(a, other)
        begin = len(of_b)
        if len(mine) == len(theirs):
            of_a += theirs
            of_b += mine
        spans.append((address, begin, len(of_b)))
    numbers = np.array(of_b, dtype=np.int64)
    far = distances(found.a.facts, np.array(of_a, dtype=np.int64), found.b.facts, numbers)
    beyond = (far > found.b.noise[numbers]).tolist()
    errors = far.tolist()
    rows = []
    for address, begin, end in spans:
        known = [error for error in errors[begin:end] if error == error]
        agrees = not any(beyond[begin:end])
        rows.append(ModuleError(address, max(known, default=None), agrees))
    return tuple(rows)


def _results(run: Run, row: int) -> list[int]:
    return [number for leaf, number in run.direct_values(row) if leaf.role == OUT]
