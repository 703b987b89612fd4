"""Walk back from where a rank is wrong to the first thing that went wrong on it.

Input: the table of the wrong rank, that of a rank which does as most do, and the votes. Output: a
`RankCause`: an op, an argument, random numbers, something that came in, a collective, something
that the rank left out or ran besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.analysis.ranks.op_roles import is_collective, is_copy, is_unwritten, sources
from clew.analysis.ranks.placements import PARTIAL, SHARDED, stated
from clew.analysis.ranks.rank_facts import OPTIMIZER
from clew.analysis.ranks.rank_table import RankTable
from clew.analysis.ranks.table_rows import is_tensor, leaves_of
from clew.analysis.ranks.violations import ARGUMENTS, DTYPE, RANDOM, Ballots, Violation

# What went wrong.
KINDS = (
    "op", "arguments", "random", "input", "gradient", "collective", "order", "missing", "extra",
    "dtype", "mode", "nonfinite",
)  # fmt: skip
_FURTHEST = 10_000


@dataclass(frozen=True, slots=True)
class RankCause:
    """What went wrong first: `row` of the wrong rank's table, or of the usual one's if `usual`.

    `name` is the parameter or buffer that it is about; if not `is_named`, something that this was
    made from. `facts` are what shows it.
    """

    kind: str
    row: int
    usual: bool = False
    name: str | None = None
    is_named: bool = True
    facts: tuple[str, ...] = ()


class RankWalk:
    """One wrong rank beside a usual one."""

    def __init__(
        self, wrong: RankTable, usual: RankTable, ballots: Ballots, own_batches: bool
    ) -> None:
        self.wrong, self.usual = wrong, usual
        self._own_batches = own_batches
        self._agree, self._differ = ballots.tensors.compare(wrong.slot_key, wrong.slot_digest)
        self._slot_of = {key: at for at, key in enumerate(usual.slot_key.tolist())}
        _, self._other_arguments = ballots.arguments.compare(
            wrong.key, np.maximum(wrong.arguments, np.uint64(1))
        )

    def cause(self, violation: Violation) -> RankCause:
        """Return the cause of a violation."""
        row = violation.row
        if violation.rule == ARGUMENTS:
            return self._arguments(row)
        if violation.rule == DTYPE:
            return self._dtype(violation)
        if violation.rule == RANDOM:
            return RankCause("random", self._drawing(row))
        if violation.slot >= 0:
            return self._back(violation.slot)
        slots = [slot for slot in self.wrong.given(row) if self._differ[slot]]
        return self._back(slots[0]) if slots else RankCause("op", row)

    def _back(self, slot: int) -> RankCause:
        """Follow what is wrong in a slot back to where it was right."""
        name = None
        if self.wrong.is_input[slot] and self._is_reordered(int(self.wrong.slot_row[slot])):
            return RankCause("order", int(self.wrong.slot_row[slot]))
        for _ in range(_FURTHEST):
            value = int(self.wrong.slot_value[slot])
            name = name or self.wrong.values.names[value]
            row = self._made_by(slot)
            other = self._usual_maker(slot)
            if other >= 0 and (row < 0 or self.wrong.key[row] != self.usual.key[other]):
                found = self._left_out(other, row, name)
                if found is not None:
                    return found
            # Collectives write to memory that was made for them without being seen to.
            unseen = row < 0 or is_unwritten(self.wrong.names[row] or "")
            sent = self._collective_before(slot) if unseen else -1
            if sent >= 0:
                return RankCause("collective", sent, name=name)
            if row < 0:
                own = self.wrong.values.names[value]
                return RankCause("input", int(self.wrong.slot_row[slot]), name=name,
                             is_named=own is not None)  # fmt: skip
            if self.wrong.key[row].item() not in self.usual.row_of_key:
                return RankCause("extra", row, name=name)
            step = self._before(row, value, name)
            if isinstance(step, RankCause):
                return step
            slot = step
        return RankCause("op", int(self.wrong.slot_row[slot]), name=name)

    def _is_reordered(self, row: int) -> bool:
        """Return whether an op took the tensors of the usual rank, in another order."""
        other = self.usual.row_of_key.get(int(self.wrong.key[row]), -1)
        if other < 0:
            return False
        mine = self.wrong.slot_digest[list(self.wrong.taken(row))].tolist()
        theirs = self.usual.slot_digest[list(self.usual.taken(other))].tolist()
        return mine != theirs and sorted(mine) == sorted(theirs)

    def _collective_before(self, slot: int) -> int:
        """Return the last collective that wrote the memory of a slot before, -1 for none."""
        table = self.wrong
        storage = table.values.storage[table.slot_value[slot]]
        rows = np.flatnonzero(table.names.where(is_collective)[: int(table.slot_row[slot])])
        for row in rows[::-1].tolist():
            if storage in table.values.storage[table.slot_value[list(table.given(row))]]:
                return int(row)
        return -1

    def _made_by(self, slot: int) -> int:
        """Return the row that made what a slot holds; if it gives it, its own."""
        row = int(self.wrong.slot_row[slot])
        return row if not self.wrong.is_input[slot] else self.wrong.maker(
            int(self.wrong.slot_value[slot]))  # fmt: skip

    def _usual_maker(self, slot: int) -> int:
        at = self._slot_of.get(int(self.wrong.slot_key[slot]), -1)
        if at < 0:
            return -1
        if not self.usual.is_input[at]:
            return int(self.usual.slot_row[at])
        return self.usual.maker(int(self.usual.slot_value[at]))

    def _left_out(self, other: int, row: int, name: str | None) -> RankCause | None:
        """Return what the wrong rank did not run though it made the value on usual ranks."""
        extra = row >= 0 and self.wrong.key[row].item() not in self.usual.row_of_key
        if self.usual.key[other].item() in self.wrong.row_of_key:
            return RankCause("extra", row, name=name) if extra else None
        step = int(self.usual.step[other])
        joined = self.usual.names.where(is_collective) & (self.usual.step == step)
        rows = [int(at) for at in np.flatnonzero(joined)
                if self.usual.key[at].item() not in self.wrong.row_of_key]  # fmt: skip
        if rows:
            return RankCause("collective", rows[0], usual=True, name=name)
        if extra:
            return RankCause("extra", row, name=name)
        return RankCause("missing", other, usual=True, name=name)

    def _before(self, row: int, value: int, name: str | None) -> RankCause | int:
        """Return the wrong thing that an op took, or the cause if it took only what is right."""
        wrong = self.wrong
        op = wrong.names[row] or ""
        if is_collective(op):
            return RankCause("collective", row, name=name)
        given = wrong.given(row)
        at = next((i for i, slot in enumerate(given) if wrong.slot_value[slot] == value), 0)
        taken = wrong.taken(row)
        made = [taken[i] for i in sources(op, len(taken), len(given), at)]
        bad = [slot for slot in made if not self._is_right(slot)]
        differing = [slot for slot in bad if self._differ[slot]]
        if not bad or (self._other_arguments[row] and not differing):
            return self._of_itself(row, name)
        chosen = min(differing or bad, key=lambda slot: self._age(slot))
        crossed = wrong.phases[row] == "backward" and not is_copy(op)
        if crossed and self._own_batches:
            return RankCause("gradient", row, name=name)
        return int(chosen)

    def _of_itself(self, row: int, name: str | None) -> RankCause:
        if self.wrong.is_random[row]:
            return RankCause("random", row, name=name)
        if self._other_arguments[row]:
            return self._arguments(row, name)
        return RankCause("op", row, name=name)

    def _is_right(self, slot: int) -> bool:
        """Return whether an input is as on most ranks, or need not be."""
        if self._agree[slot] or not self.wrong.slot_digest[slot]:
            return True
        placements = self.wrong.look(int(self.wrong.slot_value[slot])).placements
        return stated(placements)[0] in (SHARDED, PARTIAL)

    def _age(self, slot: int) -> int:
        return int(self.wrong.values.producer[self.wrong.slot_value[slot]])

    def _drawing(self, row: int) -> int:
        """Return the op that drew the numbers which an op took."""
        for slot in self.wrong.taken(row):
            at, hops = self.wrong.maker(int(self.wrong.slot_value[slot])), 0
            while at >= 0 and not self.wrong.is_random[at] and hops < 8:
                taken = self.wrong.taken(at)
                at = self.wrong.maker(int(self.wrong.slot_value[taken[0]])) if taken else -1
                hops += 1
            if at >= 0 and self.wrong.is_random[at]:
                return at
        return row

    def _arguments(self, row: int, name: str | None = None) -> RankCause:
        """Say which arguments of an op are others, and which settings of its optimizer."""
        name = name or next((self.wrong.values.names[int(self.wrong.slot_value[slot])]
                             for slot in self.wrong.given(row)), None)  # fmt: skip
        other = self.usual.row_of_key.get(int(self.wrong.key[row]), -1)
        facts = list(_settings(self.wrong, self.usual)) if self._is_update(row) else []
        if other >= 0:
            facts += _constants(self._template(self.wrong, row), self._template(self.usual, other))
        return RankCause("arguments", row, name=name, facts=tuple(facts))

    def _is_update(self, row: int) -> bool:
        return self.wrong.phases[row] == OPTIMIZER

    def _template(self, table: RankTable, row: int) -> dict[str, Any]:
        text = table.tables.templates.get(int(table.template[row]), "")
        return {path: leaf for role, path, leaf in leaves_of(text)
                if role == "in" and not is_tensor(leaf)}  # fmt: skip

    def _dtype(self, violation: Violation) -> RankCause:
        slot = violation.slot
        at = self._slot_of.get(int(self.wrong.slot_key[slot]), -1)
        texts = [table.look(int(table.slot_value[one])).dtype
                 for table, one in ((self.wrong, slot), (self.usual, at)) if one >= 0]  # fmt: skip
        facts = (f"{texts[0]} instead of {texts[1]}",) if len(texts) == 2 else ()
        return RankCause("dtype", violation.row, facts=facts)


def _constants(wrong: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """Return the arguments that differ, as text."""
    return [
        f"{path or 'argument'} is {_shown(wrong.get(path))} instead of {_shown(usual.get(path))}"
        for path in dict.fromkeys([*wrong, *usual])
        if wrong.get(path) != usual.get(path)
    ][:4]


def _shown(leaf: Any) -> str:
    return "nothing" if leaf is None else str(leaf[1] if len(leaf) > 1 else leaf)[:60]


def _settings(wrong: RankTable, usual: RankTable) -> list[str]:
    """Return the settings of optimizers that differ, as text."""
    for (_, mine), (_, theirs) in zip(wrong.tables.settings, usual.tables.settings, strict=False):
        found = [
            f"{name} is {str(mine[name])[:60]} instead of {str(theirs[name])[:60]}"
            for name in mine
            if name in theirs and name not in ("params", "frozen") and mine[name] != theirs[name]
        ]
        if found:
            return found[:4]
    return []
