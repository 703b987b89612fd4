"""Edges between boxes, by the values that flowed.

A value was made by an op or passed on by a call; every later event that takes it gets an edge from
there. Edges of calls come from what the ops and calls inside them took. Events that are not drawn
pass data on. If ops were not recorded, values that came from them are linked by order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clew.analysis.graph.boxes import Boxes, Runs
from clew.analysis.graph.graph_model import (
    DATA,
    INPUT,
    NEXT,
    ORDER,
    OUTPUT,
    VIEW,
    WRITE,
    Edge,
    Node,
)
from clew.analysis.graph.op_memory import storages, writes
from clew.analysis.graph.order import is_next, walk
from clew.analysis.structure import Structure
from clew.events.columns import IN, OUT
from clew.events.records import MODULE
from clew.events.records import OP as OP_EVENT

# The most source boxes of a value that passed through ops that are not drawn.
_MOST_SOURCES = 32

# Where a value comes from: an event, or the node of a value from outside.
Origin = int | str


# The values that go from one box to another, each with the runs of the repeats.
Bundle = dict[int, Runs]


class DataEdges:
    """Goes over the events in order, noting which event made and which took each value."""

    def __init__(self, structure: Structure, boxes: Boxes) -> None:
        self._structure = structure
        self.run = structure.run
        self.boxes = boxes
        c = self.run.columns
        self._sees_ops = c.environment.get("level") != "modules"
        self._storage: list[int] = c.storage.tolist()
        self._names: list[int] = c.value_name.tolist()
        self._made_by: dict[int, tuple[Origin, ...]] = {}
        # For ops and calls that are not drawn: their inputs.
        self._through: dict[int, tuple[Origin, ...]] = {}
        self._bundles: dict[tuple[str, str], Bundle] = {}
        self._loops: dict[tuple[str, str], Bundle] = {}
        # Memory that was changed in a box, memory that a box returned.
        self._written: set[tuple[str, int]] = set()
        self._given: dict[str, set[int]] = {}
        # Values whose path was not recorded.
        self._assumed: set[int] = set()
        self._last: int | None = None
        self._arguments = self._named_arguments()
        # Results of outermost calls that nothing has taken since, with the calls.
        self._left: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self.outside: dict[str, Node] = {}
        self._run()

    def _run(self) -> None:
        tops = set(self.boxes.tops)
        for row, begins in walk(self._structure, self.boxes.tops):
            kind = self._structure.kind[row]
            if kind == OP_EVENT and begins:
                self._pass_op(row)
            elif kind == MODULE and begins and not self._saw_inside(row):
                self._take(row, self._values(row, IN))
            elif kind == MODULE and not begins:
                self._leave(row)
                if row in tops:
                    self._left.update(dict.fromkeys(self._values(row, OUT), row))

    def _saw_inside(self, row: int) -> bool:
        """Return whether calls or ops were recorded in a call; they then determine its inputs."""
        kids = self._structure.kids.get(row, ())
        return any(self._structure.kind[kid] in (MODULE, OP_EVENT) for kid in kids)

    def _values(self, row: int, role: str) -> list[int]:
        return [value for leaf, value in self.run.direct_values(row) if leaf.role == role]

    def _pass_op(self, row: int) -> None:
        taken, made = self._values(row, IN), self._values(row, OUT)
        box = self.boxes.box(row)
        if box is None:
            origins = self._through[row] = self._origins(taken)
        else:
            self._take(row, taken)
            origins = (row,)
            self._last = row
            if writes(self.run.name(row)):
                memory = storages(self.run, row, OUT) or storages(self.run, row, IN)
                self._written.update((box, storage) for storage in memory)
            if self.boxes.row_of[box] == self.boxes.like.get(row, row):
                self._given.setdefault(box, set()).update(storages(self.run, row, OUT))
        for value in made:
            self._made_by[value] = origins

    def _leave(self, row: int) -> None:
        """Handle the end of a call: it is the source of its results, unless its inside is drawn."""
        box = self.boxes.box(row)
        taken, given = self._values(row, IN), self._values(row, OUT)
        if box is None:
            self._through[row] = self._origins(taken)
            for value in given:
                self._made_by.setdefault(value, self._through[row])
            return
        if box in self.boxes.frames:
            self._leave_frame(given)
            return
        went_in = set(taken)
        handed_on = [value for value in given if value in went_in]
        self._take(row, [v for v in handed_on if self.boxes.box(row) != self._box_of(v)])
        for value in given:
            self._made_by[value] = (row,)
        if self.boxes.row_of[box] == self.boxes.like.get(row, row):
            self._given.setdefault(box, set()).update(storages(self.run, row, OUT))
        self._last = row

    def _leave_frame(self, given: list[int]) -> None:
        """Attribute the results of a frame to its last box, if ops were not recorded."""
        if self._sees_ops or self._last is None:
            return
        for value in given:
            if value not in self._made_by:
                self._made_by[value] = (self._last,)
                self._assumed.add(value)

    def _box_of(self, value: int) -> str | None:
        origins = self._made_by.get(value, ())
        return self._box(origins[0]) if len(origins) == 1 else None

    def _box(self, origin: Origin) -> str | None:
        return origin if isinstance(origin, str) else self.boxes.box(origin)

    def _origins(self, values: Iterable[int]) -> tuple[Origin, ...]:
        """Return all sources of some values, without parameters."""
        found = dict.fromkeys(origin for value in values for origin in self._origin(value))
        return tuple(found)[:_MOST_SOURCES]

    def _origin(self, value: int) -> tuple[Origin, ...]:
        known = self._made_by.get(value)
        if known is not None:
            return known
        if self._names[value] >= 0:
            return ()
        row = self.run.producer_row(value)
        if row in self._through:
            return self._through[row]
        # Written through another tensor on the same memory: the write is its producer.
        if row >= 0 and self.boxes.box(row) is not None and self._structure.kind[row] == OP_EVENT:
            return (row,)
        if not self._sees_ops and value not in self._arguments:
            self._assumed.add(value)
            return () if self._last is None else (self._last,)
        return () if self._is_empty(value) else (self._input(value),)

    def _is_empty(self, value: int) -> bool:
        """Return whether a tensor has no elements, such as a cache before it is filled."""
        return 0 in (self.run.columns.metas[int(self.run.columns.meta[value])].shape or ())

    def _input(self, value: int) -> str:
        """Return the node of a value from outside."""
        name = f"in{value}"
        if name not in self.outside:
            text = self.text(value)
            node = Node(name, INPUT, self._arguments.get(value, "tensor"), outputs=(text,))
            self.outside[name] = node
        return name

    def _named_arguments(self) -> dict[int, str]:
        """Return values given to the outermost calls, by the name of the argument."""
        names: dict[int, str] = {}
        for row in self.boxes.tops:
            if self._structure.kind[row] == MODULE:
                for leaf, value in self.run.leaf_values(row):
                    if leaf.role == IN:
                        at = leaf.path
                        name = "input" if at == "0" else f"input {at}" if at[:1].isdigit() else at
                        names.setdefault(value, name)
        return names

    def _take(self, row: int, values: list[int]) -> None:
        box = self.boxes.box(row)
        if box is None:
            return
        for value in values:
            self._left.pop(value, None)
            for origin in self._origin(value):
                self._link(origin, row, box, value)

    def _link(self, origin: Origin, row: int, box: str, value: int) -> None:
        source = self._box(origin)
        if source is None or source == box:
            return
        runs = self.boxes.runs
        loops = not isinstance(origin, str) and is_next(runs.get(origin, ()), runs.get(row, ()))
        bundles = self._loops if loops else self._bundles
        bundles.setdefault((source, box), {}).setdefault(value, runs.get(row, ()))

    def text(self, value: int) -> str:
        """Return dtype and shape of a value as text."""
        meta = int(self.run.columns.meta[value])
        if meta not in self._texts:
            self._texts[meta] = self.run.value(value).look
        return self._texts[meta]

    def edges(self) -> list[Edge]:
        """Return the edges of the forward pass, those that lead outside last."""
        edges = []
        for (source, target), bundle in self._bundles.items():
            kinds: dict[str, Bundle] = {}
            for value, runs in bundle.items():
                kinds.setdefault(self._kind(target, value), {})[value] = runs
            edges += [self.edge(source, target, kind, kinds[kind]) for kind in kinds]
        for (source, target), bundle in self._loops.items():
            edges.append(self.edge(source, target, NEXT, bundle))
        return edges + self._outputs()

    def edge(self, source: str, target: str, kind: str, values: Bundle) -> Edge:
        """Make an edge that carries some values; `count` is the largest of a repeat's runs."""
        labels = dict.fromkeys(self.text(value) for value in values)
        return Edge(source, target, kind, tuple(labels), max(Counter(values.values()).values()))

    def _kind(self, target: str, value: int) -> str:
        if value in self._assumed:
            return ORDER
        storage = self._storage[value]
        if (target, storage) in self._written:
            return WRITE
        return VIEW if storage in self._given.get(target, ()) else DATA

    def _outputs(self) -> list[Edge]:
        """Return edges to results of outermost calls that nothing takes."""
        labels: dict[tuple[str, str], dict[str, None]] = {}
        paths: dict[int, dict[int, str]] = {}
        for value, row in self._left.items():
            first = self.boxes.like.get(row, row)
            name = f"out{int(self.run.columns.id[first])}"
            if row not in paths:
                paths[row] = self._paths(row)
            label = _named(paths[row].get(value, ""), self.text(value))
            for source in map(self._box, self._made_by.get(value, ())):
                if source is not None:
                    labels.setdefault((source, name), {})[label] = None
                    self.outside.setdefault(name, Node(name, OUTPUT, "output"))
        return [Edge(*ends, DATA, tuple(said), len(said)) for ends, said in labels.items()]

    def _paths(self, row: int) -> dict[int, str]:
        """Return where in the result of a call each value is, at its first position."""
        leaves = self.run.direct_values(row)
        return {v: leaf.path for leaf, v in reversed(leaves) if leaf.role == OUT}


def _named(path: str, text: str) -> str:
    """Write a result with its name, if it has one: `logits f32[2,6,40]`."""
    return text if not path or path[0].isdigit() else f"{path} {text}"
