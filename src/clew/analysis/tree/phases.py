"""The backward pass by part of the model and the optimizer by line, as drafts of the tree.

Input: the events of one step that no forward call ran. Output: drafts. Equal passes become one, and
so do parts of the model whose names differ in an index and whose ops agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from itertools import groupby, pairwise

import numpy as np

from clew.analysis.fold import name_range
from clew.analysis.structure import Structure, numbers_in
from clew.analysis.tree.outline import Draft, Outliner
from clew.analysis.tree.totals import BACKWARD_SECTION, OPTIMIZER_SECTION, Totals
from clew.analysis.tree.tree_model import BACKWARD, GROUP, LINE, OPTIMIZER
from clew.events.columns import Ints
from clew.events.vocabulary import MODULE, OP, RECOMPUTE

_DIGITS = re.compile(r"\d+")
_OUTSIDE, _ROOT = "(outside any module)", "(root)"


class Phases:
    """Turns what ran outside the forward pass into drafts."""

    def __init__(
        self, structure: Structure, section: Ints, totals: Totals, outliner: Outliner
    ) -> None:
        self._structure = structure
        self._run = structure.run
        self._totals = totals
        self._outliner = outliner
        self._error: list[int] = self._run.columns.error.tolist()
        # For each row how many ops of other phases ran before it.
        is_op = self._run.columns.kind == OP
        self._others: dict[str, Ints] = {
            BACKWARD: np.cumsum(is_op & (section != BACKWARD_SECTION)),
            OPTIMIZER: np.cumsum(is_op & (section != OPTIMIZER_SECTION)),
        }

    def backward(self, tops: list[int], times: int) -> Draft:
        """Return the backward pass of a step by part of the model."""
        head = self._head(BACKWARD, tops, times, self._part)
        parts: dict[tuple[str, bool], list[int]] = {}
        for row in head.rows:
            parts.setdefault(self._part(row), []).append(row)
        groups: dict[Hashable, list[tuple[str, bool]]] = {}
        for part, rows in parts.items():
            name, recompute = part
            ran = tuple(self._structure.likeness(row) for row in rows)
            groups.setdefault((_DIGITS.sub("#", name), recompute, ran), []).append(part)
        for alike in groups.values():
            self._totals.fold(np.array([parts[part] for part in alike], dtype=np.int64))
            name = listed([name for name, _ in alike])
            count = len(alike)
            rows = parts[alike[0]]
            head.children.append(Draft(GROUP, rows, 1, head.times * count, count, name=name))
        return self._with_failures(head, tops, times)

    def optimizer(self, tops: list[int], times: int) -> Draft:
        """Return the optimizer of a step by line; without children if there is a single line."""
        head = self._head(OPTIMIZER, tops, times, self._line)
        lines: dict[Hashable, list[int]] = {}
        for row in head.rows:
            lines.setdefault(self._line(row), []).append(row)
        if len(lines) > 1 or any(self._error[top] >= 0 for top in tops):
            head.children = [Draft(LINE, rows, 1, head.times) for rows in lines.values()]
        return self._with_failures(head, tops, times)

    def _head(
        self, kind: str, tops: list[int], times: int, place: Callable[[int], Hashable]
    ) -> Draft:
        """Return the draft of a phase with its events, those of the first pass if all are equal."""
        rows = [
            row
            for top in tops
            if self._error[top] < 0
            for row in self._structure.subtree(top)
            if self._structure.kind[row] in (MODULE, OP)
        ]
        others = dict(zip(rows, self._others[kind][rows].tolist(), strict=True))
        passes = [list(run) for _, run in groupby(rows, lambda row: others[row])]
        likes = {
            tuple((place(row), self._structure.likeness(row)) for row in one) for one in passes
        }
        failed = any(self._error[top] >= 0 for top in tops)
        if len(passes) > 1 and len(likes) == 1 and not failed:
            self._totals.fold(np.array(passes, dtype=np.int64))
            return Draft(kind, passes[0], 0, times * len(passes), len(passes))
        return Draft(kind, rows, 0, times, passes=max(len(passes), 1))

    def _with_failures(self, head: Draft, tops: list[int], times: int) -> Draft:
        failed = [top for top in tops if self._error[top] >= 0]
        head.children += self._outliner.outline(failed, times, level=1) if failed else []
        head.rows = head.rows or tops
        return head

    def _part(self, row: int) -> tuple[str, bool]:
        """Return the part of the model an event is of, and whether a checkpoint recomputes it."""
        path = self._run.module_path(row)
        name = _OUTSIDE if path is None else part_of(path) or _ROOT
        return name, bool(self._run.phase[row] == RECOMPUTE)

    def _line(self, row: int) -> Hashable:
        place = self._run.source_place(row)
        return None if place is None else (place.file, place.line)


def part_of(path: str) -> str:
    """Return the part of the model a module is in: up to the first index, else two names deep.

    >>> part_of("encoder.layers.3.norm"), part_of("decoder.head.proj")
    ('encoder.layers.3', 'decoder.head')
    """
    names = path.split(".")
    for position, name in enumerate(names):
        if name.isdigit():
            return ".".join(names[: position + 1])
    return ".".join(names[:2])


def listed(names: list[str]) -> str:
    """Write names that differ in an index as one: a range if the indices are consecutive.

    >>> listed(["h.0", "h.1", "h.2"]), listed(["h.0", "h.2"]), listed(["h.0", "h.2", "h.3", "h.9"])
    ('h.0 … h.2', 'h.0, h.2', 'h.0, h.2 … h.9')
    """
    numbers = [numbers_in(name) for name in names]
    steps = {sum(b) - sum(a) for a, b in pairwise(numbers)}
    if len(names) > 3 and not steps <= {-1} and not steps <= {1}:
        return f"{names[0]}, {names[1]} … {names[-1]}"
    if len(names) > 1 and not steps <= {-1} and not steps <= {1}:
        return ", ".join(names)
    return name_range(names[0], names[-1], above=1)
