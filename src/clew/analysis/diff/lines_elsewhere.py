"""What the lines of a layer did elsewhere in the same run, where all is right.

Input: `Compared` of other code, and the first wrong op of `b`. Output: an op of `b` in its layer
that ran at a line, or took something, which nothing has shown to be right; or an op of `a` whose
counterpart `b` lacks there. A layer is called many times, and a loop runs many steps. Where most
steps have no counterpart in the other run, each of them could be at fault; but one whose line led
to right values in another layer, given the same, most likely is not.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cached_property

import numpy as np

from clew.analysis.diff.arguments import constants_of
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.unmatched_regions import Region, constant_makers

NUMBER = re.compile(r"\b\d+\b")
# Whole numbers above this are sizes, which may differ from layer to layer.
_SIZES = 8
# Where a value comes from: a line or a name, and what was taken of it.
Source = tuple[Hashable, ...]


class LinesElsewhere:
    """The ops of `b` in the layer of its first wrong one, and what is known of their lines."""

    def __init__(self, found: Compared, op: int, region: Region) -> None:
        self._found, self._op, self._region = found, op, region
        self._a, self._b = _Lines(found.a), _Lines(found.b, op)

    @property
    def is_proved(self) -> bool:
        """Return whether the line of the first wrong op led to right values elsewhere."""
        return self._b.line(self._op) in self._b.proved_lines

    def first_unproved(self) -> int:
        """Return the first op in the layer whose line is right nowhere; -1 for none."""
        ops = sorted({*self._here, *constant_makers(self._found.b.graph, self._here)})
        return next((op for op in ops if self._b.line(op) not in self._b.proved_lines), -1)

    def first_rewired(self) -> int:
        """Return the first op in the layer that took what no op of its line took where all is
        right; -1 for none. An op that only moves elements hands this on.
        """
        moves = self._found.b.graph.is_move
        ops = (op for op in self._here if not moves[op])
        return next((op for op in ops if not self._b.is_wired_as_proved(op)), -1)

    def first_missing(self, ops: list[int], instead: int) -> int:
        """Return the first of some ops of `a` whose results a line of `b` gave elsewhere that did
        not run in the layer, or else another op.
        """
        ran = {self._b.line(op) for op in self._here}
        layer = self._a.layer(instead)
        for op in (op for op in ops if self._a.layer(op) == layer):
            lines = self._counterparts.get(self._a.line(op), set())
            if lines and ran.isdisjoint(lines):
                return op
        return instead

    @cached_property
    def _here(self) -> list[int]:
        """Return the ops of the layer from the first wrong one on; without layers, of the region.

        What follows in a program that has none is right nowhere, because something went wrong.
        """
        layer = self._b.layer(self._op)
        if not is_numbered(layer):
            return self._region.ops
        ops = range(self._op, len(self._found.b.graph))
        return [op for op in ops if self._b.layer(op) == layer]

    @cached_property
    def _counterparts(self) -> dict[Hashable, set[Hashable]]:
        """Return for each line of `a` those of `b` that gave the same results."""
        a, b = self._found.a, self._found.b
        found: dict[Hashable, set[Hashable]] = {}
        same = np.flatnonzero((a.partner >= 0) & a.right & (a.graph.maker >= 0))
        for value in same.tolist():
            maker_a, maker_b = int(a.graph.maker[value]), int(b.graph.maker[a.partner[value]])
            if maker_b >= 0 and not a.graph.is_move[maker_a]:
                found.setdefault(self._a.line(maker_a), set()).add(self._b.line(maker_b))
        return found


class _Lines:
    """What ops of one run have in common with others of the same line."""

    def __init__(self, half: Half, wrong: int = -1) -> None:
        """Take a run; the layer of its first wrong op proves nothing about that layer."""
        self._half, self._graph = half, half.graph
        self._known: dict[int, Hashable] = {}
        self._layers = [_layer_of(path) for path in half.graph.run.derived.paths] + [""]
        own = self.layer(wrong) if wrong >= 0 else ""
        self._own = own if is_numbered(own) else None

    def line(self, op: int) -> Hashable:
        """Return the line of an op, its name, and the numbers and texts given to it."""
        if op not in self._known:
            row = int(self._graph.rows[op])
            place = int(self._graph.run.derived.source[row])
            given = {} if self._graph.is_move[op] else constants_of(self._graph.run, row)
            plain = tuple((path, repr(one)) for path, one in given.items() if not _is_size(one))
            self._known[op] = place, int(self._graph.name_codes[op]), plain
        return self._known[op]

    def is_wired_as_proved(self, op: int) -> bool:
        """Return whether an op took what one of its line took that led to right values, as far as
        its layer has made it.
        """
        taken = self._sources(op)
        return any(
            len(taken) == len(known)
            and all(x == y or not x or not y for x, y in zip(taken, known, strict=True))
            for known in self._proved_sources.get(self.line(op), ())
        )

    @cached_property
    def _proved_sources(self) -> dict[Hashable, set[tuple[Source, ...]]]:
        found: dict[Hashable, set[tuple[Source, ...]]] = {}
        for op in self._proved:
            found.setdefault(self.line(op), set()).add(self._sources(op))
        return found

    def _sources(self, op: int) -> tuple[Source, ...]:
        layer = self.layer(op)
        return tuple(self._source(value, layer) for value in self._graph.takes[op])

    def _source(self, value: int, layer: str) -> Source:
        """Return what a value is: which result of which line in which module, or a name, and the
        parts that were taken of it; nothing for what another layer gave, or the caller.
        """
        graph, parts = self._graph, list[Hashable]()
        while (maker := int(graph.maker[value])) >= 0:
            if self.layer(maker) != layer:
                return ()
            gives = graph.gives[maker]
            parts.append(gives.index(value) if value in gives else 0)
            if not graph.is_move[maker] or not graph.takes[maker]:
                return self.line(maker), NUMBER.sub("*", self._module(maker)), *parts
            parts.append(self._part(maker))
            value = graph.takes[maker][0]
        name = graph.run.value(value).name
        return (NUMBER.sub("*", name), *parts) if name else ()

    def _part(self, op: int) -> Hashable:
        """Return which part of a value an op takes that moves elements, in parts of its axis."""
        graph = self._graph
        given = list(constants_of(graph.run, int(graph.rows[op])).values())
        if graph.names[int(graph.name_codes[op])] != "slice" or len(given) < 2:
            return None
        size = (graph.run.value(graph.takes[op][0]).shape or (1,))[given[0]] or 1
        start = given[1] or 0
        return round((start % size if start < 0 else start) / size, 6)

    def layer(self, op: int) -> str:
        """Return the path of the first numbered module that an op ran in, or else of its module."""
        return self._layers[int(self._graph.run.derived.module[self._graph.rows[op]])]

    def _module(self, op: int) -> str:
        derived = self._graph.run.derived
        at = int(derived.module[self._graph.rows[op]])
        return derived.paths[at] if at >= 0 else ""

    @cached_property
    def proved_lines(self) -> set[Hashable]:
        """Return the lines of ops that led to right values."""
        return {self.line(op) for op in self._proved}

    @cached_property
    def _proved(self) -> list[int]:
        """Return the ops of other layers all of whose results that are used are right and computed
        from inputs, and those that make constants for such ops.
        """
        half, graph = self._half, self._graph
        used = np.zeros(len(graph.maker), dtype=bool)
        used[graph.takes.values] = True
        computed = graph.depends & (graph.maker >= 0) & half.facts.known & used
        ops = set(graph.maker[computed & half.right].tolist())
        ops -= set(graph.maker[computed & ~half.right].tolist())
        elsewhere = [op for op in ops if self.layer(op) != self._own]
        return [*elsewhere, *constant_makers(graph, elsewhere)]


def _is_size(given: object) -> bool:
    """Return whether something given to an op is the size of an axis, or several."""
    numbers = given if isinstance(given, list | tuple) else [given]
    return any(isinstance(one, int) and abs(one) > _SIZES for one in numbers)


def _layer_of(path: str) -> str:
    names = path.split(".")
    numbered = next((n for n, name in enumerate(names) if name.isdigit()), len(names))
    return ".".join(names[: numbered + 1])


def is_numbered(path: str) -> bool:
    """Return whether a path is that of a layer: it ends with a number."""
    return path.rpartition(".")[2].isdigit()
