"""The page's tree: which neighbouring events are shown as one, made as the printed tree makes it.

Input: a `Run`. Output: `PageOutline`: a table of groups, and for each event the innermost group it
is in. Groups are ranks, steps, threads, passes (backward, optimizer), parts of the model in them,
and repeats: calls that `analysis.fold` finds to be the same, which the page shows as one line that
opens. Every event stays: a group only holds events, or groups, that lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from clew.analysis.fold import Folds, Item, Repeat, name_range
from clew.analysis.tree.levels import Alike, RankStep, alike_ranks, alike_steps, stretches, top_rows
from clew.analysis.tree.phases import listed, part_of
from clew.analysis.tree.tree_build import numbered
from clew.events.columns import Ints
from clew.events.vocabulary import (
    BACKWARD,
    FORWARD,
    MODULE,
    OP,
    OPTIMIZER,
    PHASES,
    PREFIX,
    RECOMPUTE,
    STEP,
)
from clew.plain_text import plain
from clew.run.run import Run
from clew.views.text.tree import SCREEN

# Fewer events than this are no pass and no part of one.
_FEWEST = 4
_NO_GROUP = 0
_NO_ROWS: Ints = np.zeros(0, dtype=np.int64)
_DIGITS = str.maketrans("0123456789", "##########")


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events, or groups, that the tree shows as one line.

    `parent` is the number of the group it lies in, 0 for none; groups count from 1. `count` is how
    often what it shows ran: 32 for a stack of 32 layers, 1 for a step.
    """

    parent: int
    label: str
    kind: str
    phase: int
    count: int = 1


@dataclass(slots=True)
class PageOutline:
    """The groups of a run, and the innermost group of each event, 0 for none."""

    group: Ints
    groups: list[EventGroup] = field(default_factory=list)

    def columns(self, number: Callable[[str], int]) -> dict[str, list[int]]:
        """Return the table of groups as columns, given the numbers of texts."""
        return {
            "parent": [group.parent for group in self.groups],
            "label": [number(group.label) for group in self.groups],
            "kind": [number(group.kind) for group in self.groups],
            "phase": [group.phase for group in self.groups],
            "count": [group.count for group in self.groups],
        }

    def add(self, parent: int, label: str, kind: str, phase: int, count: int = 1) -> int:
        """Add a group; return its number."""
        self.groups.append(EventGroup(parent, plain(label), kind, phase, count))
        return len(self.groups)


def page_outline(run: Run, folds: Folds | None = None) -> PageOutline:
    """Return the groups of a run."""
    return _Outlining(run, Folds(run) if folds is None else folds).outline


class _Outlining:
    """Puts the events of one run into groups."""

    def __init__(self, run: Run, folds: Folds) -> None:
        self._run = run
        self._folds = folds
        self._kind = run.columns.kind
        # What is recomputed in the backward pass belongs to it.
        self._pass = np.where(run.phase == RECOMPUTE, BACKWARD, run.phase)
        # The pass an event belongs to, -1 for that of what contains it. A call outside a checkpoint
        # is part of its own.
        is_call = (self._kind == MODULE) & (run.phase != RECOMPUTE)
        is_other = np.isin(self._pass, (BACKWARD, OPTIMIZER)) & ~is_call
        self._section = np.where(is_other, self._pass, -1)
        self.outline = PageOutline(np.zeros(len(run), dtype=np.int64))
        self._ranks()
        self._insides()

    @cached_property
    def _loose(self) -> Folds:
        return self._folds.without_sizes()

    def _ranks(self) -> None:
        """Group what ran in no call by rank and step; equal ranks, and equal steps, are one."""
        run = self._run
        tops = np.flatnonzero((run.parent_row < 0) & ~np.isin(self._kind, (STEP, PREFIX)))
        steps = run.step[tops]
        least = int(steps.min(initial=0))
        span = int(steps.max(initial=0)) - least + 1
        keys = run.process[tops] * span + steps - least
        of_step = {
            (key // span, key % span + least): rows for key, rows in _grouped(tops, keys).items()
        }
        found = stretches(run, self._folds.structure, None, top_rows(run))
        by_rank = {rank: list(mine) for rank, mine in groupby(found, lambda one: one.rank)}
        for alike in alike_ranks(found, fold=True):
            for rank, group in self._alike(alike, "rank", _NO_GROUP, len(run.ranks) > 1):
                self._steps(by_rank[rank], group, of_step)
        # Steps in which nothing but named values were seen.
        for rows in of_step.values():
            self._siblings(rows, _NO_GROUP, FORWARD)

    def _steps(
        self, found: list[RankStep], parent: int, of_step: dict[tuple[int, int], Ints]
    ) -> None:
        for alike in alike_steps(found, fold=True):
            for step, group in self._alike(alike, "step", parent, len(self._run.steps) > 1):
                rows = of_step.pop((found[0].rank, step), _NO_ROWS)
                for inner, mine in self._threads(rows, group):
                    self._siblings(mine, inner, FORWARD)

    def _alike(self, alike: Alike, kind: str, parent: int, headed: bool) -> list[tuple[int, int]]:
        """Return ranks or steps that did the same, each with its group."""
        if not headed:
            return [(number, parent) for number in alike.numbers]
        count = len(alike.numbers)
        if count > 1:
            name = numbered(kind, alike.numbers)
            parent = self.outline.add(parent, name, kind, FORWARD, count)
        return [
            (number, self.outline.add(parent, f"{kind} {number}", kind, FORWARD))
            for number in alike.numbers
        ]

    def _threads(self, rows: Ints, parent: int) -> list[tuple[int, Ints]]:
        """Return the events of a step by thread, if the forward pass ran on several."""
        threads = self._run.thread[rows]
        forward = (self._pass[rows] == FORWARD) | (self._kind[rows] == MODULE)
        if len(np.unique(threads[forward])) < 2:
            return [(parent, rows)]
        named = []
        for thread, mine in _grouped(rows, np.where(forward, threads, -1)).items():
            name = "" if thread == -1 else f"thread {self._run.thread_name(int(mine[0]))}"
            group = self.outline.add(parent, name, "thread", FORWARD) if name else parent
            named.append((group, mine))
        return named

    def _insides(self) -> None:
        """Group what ran in each call: repeats, and passes that began in it."""
        run, kids = self._run, self._folds.structure.kids
        inner = run.parent_row >= 0
        parents = run.parent_row[inner]
        calls = np.bincount(parents[self._kind[inner] == MODULE], minlength=len(run))
        other = np.bincount(parents[run.phase[inner] != run.phase[parents]], minlength=len(run))
        for row in np.flatnonzero((calls > 1) | (other >= _FEWEST)).tolist():
            if other[row] < _FEWEST:
                self._place(self._folded(kids[row]), _NO_GROUP)
            else:
                self._siblings(np.array(kids[row]), _NO_GROUP, int(self._pass[row]))

    def _siblings(self, rows: Ints, parent: int, own: int) -> None:
        """Place siblings: passes other than their container's as groups, repeats folded."""
        sections = self._section[rows]
        rest = [rows[(sections < 0) | (sections == own)]]
        for phase, mine in _grouped(rows, sections).items():
            if phase in (-1, own):
                continue
            if len(mine) < _FEWEST:
                rest.append(mine)
                continue
            group = self.outline.add(parent, PHASES[phase], "pass", phase)
            self._parts(mine, group, phase)
        self._place(self._folded(np.sort(np.concatenate(rest)).tolist()), parent)

    def _folded(self, rows: list[int]) -> list[Item]:
        """Fold siblings; of a loop whose tensors grow the turns too, if it would fill a screen."""
        items = self._folds.fold(rows)
        if len(items) <= SCREEN:
            return items
        loose = self._loose.fold(rows)
        return loose if len(loose) < len(items) else items

    def _parts(self, rows: Ints, parent: int, phase: int) -> None:
        """Group a backward pass by part of the model, an optimizer by line."""
        names, of_row = self._model_parts if phase == BACKWARD else ([], self._lines)
        parts = _grouped(rows, of_row[rows])
        if len(parts) < 2:
            return self._put(rows, parent)
        if phase != BACKWARD:
            return self._by_line(parts, parent)
        alike: dict[Hashable, list[int]] = {}
        for part, mine in parts.items():
            ran = mine[np.isin(self._kind[mine], (MODULE, OP))]
            key = names[part].translate(_DIGITS), self._folds.structure.likenesses(ran)
            alike.setdefault(key, []).append(part)
        for same in alike.values():
            stack = parent
            if len(same) > 1 and names[same[0]]:
                stack = self.outline.add(
                    parent, listed([names[part] for part in same]), "repeat", phase, len(same)
                )
            for part in same:
                mine, name = parts[part], names[part]
                small = not name or (len(mine) < _FEWEST and len(same) == 1)
                group = stack if small else self.outline.add(stack, name, "part", phase)
                self._put(mine, group)
        return None

    def _by_line(self, parts: Mapping[int, Ints], parent: int) -> None:
        for rows in parts.values():
            source = self._run.source(int(rows[0]))
            name = "" if source is None else source.text.strip()
            big = len(rows) >= _FEWEST and name
            group = self.outline.add(parent, name, "line", OPTIMIZER) if big else parent
            self._put(rows, group)

    @cached_property
    def _model_parts(self) -> tuple[list[str], Ints]:
        """Return the parts of the model, and for each event the number of its part; 0 is none."""
        derived = self._run.derived
        numbers = {"": 0}
        of_path = [numbers.setdefault(part_of(path), len(numbers)) for path in derived.paths]
        return [*numbers], np.array([*of_path, 0], dtype=np.int64)[derived.module]

    @cached_property
    def _lines(self) -> Ints:
        """Return for each event a number of its line, 0 for none."""
        run = self._run
        numbers: dict[tuple[str, int], int] = {}
        of_place = [
            numbers.setdefault((place.file, place.line), len(numbers) + 1)
            for place in run.columns.places
        ]
        return np.array([*of_place, 0], dtype=np.int64)[run.derived.source]

    def _put(self, rows: Ints | list[int], group: int) -> None:
        self.outline.group[rows] = group

    def _place(self, items: Sequence[Item], parent: int, at: Callable[[int], int] = int) -> None:
        """Put events and repeats into a group; `at` gives an event's equal in the run that it is.

        Repeats are known by their first run, so events of later runs are found by position.
        """
        for item in items:
            if not isinstance(item, Repeat):
                if parent:
                    self.outline.group[at(item)] = parent
                continue
            runs = [[at(row) for row in run] for run in item.runs]
            first = item.items[0]
            is_call = len(item.items) == 1 and not isinstance(first, Repeat)
            name = self._range(runs) if is_call else "repeated"
            name += "" if item.exact else " (sizes vary)"
            phase = int(self._run.phase[runs[0][0]])
            stack = self.outline.add(parent, name, "repeat", phase, len(runs))
            for number, run in enumerate(runs):
                if is_call:
                    self._put(run, stack)
                    continue
                turn = self.outline.add(stack, f"{number + 1} of {len(runs)}", "run", phase)
                same = dict(zip(item.runs[0], run, strict=True))
                self._place(item.items, turn, same.__getitem__)

    def _range(self, runs: list[list[int]]) -> str:
        name = self._folds.structure.name
        first, last = name(runs[0][0]), name(runs[-1][0])
        return name_range(first, last, above=1) or self._run.name(runs[0][0])


def _grouped(rows: Ints, keys: Ints) -> dict[int, Ints]:
    """Return the rows of each key; keys in order of their first rows, rows in order."""
    if not len(rows):
        return {}
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    pieces = np.split(rows[order], starts[1:])
    by_first = np.argsort(order[starts], kind="stable")
    return {int(ordered[starts[at]]): pieces[at] for at in by_first.tolist()}
