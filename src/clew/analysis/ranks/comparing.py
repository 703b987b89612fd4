"""All ranks of a saved trace → `RankAgreement`.

Ranks are read one after the other, twice: to count what most of them hold, and to find where each
differs from it. At no time are more than a few of them in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from clew.analysis.ranks.agreement import RankAgreement, RankDifference, RankEnd
from clew.analysis.ranks.agreement_lines import listed
from clew.analysis.ranks.placements import (
    PER_RANK,
    REPLICATED,
    Placement,
    is_regular,
    is_running_statistic,
    mesh_groups,
    partition,
    placements_of,
)
from clew.analysis.ranks.rank_causes import RankWalk
from clew.analysis.ranks.rank_facts import RankFacts, facts_of
from clew.analysis.ranks.rank_modes import mode_difference, nan_difference
from clew.analysis.ranks.rank_reader import RankReader
from clew.analysis.ranks.rank_table import RankTable
from clew.analysis.ranks.sentences import difference_of
from clew.analysis.ranks.sharded_tensors import merged_shards
from clew.analysis.ranks.violations import Ballots, Rules, Violation, synced_slots, violations
from clew.errors import BadTrace, ClewError
from clew.program_errors import pass_on
from clew.store.storage import Storage

Groups: TypeAlias = "tuple[tuple[int, ...], ...]"
# Groups of wrong ranks whose cause is looked for one by one.
_MOST_CAUSES = 16


def compare_ranks(storage: Storage, tol: float | None = None) -> RankAgreement:
    """Compare all ranks of a trace; `tol` is the relative error that counts as equal."""
    reader = RankReader(storage, tol)
    try:
        return _compare(reader)
    except ClewError:
        raise
    except Exception as broken:
        pass_on(broken)
        # Files of a stranger may cause any exception; the message names the trace.
        raise BadTrace(f"{storage} is damaged: {type(broken).__name__}: {broken}") from broken


def _compare(reader: RankReader) -> RankAgreement:
    ballots = Ballots.of(len(reader.ranks))
    facts: list[RankFacts] = []
    for table in reader.tables():
        facts.append(facts_of(table))
        ballots.add(table)
    if not any(one.events for one in facts):
        raise BadTrace(f"nothing was recorded in {reader.place}, or nothing of it can be read")
    placements = placements_of(facts)
    found: list[RankDifference] = []
    for group, counted in _groups(reader, facts, placements, ballots):
        found += _compare_group(reader, group, counted, placements)
    merged, disordered = merged_shards(reader, facts, placements)
    found += [*disordered, *mode_difference(facts), *nan_difference(reader, facts)]
    differences = _ordered(found)
    return RankAgreement(
        ranks=tuple(reader.ranks),
        differences=tuple(differences),
        groups=_agreeing(reader.ranks, differences),
        placements=tuple(merged),
        ended=tuple(_end(one) for one in facts if not one.ended),
        notes=tuple(_notes(facts, merged, reader)),
        compared=max(one.tensors for one in facts),
    )


def _groups(
    reader: RankReader,
    facts: Sequence[RankFacts],
    placements: Sequence[Placement],
    ballots: Ballots,
) -> Iterator[tuple[list[RankFacts], Ballots]]:
    """Yield the ranks to compare with each other: all, or the groups of a mesh."""
    meshes = mesh_groups(placements)
    if not meshes:
        yield list(facts), ballots
        return
    batches = partition({one.rank: one.batch for one in facts})
    covers = [meshes[0], *([batches] if is_regular(batches) and batches != meshes[0] else [])]
    by_rank = {one.rank: one for one in facts}
    for groups in covers:
        for group in groups:
            counted = Ballots.of(len(group))
            for table in reader.tables(group):
                counted.add(table)
            yield [by_rank[rank] for rank in group], counted


def _compare_group(
    reader: RankReader, group: list[RankFacts], ballots: Ballots, placements: Sequence[Placement]
) -> list[RankDifference]:
    """Compare ranks that do the same work, on batches of their own or on one batch."""
    if len(group) < 2:
        return []
    usual = reader.read(_usual(group))
    ranks = tuple(one.rank for one in group)
    rules = _rules(group, usual, ballots, placements, reader.tol is None)
    first: dict[int, Violation] = {}
    for table in reader.tables(ranks):
        broken = violations(table, ballots, rules)
        if broken:
            first[table.rank] = broken[0]
    alike: dict[tuple[str, int, int], list[int]] = {}
    for rank, one in first.items():
        alike.setdefault((one.rule, one.key, one.content), []).append(rank)
    if len(first) == len(ranks):
        # No rank does as most do: they are all wrong together.
        alike = {key: list(ranks) for key in list(alike)[:1]}
    found = []
    for wrong in list(alike.values())[:_MOST_CAUSES]:
        others = tuple(rank for rank in ranks if rank not in first)
        found.append(_caused(reader, usual, wrong, others, first[wrong[0]], ballots, rules))
    return found


def _caused(
    reader: RankReader,
    usual: RankTable,
    wrong: list[int],
    others: tuple[int, ...],
    violation: Violation,
    ballots: Ballots,
    rules: Rules,
) -> RankDifference:
    table = reader.read(wrong[0])
    model = usual if usual.rank != wrong[0] else reader.read(wrong[-1])
    walk = RankWalk(table, model, ballots, not rules.shares_batch)
    cause = walk.cause(violation)
    return difference_of(cause, model if cause.usual else table, tuple(wrong), others)


def _usual(group: Sequence[RankFacts]) -> int:
    """Return the first rank that ran what most ran; one that came to its end, if there is one."""
    whole = [one for one in group if one.ended] or list(group)
    most = Counter(one.structure for one in whole).most_common(1)[0][0]
    return next(one.rank for one in whole if one.structure == most)


def _rules(
    group: Sequence[RankFacts],
    usual: RankTable,
    ballots: Ballots,
    placements: Sequence[Placement],
    exact: bool,
) -> Rules:
    ranks = {one.rank for one in group}
    usual_groups = _usual_groups(placements)
    names = {one.name for one in placements if _must_agree(one, ranks, usual_groups)}
    buffers = names - set().union(*(one.parameters for one in group))
    batches = {one.batch for one in group}
    wrapped = any(one.wrappers for one in group)
    shares = len(batches) == 1 and 0 not in batches and not wrapped

    def gathers_all(row: int) -> bool:
        taken, given = usual.taken(row), usual.given(row)
        sizes = [_size(usual, int(usual.slot_value[slot])) for slot in (*taken, *given)]
        return len(sizes) > 1 and min(sizes) > 0 and max(sizes) == len(ranks) * min(sizes)

    synced = synced_slots(usual, ballots, gathers_all)
    return Rules(names - buffers, buffers, synced, shares, exact)


def _size(table: RankTable, value: int) -> int:
    look = table.look(value)
    return int(np.prod(look.shape if look.local is None else look.local))


def _usual_groups(placements: Sequence[Placement]) -> dict[str | None, Groups]:
    """Return, for each placement that DTensor states, the groups that most such tensors have."""
    seen: dict[str | None, Counter[Groups]] = {}
    for one in placements:
        seen.setdefault(one.stated, Counter())[one.groups] += 1
    return {stated: counts.most_common(1)[0][0] for stated, counts in seen.items()}


def _must_agree(one: Placement, ranks: set[int], usual_groups: dict[str | None, Groups]) -> bool:
    """Return whether a named tensor must be the same on some ranks."""
    if is_running_statistic(one.name):
        return False
    if one.placement == REPLICATED:
        return True
    groups = usual_groups[one.stated]
    return is_regular(groups) and any(ranks <= set(group) for group in groups)


def _ordered(found: list[RankDifference]) -> list[RankDifference]:
    """Order differences by where they begin; of one that all groups tell, keep one."""
    known: dict[tuple[object, ...], RankDifference] = {}
    for one in sorted(found, key=lambda one: (one.step, one.event)):
        known.setdefault((one.kind, one.ranks, one.event), one)
    return list(known.values())


def _agreeing(
    ranks: Sequence[int], differences: Sequence[RankDifference]
) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that agree with each other, largest group first."""
    contents = dict.fromkeys(ranks, 0)
    for number, one in enumerate(differences, 1):
        for at, rank in enumerate(one.ranks):
            contents[rank] = -(number * 100_000 + at) if not one.others else number
    return partition(contents)


def _end(one: RankFacts) -> RankEnd:
    step, op, file, line = one.last
    short = file.replace("\\", "/").rpartition("/")[2]
    return RankEnd(one.rank, step, op, short, line, one.events)


def _notes(
    facts: Sequence[RankFacts], placements: Sequence[Placement], reader: RankReader
) -> Iterator[str]:
    if not any(one.has_digests for one in facts):
        yield ('values were not checked: record with values="stats" or "fingerprint"; '
               "only what ran was compared")  # fmt: skip
    per_rank = [one.name for one in placements if one.placement == PER_RANK]
    running = list(filter(is_running_statistic, per_rank))
    if running:
        yield (f"{_and_more(running)} differ by design: batch norm keeps those of each rank's own "
               "batches; SyncBatchNorm would share them")  # fmt: skip
    own = [name for name in per_rank if not is_running_statistic(name)]
    if own:
        yield f"{_and_more(own)} differ on every rank: taken for shards, or each rank's own"
    batches = {one.batch for one in facts}
    if len(batches) == 1 and 0 not in batches and any(one.wrappers for one in facts):
        yield "all ranks got the same batch in their first call: is a DistributedSampler missing?"
    steps = {one.rank: one.steps for one in facts if one.ended}
    if len(set(steps.values())) > 1:
        most = max(steps.values())
        short = [rank for rank, count in steps.items() if count < most]
        yield f"{listed(short)} recorded fewer steps than the others ({most})"
    for gap in reader.gaps:
        yield str(gap)


def _and_more(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
