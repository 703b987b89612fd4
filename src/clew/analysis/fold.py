"""Repeats: which neighbouring calls are the same, so that a view can show one of them.

Input: the rows of siblings in order. Output: rows and `Repeat`s. Calls repeat when they have the
same structure and wiring (`analysis.structure`) and their names are the same or differ only in an
index that counts up. Ops between the calls repeat along with them; a run that lacks one is no run
of the repeat, so every count for a repeat is that of one run times the number of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from clew.analysis.structure import Structure
from clew.events.columns import Ints
from clew.events.vocabulary import MODULE
from clew.run.run import Run

# How far apart two calls of one loop may be, in siblings, and how many later calls are tried.
_LONGEST_PERIOD = 512
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Repeat:
    """Siblings that run several times in sequence: the first run, and the rows of every run.

    Every run has the same number of rows. `exact` is False if sizes differ between the runs.
    """

    items: tuple[Item, ...]
    runs: tuple[tuple[int, ...], ...]
    exact: bool = True

    @property
    def count(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        return f"<Repeat {self.count} × {len(self.items)} items>"


Item = int | Repeat


def rows_of(item: Item) -> tuple[int, ...]:
    """Return the sibling rows that an item stands for, all runs of a repeat."""
    if isinstance(item, Repeat):
        return tuple(row for run in item.runs for row in run)
    return (item,)


def name_range(first: str, last: str, above: int = 0) -> str:
    """Write two names that differ in an index as one, repeating `above` parts before the index.

    >>> name_range("h.0", "h.11"), name_range("h.0", "h.11", above=1), name_range("cell", "cell")
    ('h.0 … 11', 'h.0 … h.11', 'cell')
    """
    if first == last:
        return first
    left, right = first.split("."), last.split(".")
    shared = 0
    while shared < min(len(left), len(right)) - 1 and left[shared] == right[shared]:
        shared += 1
    return f"{first} … {'.'.join(right[max(shared - above, 0) :])}"


def _rows(items: list[Item]) -> list[int]:
    return [row for item in items for row in rows_of(item)]


class Folds:
    """The calls of a trace, folded as they are asked for.

    Without `sizes`, calls of one module in a loop are folded even if sizes differ.
    """

    def __init__(self, run: Run, fold: bool = True, sizes: bool = True) -> None:
        self._run = run
        self.folding = fold
        self._sizes = sizes
        self._inside: dict[int, list[Item]] = {}
        # The repeats are stored too, so that their ids are not reused.
        self._spans: dict[int, tuple[Repeat, Ints]] = {}

    @property
    def ignores_sizes(self) -> bool:
        """Return whether calls of one module are folded even if sizes differ."""
        return not self._sizes

    def without_sizes(self) -> Folds:
        """Return folds of the same run that ignore sizes."""
        folds = Folds(self._run, self.folding, sizes=False)
        folds.structure = self.structure
        return folds

    @cached_property
    def structure(self) -> Structure:
        """Return signatures of all events."""
        return Structure(self._run)

    @cached_property
    def sizeless(self) -> Structure:
        """Return signatures of all events that ignore sizes of tensors."""
        return Structure(self._run, sizes=False)

    def inside(self, row: int) -> list[Item]:
        """Return what ran directly in a module call."""
        items = self._inside.get(row)
        if items is None:
            items = self._inside[row] = self.fold(self.structure.kids.get(row, []))
        return items

    def fold(
        self, rows: list[int], given: Mapping[int, object] = MappingProxyType({})
    ) -> list[Item]:
        """Fold repeats of siblings; rows with a `given` key are compared by it alone."""
        items: list[Item] = list(rows)
        calls = sum(self.structure.kind[row] == MODULE for row in rows)
        if not self.folding or calls < 2:
            return items
        exact = _folded(self.structure, items, given)
        if self._sizes:
            return exact
        # Turns of one loop may alternate between a few sizes, which then repeat exactly.
        loops = _folded(self.sizeless, items, given, self.structure)
        loops = _folded(self.structure, loops, given)
        return min(_folded(self.sizeless, exact, given, self.structure), loops, key=len)

    def twins(self, rows: list[int], within: tuple[Repeat, ...]) -> list[int]:
        """Return rows of a first run with their equals in all runs; outermost repeat first."""
        found = np.array(rows, dtype=np.int64)
        for repeat in reversed(within):
            spans = self.spans(repeat)
            found = spans[:, np.searchsorted(spans[0], found)].ravel()
        like: list[int] = found.tolist()
        return like

    def spans(self, repeat: Repeat) -> Ints:
        """Return all events of each run, a run in each row, the same event in the same column."""
        if id(repeat) not in self._spans:
            subtree = self.structure.subtree
            spans = [[row for top in run for row in subtree(top)] for run in repeat.runs]
            self._spans[id(repeat)] = repeat, np.array(spans, dtype=np.int64)
        return self._spans[id(repeat)][1]


def _folded(
    structure: Structure,
    items: list[Item],
    given: Mapping[int, object],
    strict: Structure | None = None,
) -> list[Item]:
    """Fold siblings until nothing repeats; `strict` decides which repeats are exact."""
    keys = {row: given.get(row) or structure.key(row) for row in _rows(items)}
    while True:
        folded = _Pass(structure, items, keys, given, strict).folded()
        if len(folded) == len(items):
            return folded
        items = folded


class _Pass:
    """One pass over siblings that folds every sequence that repeats."""

    def __init__(
        self,
        structure: Structure,
        items: list[Item],
        keys: dict[int, object],
        given: Mapping[int, object],
        strict: Structure | None,
    ) -> None:
        self._structure = structure
        self._given = given
        self._items = items
        self._row_keys = keys
        self._strict = strict
        self._keys = [self._key(item) for item in items]
        self._is_call = [
            isinstance(item, Repeat) or (structure.kind[item] == MODULE and item not in given)
            for item in items
        ]
        self._later = self._later_calls()

    def folded(self) -> list[Item]:
        """Return the items, with a `Repeat` instead of each sequence that repeats."""
        result: list[Item] = []
        at = free = 0
        while at < len(self._items):
            start, runs = self._repeat(at, free) if self._is_call[at] else (at, [])
            if runs:
                del result[len(result) - (at - start) :]
                rows = tuple(tuple(_rows(run)) for run in runs)
                first = _folded(self._structure, runs[0], self._given, self._strict)
                result.append(Repeat(tuple(first), rows, self._is_exact(rows)))
                at = free = start + sum(map(len, runs))
            else:
                result.append(self._items[at])
                at += 1
        return result

    def _key(self, item: Item) -> object:
        if isinstance(item, Repeat):
            names = tuple(self._name(row) for run in item.runs for row in run)
            return (item.count, names, tuple(self._row_keys[row] for row in item.runs[0]))
        return self._row_keys[item]

    def _name(self, row: int) -> str:
        return self._structure.name(row) if self._structure.kind[row] == MODULE else ""

    def _later_calls(self) -> list[int]:
        """Return for each call the position of the next equal one, else -1."""
        later = [-1] * len(self._items)
        last: dict[object, int] = {}
        for at in range(len(self._items) - 1, -1, -1):
            if self._is_call[at]:
                later[at] = last.get(self._keys[at], -1)
                last[self._keys[at]] = at
        return later

    def _repeat(self, at: int, free: int) -> tuple[int, list[list[Item]]]:
        """Return where the runs with the call at a position begin, and the runs that cover most.

        There are none if nothing repeats there. `free` is the first position that is not yet part
        of a repeat.
        """
        best: list[list[Item]] = []
        start = other = at
        for _ in range(_TRIES):
            other = self._later[other]
            if other < 0 or other - at > _LONGEST_PERIOD:
                break
            begin, runs = self._whole_runs(at, free, other - at)
            if len(runs) > 1 and sum(map(len, runs)) > sum(map(len, best)):
                start, best = begin, runs
        return (start, best) if best and self._worth_it(best) else (at, [])

    def _whole_runs(self, at: int, free: int, period: int) -> tuple[int, list[list[Item]]]:
        """Return runs that begin with a call, or with the ops before it if that makes more of them.

        If ops run before each call of a loop, runs that begin with the call would lack them after
        the last call.
        """
        runs, lacking = self._runs(at, period)
        start = at - lacking
        if lacking and start >= free and not any(self._is_call[start:at]):
            turned, _ = self._runs(start, period)
            if len(turned) > len(runs):
                return start, turned
        return at, runs

    def _runs(self, start: int, period: int) -> tuple[list[list[Item]], int]:
        """Return sequences of one length, from a position on, as long as they are the same.

        The second result is how many ops are missing in the next sequence if it has all the calls,
        else 0.
        """
        runs = [self._items[start : start + period]]
        # Most candidates already differ in their items, which is far cheaper to find.
        wiring: Ints | None = None
        calls = sum(self._is_call[start : start + period])
        at = start + period
        while True:
            length = self._common(start, at, period)
            if length < period:
                has_calls = sum(self._is_call[at : at + length]) == calls
                return runs, period - length if has_calls else 0
            run = self._items[at : at + period]
            wiring = self._wiring(runs[0]) if wiring is None else wiring
            if not self._is_like(runs, run, wiring):
                return runs, 0
            runs.append(run)
            at += period

    def _common(self, start: int, at: int, period: int) -> int:
        """Count the items from two positions on that are the same."""
        length = 0
        keys = self._keys
        while length < period and at + length < len(keys):
            if keys[start + length] != keys[at + length]:
                break
            length += 1
        return length

    def _wiring(self, run: list[Item]) -> Ints:
        tops = [row for row in _rows(run) if row not in self._given]
        structure = self._structure
        return structure.tensors.wiring([row for top in tops for row in structure.subtree(top)])

    def _is_like(self, runs: list[list[Item]], run: list[Item], wiring: Ints) -> bool:
        """Return whether one more run continues the count and is wired as the first."""
        return np.array_equal(wiring, self._wiring(run)) and self._counts_up(
            _rows(runs[0]), _rows(runs[1] if len(runs) > 1 else run), _rows(run), len(runs)
        )

    def _counts_up(self, zeroth: list[int], first: list[int], nth: list[int], n: int) -> bool:
        """Return whether the indices in run `n` follow from those in the first two.

        Names advance by the same step or stay the same; constants of ops may each advance
        differently.
        """
        indices = self._structure.indices
        strides: set[int] = set()
        for a, b, c in zip(zeroth, first, nth, strict=True):
            if a in self._given:
                continue
            steps = [y - x for x, y in zip(indices(a), indices(b), strict=True)]
            if indices(c) != [x + n * step for x, step in zip(indices(a), steps, strict=True)]:
                return False
            if self._structure.kind[a] == MODULE:
                moved = [step for step in steps if step]
                strides.update(moved)
                if len(moved) > 1 or len(strides) > 1:
                    return False
        return True

    def _is_exact(self, runs: tuple[tuple[int, ...], ...]) -> bool:
        if self._strict is None:
            return True
        key = self._strict.key
        first = [key(row) for row in runs[0] if row not in self._given]
        return all(first == [key(row) for row in run if row not in self._given] for run in runs[1:])

    def _worth_it(self, runs: list[list[Item]]) -> bool:
        """Return whether folding saves at least two lines."""
        structure = self._structure
        lines = sum(
            1 + sum(structure.kind[kid] == MODULE for kid in structure.kids.get(row, ()))
            for row in _rows(runs[0])
            if structure.kind[row] == MODULE
        )
        heading = int(len(runs[0]) > 1)
        return (len(runs) - 1) * lines - heading >= 2
