"""Sharded tensors as wholes: fingerprints of all shards merged, compared with what was gathered.

Input: the ranks and how their tensors are placed. Output: placements with the norm of the whole,
and differences where the gathered tensor has the same numbers in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from clew.analysis.ranks.agreement import RankDifference
from clew.analysis.ranks.placements import SHARDED, Placement
from clew.analysis.ranks.rank_facts import RankFacts
from clew.analysis.ranks.rank_reader import RankReader
from clew.analysis.ranks.rank_table import RankTable
from clew.errors import ClewError
from clew.events.fingerprint import Fingerprint, unpacked

# Sums in float64 over shards, in another order than over the whole.
_ROUNDING = 1e-9


def merged_shards(
    reader: RankReader, facts: Sequence[RankFacts], placements: Sequence[Placement]
) -> tuple[list[Placement], list[RankDifference]]:
    """Merge the shards of every sharded tensor; return placements, and shards out of order."""
    sharded = {one.name: one for one in placements if one.placement == SHARDED
               and one.dim is not None and one.local is not None}  # fmt: skip
    if not sharded:
        return list(placements), []
    whole: dict[str, Fingerprint | None] = {}
    seen: set[tuple[str, int]] = set()
    for one in facts:
        wanted = {one.named[name].number: name for name in sharded if name in one.named}
        marks = _fingerprints(reader, one.rank, set(wanted))
        for number, name in wanted.items():
            content = (name, one.named[name].digest)
            if len(sharded[name].groups[0]) > 1 and content in seen:
                continue  # another replica of this shard
            seen.add(content)
            whole[name] = _joined(whole.get(name), marks.get(number), sharded[name],
                                  name in whole)  # fmt: skip
    found = [replace(one, norm=_norm(one, whole.get(one.name))) for one in placements]
    return found, _out_of_order(reader, sharded, whole)


def _fingerprints(reader: RankReader, rank: int, numbers: set[int]) -> dict[int, Fingerprint]:
    rows = reader.column(rank, ["value", "fingerprint", "nan", "inf", "min", "max"])
    values = rows["value"].to_numpy()
    at = np.flatnonzero(np.isin(values, list(numbers)))
    found: dict[int, Fingerprint] = {}
    for row in rows.take(at).to_pylist():
        mark = _unpacked(row)
        if mark is not None:
            found[row["value"]] = mark
    return found


def _unpacked(row: dict[str, Any]) -> Fingerprint | None:
    if not row["fingerprint"]:
        return None
    try:
        stats = {name: 0 if row[name] is None and name in ("nan", "inf") else row[name]
                 for name in ("nan", "inf", "min", "max")}  # fmt: skip
        return unpacked(np.array(row["fingerprint"], "<f8"), stats)
    except ValueError:
        return None


def _joined(
    whole: Fingerprint | None, part: Fingerprint | None, one: Placement, begun: bool
) -> Fingerprint | None:
    """Add a shard to what there is; None once a shard is not known."""
    if part is None or (begun and whole is None) or one.dim is None:
        return None
    if whole is None:
        return part
    try:
        return whole.merge(part, one.dim)
    except ClewError:
        return None


def _norm(one: Placement, whole: Fingerprint | None) -> float | None:
    if whole is None or whole.shape != one.shape:
        return one.norm
    return sqrt(whole.squares)


def _out_of_order(
    reader: RankReader, sharded: dict[str, Placement], whole: dict[str, Fingerprint | None]
) -> list[RankDifference]:
    """Find gathered tensors that have the numbers of all shards in another order."""
    rank = reader.ranks[0]
    wanted = {name: mark for name, mark in whole.items()
              if mark is not None and mark.shape == sharded[name].shape
              and mark.marginals[sharded[name].dim or 0]}  # fmt: skip
    if not wanted:
        return []
    table = reader.read(rank)
    by_module: dict[str, list[str]] = {}
    for name in wanted:
        by_module.setdefault(name.rpartition(".")[0], []).append(name)
    used: dict[int, tuple[str, int]] = {}
    for row in range(len(table.id)):
        module = table.modules[row]
        for slot in table.taken(row) if module in by_module else ():
            used.setdefault(int(table.values.number[table.slot_value[slot]]), (module or "", row))
    marks = _fingerprints(reader, rank, set(used))
    found = []
    for number, mark in marks.items():
        module, row = used[number]
        for name in by_module[module]:
            if _is_shuffled(mark, wanted[name], sharded[name].dim or 0):
                found.append(_shuffled(reader, table, row, name))
    return found[:1]


def _is_shuffled(mark: Fingerprint, whole: Fingerprint, dim: int) -> bool:
    """Return whether a tensor has the numbers of another, in another order along an axis."""
    if mark.shape != whole.shape or not mark.marginals[dim]:
        return False
    size = max(whole.absolute, 1e-300)
    sums = [(mark.absolute, whole.absolute), (mark.total, whole.total)]
    if any(abs(one - other) > _ROUNDING * size for one, other in sums):
        return False
    if abs(mark.squares - whole.squares) > _ROUNDING * max(whole.squares, 1e-300):
        return False
    mine, theirs = np.array(mark.marginals[dim]), np.array(whole.marginals[dim])
    close = np.abs(mine - theirs) <= _ROUNDING * size
    return not bool(close.all()) and bool(
        (np.abs(np.sort(mine) - np.sort(theirs)) <= _ROUNDING * size).all())  # fmt: skip


def _shuffled(reader: RankReader, table: RankTable, row: int, name: str) -> RankDifference:
    file, line = table.place(row)
    short = file.replace("\\", "/").rpartition("/")[2]
    text = (f"{table.names[row]} in {table.modules[row]} at {short}:{line}, step "
            f"{int(table.step[row])}: took {name} with its shards in another order than the ranks "
            "hold them")  # fmt: skip
    return RankDifference(
        "order", tuple(reader.ranks), (), int(table.step[row]), table.phases[row] or "",
        table.names[row] or "", table.modules[row], name, short, line, int(table.id[row]), text, (),
    )  # fmt: skip
