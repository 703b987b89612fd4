"""Ranks and steps: which events belong to each, and which of them are the same.

Input: a `Run`. Output: `RankStep`s: what one rank did in one step. Two are the same when they ran
the same calls and ops on tensors of the same shapes, in the same order and nesting, in forward,
backward and optimizer; constants, such as a learning rate, may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from clew.analysis.structure import Structure
from clew.analysis.tree.totals import BACKWARD_SECTION, ENTRIES, OPTIMIZER_SECTION
from clew.events.columns import Ints
from clew.events.vocabulary import BACKWARD, COMPOSITE, MODULE, OP, OPTIMIZER, RECOMPUTE
from clew.run.lookup import numbered
from clew.run.run import Run


@dataclass(frozen=True, slots=True, eq=False)
class RankStep:
    """What one rank did in one step: its events, and the keys to compare it by."""

    rank: int
    step: int
    rows: Ints
    key: object
    exact_key: object


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Ranks, or consecutive steps, that did the same; each row of `spans` has the events of one.

    `exact` is False if sizes of tensors differ between them.
    """

    numbers: tuple[int, ...]
    first: list[RankStep]
    spans: Ints
    exact: bool


def top_rows(run: Run) -> Ints:
    """Return for each row the outermost event it ran in, itself if it ran in none."""
    top: Ints = np.where(run.parent_row < 0, np.arange(len(run)), run.parent_row)
    while True:
        above = top[top]
        if np.array_equal(above, top):
            return top
        top = above


def sections(run: Run, top: Ints) -> Ints:
    """Return for each row whether it belongs to the backward pass, the optimizer or neither.

    The outermost event decides: what a call runs belongs to the call, even if it is a backward
    pass. A call counts as a call unless a checkpoint recomputes it.
    """
    kind, phase = run.columns.kind[top], run.phase[top]
    is_call = kind == MODULE
    section = np.full(len(run), ENTRIES, dtype=np.int64)
    section[(~is_call & (phase == BACKWARD)) | (phase == RECOMPUTE)] = BACKWARD_SECTION
    section[~is_call & (phase == OPTIMIZER)] = OPTIMIZER_SECTION
    return section


def stretches(
    run: Run, structure: Structure, sizeless: Structure | None, top: Ints
) -> list[RankStep]:
    """Return what each rank did in each step, in order, without steps in which nothing ran.

    With `sizeless`, sizes of tensors are ignored.
    """
    c = run.columns
    failed = (c.error >= 0) & (c.kind != COMPOSITE)
    rows = np.flatnonzero((c.kind == MODULE) | (c.kind == OP) | failed)
    if not len(rows):
        return []
    # What a call runs belongs to the step in which the call began.
    step = run.step[top[rows]]
    process = run.process[rows]
    if ((np.diff(process) < 0) | ((np.diff(process) == 0) & (np.diff(step) < 0))).any():
        rows = rows[np.lexsort((rows, step, process))]
        step, process = run.step[top[rows]], run.process[rows]
    bounds = np.flatnonzero(np.r_[True, (np.diff(step) != 0) | (np.diff(process) != 0)])
    ends = np.r_[bounds[1:], len(rows)]
    if len(bounds) == 1:
        return [RankStep(int(process[0]), int(step[0]), rows, None, None)]
    position = np.full(len(run) + 1, -1, dtype=np.int64)
    position[rows] = np.arange(len(rows)) - np.repeat(bounds, ends - bounds)
    counts, looks = structure.tensors.looks(rows)
    loose = None if sizeless is None else sizeless.tensors.looks(rows)[1]
    # One number for everything by which an event is compared.
    facts = numbered(
        c.kind[rows], c.subject[rows], position[run.parent_row[rows]], run.phase[rows],
        c.error[rows], _threads(run)[rows], run.end[rows] < 0, counts,
    )  # fmt: skip
    starts = np.r_[0, np.cumsum(counts)]
    found = []
    for first, end in zip(bounds.tolist(), ends.tolist(), strict=True):
        mode = run.modes.get(int(step[first]))
        ran = mode, facts[first:end].tobytes()
        exact = ran, looks[starts[first] : starts[end]].tobytes()
        key = exact if loose is None else (ran, loose[starts[first] : starts[end]].tobytes())
        found.append(RankStep(int(process[first]), int(step[first]), rows[first:end], key, exact))
    return found


def _threads(run: Run) -> Ints:
    """Return for each row its thread as a number among those of its rank."""
    threads: Ints = run.thread.copy()
    for rank in run.ranks:
        mine = run.process == rank
        threads[mine] = numbered(run.thread[mine])
    return threads


def alike_ranks(found: list[RankStep], fold: bool) -> list[Alike]:
    """Return the ranks; those that did the same in all their steps are one."""
    groups: dict[object, list[list[RankStep]]] = {}
    for rank, stretches_of_rank in groupby(found, lambda stretch: stretch.rank):
        mine = list(stretches_of_rank)
        key = tuple((stretch.step, stretch.key) for stretch in mine) if fold else rank
        groups.setdefault(key, []).append(mine)
    return [_alike(group, tuple(mine[0].rank for mine in group)) for group in groups.values()]


def alike_steps(found: list[RankStep], fold: bool) -> list[Alike]:
    """Return the steps of a rank; consecutive equal ones are one."""
    groups: list[list[RankStep]] = []
    for stretch in found:
        if fold and groups and groups[-1][-1].key == stretch.key:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
    return [_alike([[s] for s in group], tuple(s.step for s in group)) for group in groups]


def _alike(group: list[list[RankStep]], numbers: tuple[int, ...]) -> Alike:
    spans = np.stack([np.concatenate([stretch.rows for stretch in mine]) for mine in group])
    exact = len({tuple(stretch.exact_key for stretch in mine) for mine in group}) == 1
    return Alike(numbers, group[0], spans, exact)
