"""Where ranks differ: the first call or op that one rank ran and another did not.

Input: a `Run`. Output: `Parting`s. Only what ran is compared, not the values of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.events.columns import Ints
from clew.events.vocabulary import MODULE, OP
from clew.run.run import Run


@dataclass(frozen=True, slots=True)
class Parting:
    """Ranks that all ran the same, but not what the rank `other` ran.

    `row` is the first call or op of the first of them that differs, `other_row` what `other` ran
    instead; -1 if one of the two had ended.
    """

    ranks: tuple[int, ...]
    other: int
    row: int
    other_row: int


def partings(run: Run) -> list[Parting]:
    """Compare all ranks with what most of them ran; the earliest difference comes first."""
    rows = {rank: _rows_in_order(run, rank) for rank in run.ranks}
    # A rank without any calls or ops is reported by coverage.
    rows = {rank: mine for rank, mine in rows.items() if len(mine)}
    if len(rows) < 2:
        return []
    ran = {rank: _what_ran(run, mine) for rank, mine in rows.items()}
    groups: dict[bytes, list[int]] = {}
    for rank, sequence in ran.items():
        groups.setdefault(sequence.tobytes(), []).append(rank)
    most, *others = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    other = most[0]
    found = []
    for ranks in others:
        at = _first_difference(ran[ranks[0]], ran[other])
        row, other_row = (int(r[at]) if at < len(r) else -1 for r in (rows[ranks[0]], rows[other]))
        found.append((at, Parting(tuple(ranks), other, row, other_row)))
    return [parting for _, parting in sorted(found, key=lambda one: (one[0], one[1].ranks))]


def _rows_in_order(run: Run, rank: int) -> Ints:
    """Return the calls and ops of a rank thread by thread, as threads interleave differently."""
    rows = np.flatnonzero((run.process == rank) & np.isin(run.columns.kind, (MODULE, OP)))
    return np.asarray(rows[np.argsort(run.thread[rows], kind="stable")])


def _what_ran(run: Run, rows: Ints) -> Ints:
    """Return each row as numbers that are the same on all ranks: kind, subject and module."""
    c = run.columns
    return np.stack([c.kind[rows], c.subject[rows], run.derived.module[rows]], axis=1)


def _first_difference(a: Ints, b: Ints) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero((a[:size] != b[:size]).any(axis=1))
    return int(different[0]) if len(different) else size
