"""Which nodes of two forests of calls stand side by side.

Input: two `CallForest`s, and pairs of ops known to correspond. Output: rows in order, each with a
node of one forest, of the other or of both, and the row it is in. Calls stand side by side if most
of the ops in them correspond. A call that the other run has no call for, such as a wrapper, gets a
row of its own, in which both runs go on. What no op ties together is paired by name, in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from clew.analysis.diff.call_forest import CALL, OP, CallForest
from clew.events.columns import Ints

NONE = -1
# Lists longer than this are compared in pieces, as the comparison is quadratic at worst.
_PIECE = 1_000
_NO_TIES: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Rows of two forests: a node of each or -1, and the earlier row that each is in, or -1."""

    a: Ints
    b: Ints
    parent: Ints


@dataclass(slots=True)
class _Siblings:
    """Siblings of both forests to be set side by side, and the tied ops in them, sorted by `a`."""

    row: int
    nodes_a: list[int]
    nodes_b: list[int]
    ties_a: Ints
    ties_b: Ints


_Row = tuple[int, int, _Siblings | None]


def side_by_side(a: CallForest, b: CallForest, ties_a: Ints, ties_b: Ints) -> SideBySide:
    """Align two forests; op `ties_a[i]` corresponds to op `ties_b[i]`."""
    order = np.argsort(ties_a, kind="stable")
    return _Alignment(a, b).rows(ties_a[order], ties_b[order])


class _Alignment:
    def __init__(self, a: CallForest, b: CallForest) -> None:
        self._a = a
        self._b = b
        # Classes of `b` by the class of `a` that such a call was set beside first.
        self._classes: dict[str, str] = {}

    def rows(self, ties_a: Ints, ties_b: Ints) -> SideBySide:
        found: list[tuple[int, int]] = []
        inside: dict[int, list[int]] = {}
        work = [_Siblings(NONE, self._a.inside(NONE), self._b.inside(NONE), ties_a, ties_b)]
        while work:
            stretch = work.pop()
            for node_a, node_b, more in self._aligned(stretch):
                inside.setdefault(stretch.row, []).append(len(found))
                if more is not None:
                    more.row = len(found)
                    work.append(more)
                found.append((node_a, node_b))
        return _in_order(found, inside)

    def _aligned(self, stretch: _Siblings) -> Iterator[_Row]:
        """Return the rows of a stretch, each with the stretch inside it, if there is one."""
        ties = _Ties(self._a, self._b, stretch)
        at_a = at_b = 0
        count_a, count_b = len(stretch.nodes_a), len(stretch.nodes_b)
        for i, j in [*ties.pairs(), (count_a, count_b)]:
            if at_a < i or at_b < j:
                yield from self._between(ties, range(at_a, i), range(at_b, j))
            if i < count_a:
                node_a, node_b = stretch.nodes_a[i], stretch.nodes_b[j]
                self._learn(node_a, node_b)
                yield node_a, node_b, ties.within(i, range(j, j + 1), both=True)
            at_a, at_b = i + 1, j + 1

    def _between(self, ties: _Ties, left: range, right: range) -> Iterator[_Row]:
        """Align siblings between two pairs: first calls that several siblings belong into."""
        while True:
            found = self._wrapper(ties, left, right)
            if found is None:
                break
            span_a, span_b, row = found
            yield from self._by_name(
                ties, range(left.start, span_a.start), range(right.start, span_b.start)
            )
            yield row
            left, right = range(span_a.stop, left.stop), range(span_b.stop, right.stop)
        yield from self._by_name(ties, left, right)

    def _wrapper(self, ties: _Ties, left: range, right: range) -> tuple[range, range, _Row] | None:
        """Return the first call that siblings of the other run belong into, and those siblings."""
        nodes_a, nodes_b = ties.stretch.nodes_a, ties.stretch.nodes_b
        for i in left:
            span = ties.span_of_a(i, right) if self._a.kind(nodes_a[i]) != OP else None
            if span is not None:
                return range(i, i + 1), span, (nodes_a[i], NONE, ties.within(i, span))
        for j in right:
            span = ties.span_of_b(j, left) if self._b.kind(nodes_b[j]) != OP else None
            if span is not None:
                return span, range(j, j + 1), (NONE, nodes_b[j], ties.within_b(j, span))
        return None

    def _by_name(self, ties: _Ties, left: range, right: range) -> Iterator[_Row]:
        """Align siblings that no tied op joins: by class and path, then by class and shapes."""
        nodes_a, nodes_b = ties.stretch.nodes_a, ties.stretch.nodes_b
        at_a, at_b = left.start, right.start
        for i, j in self._pairs_by_name(nodes_a, nodes_b, left, right):
            yield from ((nodes_a[n], NONE, ties.alone_a(n)) for n in range(at_a, i))
            yield from ((NONE, nodes_b[n], ties.alone_b(n)) for n in range(at_b, j))
            yield nodes_a[i], nodes_b[j], ties.within(i, range(j, j + 1), both=True)
            at_a, at_b = i + 1, j + 1
        yield from ((nodes_a[n], NONE, ties.alone_a(n)) for n in range(at_a, left.stop))
        yield from ((NONE, nodes_b[n], ties.alone_b(n)) for n in range(at_b, right.stop))

    def _pairs_by_name(
        self, nodes_a: list[int], nodes_b: list[int], left: range, right: range
    ) -> list[tuple[int, int]]:
        """Return pairs of equal keys, and between them pairs of keys that are nearly equal."""

        def matched(left: range, right: range, exact: bool) -> list[tuple[int, int]]:
            keys_a = [self._key(self._a, nodes_a[i], exact) for i in left]
            keys_b = [self._key(self._b, nodes_b[j], exact) for j in right]
            return [(left.start + i, right.start + j) for i, j in _matched(keys_a, keys_b)]

        found: list[tuple[int, int]] = []
        at_a, at_b = left.start, right.start
        for i, j in [*matched(left, right, True), (left.stop, right.stop)]:
            found += matched(range(at_a, i), range(at_b, j), False)
            found += [(i, j)] if i < left.stop else []
            at_a, at_b = i + 1, j + 1
        return found

    def _key(self, forest: CallForest, node: int, exact: bool) -> Hashable:
        name = forest.name(node)
        if forest is self._b and forest.kind(node) == CALL:
            name = self._classes.get(name, name)
        return (forest.kind(node), name, forest.path(node) if exact else forest.shapes(node))

    def _learn(self, node_a: int, node_b: int) -> None:
        if self._a.kind(node_a) == CALL:
            self._classes.setdefault(self._b.name(node_b), self._a.name(node_a))


class _Ties:
    """The tied ops of a stretch, counted by the siblings that they are in."""

    def __init__(self, a: CallForest, b: CallForest, stretch: _Siblings) -> None:
        self._a = a
        self._b = b
        self.stretch = stretch
        self._at_a = _places(stretch.nodes_a, stretch.ties_a)
        self._at_b = _places(stretch.nodes_b, stretch.ties_b)
        width = max(len(stretch.nodes_b), 1)
        codes, counts = np.unique(self._at_a * width + self._at_b, return_counts=True)
        self._counts = {
            divmod(code, width): n for code, n in zip(codes.tolist(), counts.tolist(), strict=True)
        }
        self._all_a: dict[int, int] = {}
        self._all_b: dict[int, int] = {}
        self._of_a: dict[int, list[int]] = {}
        self._of_b: dict[int, list[int]] = {}
        for (i, j), n in self._counts.items():
            self._all_a[i] = self._all_a.get(i, 0) + n
            self._all_b[j] = self._all_b.get(j, 0) + n
            self._of_a.setdefault(i, []).append(j)
            self._of_b.setdefault(j, []).append(i)

    def pairs(self) -> list[tuple[int, int]]:
        """Return siblings most of whose tied ops are in each other, in the order of both."""
        found = [
            (i, j, n)
            for (i, j), n in self._counts.items()
            if 2 * n > self._all_a[i] and 2 * n > self._all_b[j] and self._alike(i, j)
        ]
        calls: list[tuple[int, int]] = []
        for i, j, _ in sorted(found, key=lambda one: -one[2]):
            at = bisect_left(calls, (i, j))
            fits = (at == 0 or calls[at - 1][1] < j) and (at == len(calls) or calls[at][1] > j)
            if fits and self._a.kind(self.stretch.nodes_a[i]) != OP:
                calls.insert(at, (i, j))
        calls_a, calls_b = [i for i, _ in calls], [j for _, j in calls]
        ops = [
            (i, j)
            for i, j, _ in found
            if self._a.kind(self.stretch.nodes_a[i]) == OP
            and bisect_left(calls_a, i) == bisect_left(calls_b, j)
        ]
        return sorted([*calls, *_longest_rising(sorted(ops))])

    def _alike(self, i: int, j: int) -> bool:
        kinds = self._a.kind(self.stretch.nodes_a[i]), self._b.kind(self.stretch.nodes_b[j])
        return (kinds[0] == OP) == (kinds[1] == OP)

    def span_of_a(self, i: int, right: range) -> range | None:
        """Return the siblings of `b` from the first to the last that belong into one of `a`."""
        mine = [
            j
            for j in self._of_a.get(i, ())
            if j in right and 2 * self._counts[i, j] > self._all_b[j]
        ]
        return range(min(mine), max(mine) + 1) if mine else None

    def span_of_b(self, j: int, left: range) -> range | None:
        """Return the siblings of `a` from the first to the last that belong into one of `b`."""
        mine = [
            i
            for i in self._of_b.get(j, ())
            if i in left and 2 * self._counts[i, j] > self._all_a[i]
        ]
        return range(min(mine), max(mine) + 1) if mine else None

    def within(self, i: int, span: range, both: bool = False) -> _Siblings | None:
        """Return what is in a node of `a`, beside nodes of `b` or, with `both`, what is in one."""
        inside = self._a.inside(self.stretch.nodes_a[i])
        nodes = self.stretch.nodes_b[span.start : span.stop]
        return self._part(
            inside, self._b.inside(nodes[0]) if both else nodes, range(i, i + 1), span
        )

    def within_b(self, j: int, span: range) -> _Siblings | None:
        """Return what is in a node of `b`, beside nodes of `a`."""
        nodes = self.stretch.nodes_a[span.start : span.stop]
        inside = self._b.inside(self.stretch.nodes_b[j])
        return self._part(nodes, inside, span, range(j, j + 1))

    def alone_a(self, i: int) -> _Siblings | None:
        """Return what is in a node of `a` that has no partner."""
        return self._part(self._a.inside(self.stretch.nodes_a[i]), [], range(0), range(0))

    def alone_b(self, j: int) -> _Siblings | None:
        """Return what is in a node of `b` that has no partner."""
        return self._part([], self._b.inside(self.stretch.nodes_b[j]), range(0), range(0))

    def _part(
        self, nodes_a: list[int], nodes_b: list[int], left: range, right: range
    ) -> _Siblings | None:
        """Return a stretch with the ties between some siblings of `a` and some of `b`."""
        if not nodes_a and not nodes_b:
            return None
        if not nodes_a or not nodes_b:
            return _Siblings(NONE, nodes_a, nodes_b, _NO_TIES, _NO_TIES)
        first, end = np.searchsorted(self._at_a, [left.start, left.stop])
        at_b = self._at_b[first:end]
        mine = (at_b >= right.start) & (at_b < right.stop)
        ties = self.stretch.ties_a[first:end][mine], self.stretch.ties_b[first:end][mine]
        return _Siblings(NONE, nodes_a, nodes_b, *ties)


def _places(nodes: list[int], ties: Ints) -> Ints:
    """Return for each op the position of the sibling that it is, or is in; -1 for none."""
    return np.asarray(np.searchsorted(np.array(nodes, dtype=np.int64), ties, side="right") - 1)


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of pairs in the order of their first in which the second rises."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for at, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(last[length - 1] if length else NONE)
        if length == len(ends):
            ends.append(j)
            last.append(at)
        else:
            ends[length], last[length] = j, at
    found = []
    at = last[-1] if last else NONE
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _matched(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the positions of equal keys, in the order of both."""
    if not left or not right:
        return []
    if left == right:
        return [(i, i) for i in range(len(left))]
    found = []
    for first in range(0, min(len(left), len(right)), _PIECE):
        pieces = left[first : first + _PIECE], right[first : first + _PIECE]
        for i, j, size in SequenceMatcher(None, *pieces, autojunk=False).get_matching_blocks():
            found += [(first + i + k, first + j + k) for k in range(size)]
    return found


def _in_order(found: list[tuple[int, int]], inside: dict[int, list[int]]) -> SideBySide:
    """Number rows so that each comes after the one it is in, with all of its own after it."""
    order: list[int] = []
    parents: list[int] = []
    stack = [(row, NONE) for row in reversed(inside.get(NONE, []))]
    while stack:
        row, parent = stack.pop()
        stack += [(kid, len(order)) for kid in reversed(inside.get(row, []))]
        order.append(row)
        parents.append(parent)
    nodes = np.array(found, dtype=np.int64).reshape(-1, 2)[order]
    return SideBySide(nodes[:, 0], nodes[:, 1], np.array(parents, dtype=np.int64))
