"""Where one rank holds something else than it should, by what most ranks hold.

Input: the table of one rank and the votes of all. Output: its first `Violation` by each rule. What
a rank computes from a batch of its own is expected to differ, and is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from clew.analysis.ranks.keys import Hashes, Ints
from clew.analysis.ranks.op_roles import (
    bare,
    is_collective,
    is_copy,
    is_new_copy,
    is_unwritten,
    makes_equal,
    sources,
)
from clew.analysis.ranks.placements import PARTIAL, SHARDED, stated
from clew.analysis.ranks.rank_facts import OPTIMIZER, uses
from clew.analysis.ranks.rank_table import RankTable
from clew.analysis.ranks.votes import Votes
from clew.events.columns import Flags

_SENDING = ("view", "cat", "copy_", "flatten_dense_tensors", "unflatten_dense_tensors")
# Rules by what they look at. The walk back from a violation finds its cause.
NAMED, OP, ARGUMENTS, DTYPE, SYNCED, RANDOM = (
    "named", "op", "arguments", "dtype", "synced", "random"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Violation:
    """The first place where a rank breaks a rule: `slot` of the event in `row`, -1 for none."""

    rank: int
    rule: str
    row: int
    slot: int
    key: int
    content: int


@dataclass(frozen=True)
class Ballots:
    """Votes over the ranks of a group: tensors, arguments, and dtypes of results."""

    tensors: Votes
    arguments: Votes
    dtypes: Votes

    @staticmethod
    def of(ranks: int) -> Ballots:
        """Return empty votes for so many ranks."""
        return Ballots(Votes(ranks), Votes(ranks), Votes(ranks))

    def add(self, table: RankTable) -> None:
        """Count the votes of a rank."""
        made = ~table.is_input
        self.tensors.add(table.slot_key, table.slot_digest)
        self.arguments.add(table.key, np.maximum(table.arguments, np.uint64(1)))
        self.dtypes.add(table.slot_key[made], table.values.dtype[table.slot_value[made]])


@dataclass(frozen=True)
class Rules:
    """What the ranks of a group must agree in: names of tensors, results of collectives."""

    names: Collection[str]
    buffers: Collection[str]
    synced: Hashes
    shares_batch: bool
    exact: bool = True


def violations(table: RankTable, ballots: Ballots, rules: Rules) -> list[Violation]:
    """Return the first violation of each rule, in order of their rows."""
    agree, differ = ballots.tensors.compare(table.slot_key, table.slot_digest)
    same, other = ballots.arguments.compare(table.key, np.maximum(table.arguments, np.uint64(1)))
    several = ballots.tensors.is_shared(table.slot_key)
    known = (table.slot_digest != 0) & ~_is_stale(table)
    wrong = np.isin(table.slot_key, rules.synced) & known & several & ~agree
    found = [
        _first_slot(table, NAMED, _must_agree(table, rules) & known & several & ~agree),
        _first_slot(table, SYNCED, wrong),
        # An op may make small differences large: with a tolerance it is not judged by itself.
        *(_by_row(table, agree, differ, same, rules) if rules.exact else ()),
        _first_row(table, ARGUMENTS, other & table.phases.where(lambda text: text == OPTIMIZER)),
        _first_dtype(table, ballots.dtypes),
    ]
    return sorted((one for one in found if one is not None), key=lambda one: one.row)


def _must_agree(table: RankTable, rules: Rules) -> Flags:
    """Return the slots of parameters, and those of buffers that no step has written."""
    parameters = table.values.names.where(lambda text: text in rules.names)[table.slot_value]
    buffers = table.values.names.where(lambda text: text in rules.buffers)[table.slot_value]
    # What ranks only take to send it to each other need not be the same yet.
    sent = table.names.where(lambda text: bare(text) in _SENDING)[table.slot_row]
    came_in = table.values.producer[table.slot_value] < 0
    return np.asarray(uses(table) & (parameters | (buffers & came_in & ~sent)))


def _by_row(
    table: RankTable, agree: Flags, differ: Flags, same: Flags, rules: Rules
) -> list[Violation | None]:
    """Find ops that took what all others took and gave something else."""
    rows = len(table.id)
    taken_alike = _count(table, table.is_input & agree, rows) == table.inputs
    gave_other = _count(table, ~table.is_input & differ, rows) > 0
    # A view computes nothing, and may be of memory that a collective is writing.
    left_out = table.names.where(lambda op: is_collective(op) or is_unwritten(op) or is_copy(op))
    ops = table.kinds.where(lambda text: text == "op") & ~left_out
    sure = _count(table, _written_aside(table) | (_is_split(table) & ~table.is_input), rows) == 0
    usual = ops & sure & same & (table.inputs > 0)
    found = [_first_row(table, OP, usual & taken_alike & gave_other & ~table.is_random)]
    if rules.shares_batch:
        drawn = _drawn(table)
        mixed_in = _count(table, table.is_input & (agree | drawn), rows) == table.inputs
        steady = _count(table, table.is_input & agree, rows) > 0
        some = _count(table, table.is_input & drawn & ~agree, rows) > 0
        gave = _count(table, ~table.is_input & ~agree, rows) > 0
        found.append(_first_row(table, RANDOM, usual & mixed_in & steady & some & gave))
    return found


def _drawn(table: RankTable) -> Flags:
    """Return the slots of random numbers, also scaled, that were made from nothing else."""
    drawn = np.zeros(len(table.values.digest), bool)
    rows = np.flatnonzero(table.is_random | _only_scales(table))
    for row in rows.tolist():
        taken = table.slot_value[list(table.taken(row))]
        if table.is_random[row] or (len(taken) and drawn[taken].all()):
            drawn[table.slot_value[list(table.given(row))]] = True
    return np.asarray(drawn[table.slot_value])


def _only_scales(table: RankTable) -> Flags:
    names = ("aten.div_.", "aten.mul_.", "aten.div.", "aten.mul.", "aten.lt.", "aten.floor_.")
    return table.names.where(lambda text: text.startswith(names))


def _is_stale(table: RankTable) -> Flags:
    """Return the slots on memory that a collective wrote since the digest was taken, unseen."""
    rows = len(table.id) + 1
    first = np.full(len(table.values.digest), rows, np.int64)
    np.minimum.at(first, table.slot_value, table.slot_row)
    storage = table.values.storage[table.slot_value]
    given = table.names.where(is_collective)[table.slot_row] & (storage >= 0)
    writes = np.unique(storage[given] * rows + table.slot_row[given])
    if not len(writes):
        return np.zeros(len(storage), bool)
    # The last write to the memory of a slot before its row.
    last = writes[np.maximum(np.searchsorted(writes, storage * rows + table.slot_row) - 1, 0)]
    is_same = (last // rows == storage) & (last % rows < table.slot_row)
    return np.asarray(is_same & (last % rows >= first[table.slot_value]))


def _written_aside(table: RankTable) -> Flags:
    """Return the slots on memory that a collective writes to when it likes."""
    rows = table.names.where(is_collective)[table.slot_row]
    storages = np.unique(table.values.storage[table.slot_value[rows]])
    held = table.values.storage[table.slot_value]
    return np.asarray(np.isin(held, storages) & (held >= 0))


def _is_split(table: RankTable) -> Flags:
    """Return the slots of DTensors that are shards or partial sums: each rank has its own."""
    split = [number for number, look in table.tables.metas.items()
             if stated(look.placements)[0] in (SHARDED, PARTIAL)]  # fmt: skip
    return np.asarray(np.isin(table.values.meta, split)[table.slot_value])


def _count(table: RankTable, slots: Flags, rows: int) -> Ints:
    return np.bincount(table.slot_row[slots], minlength=rows)


def _first_slot(table: RankTable, rule: str, slots: Flags) -> Violation | None:
    at = np.flatnonzero(slots)
    if not len(at):
        return None
    slot = int(at[0])
    row = int(table.slot_row[slot])
    return Violation(table.rank, rule, row, slot, int(table.slot_key[slot]),
                     int(table.slot_digest[slot]))  # fmt: skip


def _first_row(table: RankTable, rule: str, rows: Flags) -> Violation | None:
    at = np.flatnonzero(rows)
    if not len(at):
        return None
    row = int(at[0])
    return Violation(table.rank, rule, row, -1, int(table.key[row]), int(table.arguments[row]))


def _first_dtype(table: RankTable, dtypes: Votes) -> Violation | None:
    made = ~table.is_input & table.kinds.where(lambda text: text == "op")[table.slot_row]
    slots = np.flatnonzero(made)
    content = table.values.dtype[table.slot_value[slots]]
    _, other = dtypes.compare(table.slot_key[slots], content)
    at = np.flatnonzero(other)
    if not len(at):
        return None
    slot = int(slots[at[0]])
    row = int(table.slot_row[slot])
    return Violation(table.rank, DTYPE, row, slot, int(table.slot_key[slot]), int(content[at[0]]))


def synced_slots(table: RankTable, ballots: Ballots, gathers_all: Callable[[int], bool]) -> Hashes:
    """Return the keys of slots that hold what a collective made equal on all ranks of the group.

    A collective of a part of the ranks does not; it is told by its results, which do not agree.
    """
    synced = np.zeros(len(table.values.digest), bool)
    sure = np.zeros(len(table.values.digest), bool)
    site = np.full(len(table.values.digest), -1, np.int64)
    collective, copies = table.names.where(makes_equal), table.names.where(is_copy)
    others = table.names.where(is_collective) & ~collective
    fresh = table.names.where(is_new_copy)
    keys: list[tuple[int, int]] = []
    written: dict[int, int] = {}
    producer = table.values.producer
    by_producer = np.argsort(producer, kind="stable")
    for row in np.flatnonzero(collective | copies | others).tolist():
        # What a collective wrote is a value of its own where it is first used.
        ends = [table.id[row], table.id[row] + 1]
        first, end = np.searchsorted(producer, ends, sorter=by_producer)
        given = np.append(table.slot_value[list(table.given(row))], by_producer[first:end])
        taken = table.slot_value[list(table.taken(row))]
        if copies[row]:
            keys += _from_memory(table, row, written, synced, sure, site)
        if others[row]:
            synced[given] = False
        elif collective[row]:
            synced[given], sure[given] = True, gathers_all(row)
            site[given] = hash((table.names[row], table.modules[row], table.place(row)))
            if len(given):
                written |= dict.fromkeys(table.values.storage[given].tolist(), int(given[0]))
        else:
            _follow(table, row, taken, synced, sure, site)
            # A view may have the digest of the time before, as it shows the same memory.
            keys += [(slot, int(site[table.slot_value[slot]])) for slot in table.given(row)
                     if fresh[row] and synced[table.slot_value[slot]]]  # fmt: skip
    return _usual(table, ballots, keys, sure)


def _from_memory(
    table: RankTable, row: int, written: dict[int, int], synced: Flags, sure: Flags, site: Ints
) -> list[tuple[int, int]]:
    """Mark what a copy takes from memory that a collective wrote unseen; return its slots."""
    found = []
    for slot in table.taken(row):
        value = int(table.slot_value[slot])
        source = written.get(int(table.values.storage[value]))
        unseen = table.values.producer[value] < 0 and table.values.names.codes[value] < 0
        if source is not None and unseen and not synced[value]:
            synced[value], sure[value], site[value] = True, sure[source], site[source]
            found.append((slot, int(site[value])))
    return found


def _follow(
    table: RankTable, row: int, taken: Ints, synced: Flags, sure: Flags, site: Ints
) -> None:
    """Mark what a copy gives, if what it was made from is marked."""
    given = table.given(row)
    for at, slot in enumerate(given):
        made = [int(taken[i]) for i in sources(table.names[row] or "", len(taken), len(given), at)]
        value = int(table.slot_value[slot])
        if made and all(synced[one] for one in made):
            synced[value], sure[value], site[value] = True, sure[made[0]], site[made[0]]


def _usual(table: RankTable, ballots: Ballots, keys: list[tuple[int, int]], sure: Flags) -> Hashes:
    """Keep those whose collective made most ranks equal, at least every second time."""
    if not keys:
        return np.zeros(0, np.uint64)
    slots = np.array([slot for slot, _ in keys])
    sites = np.array([site for _, site in keys])
    most = ballots.tensors.has_majority(table.slot_key[slots])
    kept = sure[table.slot_value[slots]].copy()
    for site in np.unique(sites).tolist():
        mine = sites == site
        kept[mine] |= 2 * np.count_nonzero(most[mine]) >= np.count_nonzero(mine)
    return np.asarray(table.slot_key[slots[kept]])
