"""What is kept of every rank while ranks are read one after the other: a few numbers each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.ranks.keys import hashed, mixed
from clew.analysis.ranks.op_roles import is_collective, is_copy, is_unwritten, sources
from clew.analysis.ranks.rank_table import RankTable
from clew.events.columns import Flags

OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A parameter or buffer of one rank, when a module or an optimizer first used it.

    `update` is a digest of what the first update of it was made from, 0 if there was none.
    """

    digest: int
    last: int
    update: int
    placement: str | None
    shape: tuple[int, ...]
    local: tuple[int, ...] | None
    dtype: str
    number: int


@dataclass(frozen=True)
class RankFacts:
    """What is known of one rank once its table is gone."""

    rank: int
    events: int
    tensors: int
    steps: int
    last: tuple[int, str, str, int]
    ended: bool
    structure: int
    batch: int
    modes: dict[int, str]
    named: dict[str, NamedTensor]
    parameters: set[str]
    wrappers: frozenset[str]
    nan: tuple[int, int, int] | None
    spread_nan: bool
    has_digests: bool


def facts_of(table: RankTable) -> RankFacts:
    """Gather what is needed of a rank for as long as all are compared."""
    modules = [table.names.texts[code] for code in np.unique(
        table.names.codes[table.kinds.where(lambda text: text == "module")]).tolist()]  # fmt: skip
    rows = len(table.id)
    last = (int(table.step[-1]), table.names[rows - 1] or "", *table.place(rows - 1)) if rows else (
        0, "", "", -1)  # fmt: skip
    nan = np.flatnonzero((table.nan > 0) & _computes(table))
    reached = table.phases.where(lambda text: text == OPTIMIZER)
    optimizer_args = np.where(reached, table.arguments, np.uint64(0))
    structure = int(np.bitwise_xor.reduce(mixed(table.key, optimizer_args))) if rows else 0
    return RankFacts(
        rank=table.rank, events=rows, tensors=int((table.slot_digest != 0).sum()),
        steps=len(np.unique(table.step)), last=last, ended=table.tables.ended,
        structure=structure ^ hashed(str(sorted(table.tables.modes.items()))),
        batch=_batch(table), modes=table.tables.modes, named=_named(table),
        parameters=table.tables.parameters,
        wrappers=frozenset(name for name in modules
                           if name == "DistributedDataParallel" or name.startswith("FSDP")),
        nan=(int(table.key[nan[0]]), int(nan[0]), int(table.step[nan[0]])) if len(nan) else None,
        spread_nan=bool((reached & (table.nan > 0)).any()),
        has_digests=bool((table.values.digest != 0).any()),
    )  # fmt: skip


def _computes(table: RankTable) -> Flags:
    """Return the ops that compute something, or the calls if no ops were recorded.

    What only shows memory may show some that nobody has written.
    """
    ops = table.kinds.where(lambda text: text == "op")
    shows = table.names.where(lambda op: is_copy(op) or is_unwritten(op) or is_collective(op))
    return np.asarray(ops & ~shows) if ops.any() else ~ops


def uses(table: RankTable) -> Flags:
    """Return the slots where a module or an optimizer uses or writes a named tensor."""
    named = table.values.names.codes[table.slot_value] >= 0
    inside = (table.modules.codes >= 0) | table.phases.where(lambda text: text == OPTIMIZER)
    is_op = table.kinds.where(lambda text: text != "module")
    return np.asarray(named & (inside & is_op)[table.slot_row])


def _batch(table: RankTable) -> int:
    """Return a digest of what the first module call was given, 0 if it is not known."""
    calls = np.flatnonzero(table.kinds.where(lambda text: text == "module"))
    for row in calls[:1].tolist():
        slots = table.slot_digest[list(table.taken(row))]
        if len(slots) and (slots != 0).all():
            return int(np.bitwise_xor.reduce(mixed(slots, np.arange(len(slots)).astype(np.uint64))))
    return 0


def _named(table: RankTable) -> dict[str, NamedTensor]:
    slots = np.flatnonzero(uses(table) & (table.slot_digest != 0))
    codes = table.values.names.codes[table.slot_value[slots]]
    updates = _updates(table)
    known, first = np.unique(codes, return_index=True)
    last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    found: dict[str, NamedTensor] = {}
    for at in np.argsort(first).tolist():
        slot, end = slots[first[at]], slots[last[at]]
        value = int(table.slot_value[slot])
        name = table.values.names.texts[int(known[at])]
        look = table.look(value)
        found[name] = NamedTensor(
            int(table.slot_digest[slot]), int(table.slot_digest[end]), updates.get(name, 0),
            look.placements, look.shape, look.local, look.dtype, int(table.values.number[value]),
        )  # fmt: skip
    return found


def _updates(table: RankTable) -> dict[str, int]:
    """Return what the first update of each parameter was made from, as a digest."""
    found: dict[str, int] = {}
    phases = table.phases.where(lambda text: text == OPTIMIZER)
    rows = np.flatnonzero(phases)
    for row in rows[table.step[rows] == table.step[rows[0]]].tolist() if len(rows) else ():
        given, taken = table.given(row), table.taken(row)
        if len(taken) < 2:
            continue
        for at, slot in enumerate(given):
            name = table.values.names[int(table.slot_value[slot])]
            if name is None or name in found:
                continue
            made = sources(table.names[row] or "", len(taken), len(given), at)
            others = [taken[i] for i in made
                      if table.values.names[int(table.slot_value[taken[i]])] != name]  # fmt: skip
            digests = table.slot_digest[others]
            if len(others) and (digests != 0).all():
                found[name] = int(np.bitwise_xor.reduce(mixed(
                    digests, np.arange(len(others)).astype(np.uint64))))  # fmt: skip
    return found
