"""Outline of the tree: which lines there are, without their texts.

Input: the events of a step. Output: `Draft`s nested as the nodes will be: module calls, the ops
that ran between them, repeats, errors. Events folded into a draft are added to the `Totals` of its
first run here, from the outermost fold inwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from clew.analysis.fold import Folds, Item, Repeat
from clew.analysis.folded_ops import FoldedOps
from clew.analysis.tree.totals import Totals
from clew.analysis.tree.tree_model import CALL, FAILURE, OPS, REPEAT
from clew.events.vocabulary import COMPOSITE, MODULE, OP


@dataclass(slots=True, eq=False)
class Draft:
    """A node in the making: its events in the first run of everything that contains it.

    `times` is how often such a run ran, `count` of the draft itself included; `within` are the
    repeats that contain it, outermost first, including `repeat`, the draft itself if it is one.
    """

    kind: str
    rows: list[int]
    level: int
    times: int = 1
    count: int = 1
    within: tuple[Repeat, ...] = ()
    repeat: Repeat | None = None
    same_as: int | None = None
    # For drafts that are not named by their events.
    name: str = ""
    numbers: tuple[int, ...] = ()
    passes: int = 1
    sizes_vary: bool = False
    children: list[Draft] = field(default_factory=list)


# Siblings still to be outlined, where they go, and what contains them.
_Task = tuple[Sequence[Item], list[Draft], int, int, tuple[Repeat, ...]]


class Outliner:
    """Turns siblings into drafts."""

    def __init__(self, folds: Folds, totals: Totals, folded: FoldedOps | None) -> None:
        self._folds = folds
        self._totals = totals
        self._folded = folded
        self._kind = folds.structure.kind
        c = folds.structure.run.columns
        # A composite ends with the exception of an op in it.
        self._error: list[int] = np.where(c.kind == COMPOSITE, -1, c.error).tolist()
        self._tasks: list[_Task] = []
        # The first call of each structure at the top, in any step and rank.
        self._shown: dict[int, int] = {}

    def outline(self, rows: list[int], times: int, level: int = 0) -> list[Draft]:
        """Return drafts of some siblings and of everything inside them.

        The inside of a call is outlined once; later equal calls, also in the next step or on the
        next rank, point to the first.
        """
        drafts: list[Draft] = []
        self._tasks.append((self._folds.fold(rows), drafts, level, times, ()))
        # Without recursion, as calls can be nested deeper than Python's stack.
        while self._tasks:
            self._siblings(*self._tasks.pop())
        return drafts

    def _siblings(
        self,
        items: Sequence[Item],
        drafts: list[Draft],
        level: int,
        times: int,
        within: tuple[Repeat, ...],
    ) -> None:
        shown = self._shown if level == 0 and not within else {}
        for item in items:
            if isinstance(item, Repeat):
                drafts.append(self._repeat(item, level, times, within, shown))
            elif self._kind[item] == MODULE:
                draft = Draft(CALL, [item], level, times, within=within)
                drafts.append(draft)
                self._open(draft, shown)
            elif self._error[item] >= 0:
                drafts.append(Draft(FAILURE, [item], level, times))
            elif self._kind[item] == OP:
                if not drafts or drafts[-1].kind != OPS:
                    drafts.append(Draft(OPS, [], level, times))
                drafts[-1].rows.append(item)

    def _repeat(
        self,
        repeat: Repeat,
        level: int,
        times: int,
        within: tuple[Repeat, ...],
        shown: dict[int, int],
    ) -> Draft:
        self._totals.fold(self._folds.spans(repeat))
        times *= repeat.count
        first = repeat.items[0]
        is_call = len(repeat.items) == 1 and not isinstance(first, Repeat)
        draft = Draft(
            CALL if is_call else REPEAT, list(repeat.runs[0]), level, times, repeat.count,
            (*within, repeat), repeat, sizes_vary=not repeat.exact,
        )  # fmt: skip
        if is_call:
            self._open(draft, shown)
        else:
            self._tasks.append((repeat.items, draft.children, level, times, draft.within))
        return draft

    def _open(self, call: Draft, shown: dict[int, int]) -> None:
        """Outline what ran in a call, or point to an earlier call with the same inside.

        Ops of a module without modules inside are not outlined, unless one failed, all ops are
        wanted, or it is an outermost one that is not of torch.nn. A call that has a non-finite
        value is always opened, to show where it is.
        """
        row = call.rows[0]
        inside = self._folds.inside(row)
        lists_ops = self._folded is None or (
            call.level == 0 and not self._folded.is_folded_call(row)
        )
        if not any(self._is_shown(item, lists_ops) for item in inside):
            return
        if self._folds.folding and self._error[row] < 0:
            structure = self._folds.structure
            first = shown.setdefault(structure.key(row), row)
            is_like = first != row and structure.same_wiring(first, row)
            if is_like and self._totals.is_finite(structure.subtree(row)):
                call.same_as = first
                return
        self._tasks.append((inside, call.children, call.level + 1, call.times, call.within))

    def _is_shown(self, item: Item, lists_ops: bool) -> bool:
        """Return whether an item is a reason to show the inside of a call."""
        if isinstance(item, Repeat) or self._kind[item] == MODULE or self._error[item] >= 0:
            return True
        return lists_ops and self._kind[item] == OP
