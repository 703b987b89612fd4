"""Edges between boxes, by the values that flowed.

A value was made by an op or passed on by a call; every later event that takes it gets an edge from
there. Edges of calls come from what the ops and calls inside them took. Events that are not drawn
pass data on. If ops were not recorded, values that came from them are linked by order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from clew.analysis.graph.boxes import Boxes, Runs
from clew.analysis.graph.graph_model import (
    DATA,
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
from clew.analysis.graph.value_origins import Origin, ValueOrigins
from clew.analysis.structure import Structure
from clew.events.columns import IN, OUT
from clew.events.vocabulary import MODULE
from clew.events.vocabulary import OP as OP_EVENT
from clew.run.run import Run

# The values that go from one box to another, each with the runs of the repeats.
Bundle = dict[int, Runs]


@dataclass(frozen=True, slots=True)
class Carried:
    """What one edge carries: values, each with the runs of the repeats and its text."""

    source: str
    target: str
    kind: str
    values: Bundle
    texts: dict[int, str]

    def edge(self) -> Edge:
        """Return it as an edge; `count` is the largest of a repeat's runs."""
        labels = tuple(dict.fromkeys(self.texts[value] for value in self.values))
        count = max(Counter(self.values.values()).values())
        return Edge(self.source, self.target, self.kind, labels, count)


class BoxMemory:
    """Which memory boxes changed and returned: what kind of edge leads to them."""

    def __init__(self, run: Run, boxes: Boxes) -> None:
        self._run = run
        self._boxes = boxes
        self._storage: list[int] = run.columns.storage.tolist()
        self._written: set[tuple[str, int]] = set()
        self._given: dict[str, set[int]] = {}

    def write(self, box: str, row: int) -> None:
        """Note the memory that an op in a box changes, if it changes any."""
        if writes(self._run.name(row)):
            memory = storages(self._run, row, OUT) or storages(self._run, row, IN)
            self._written.update((box, storage) for storage in memory)

    def give(self, box: str, row: int) -> None:
        """Note the memory that a box returns, if it is the box of the event itself."""
        if self._boxes.row_of[box] == self._boxes.like.get(row, row):
            self._given.setdefault(box, set()).update(storages(self._run, row, OUT))

    def kind(self, target: str, value: int) -> str:
        """Return the kind of an edge that takes a value to a box."""
        storage = self._storage[value]
        if (target, storage) in self._written:
            return WRITE
        return VIEW if storage in self._given.get(target, ()) else DATA


class DataEdges:
    """Goes over the events in order, noting which event made and which took each value."""

    def __init__(self, structure: Structure, boxes: Boxes) -> None:
        self._structure = structure
        self.run = structure.run
        self.boxes = boxes
        self.origins = ValueOrigins(structure, boxes)
        self.memory = BoxMemory(self.run, boxes)
        self._bundles: dict[tuple[str, str], Bundle] = {}
        self._loops: dict[tuple[str, str], Bundle] = {}
        # Results of outermost calls that nothing has taken since, with the calls.
        self._left: dict[int, int] = {}
        self._run()

    def _run(self) -> None:
        tops = set(self.boxes.tops)
        for row, begins in walk(self._structure, self.boxes.tops):
            kind = self._structure.kind[row]
            if kind == OP_EVENT and begins:
                self._pass_op(row)
            elif kind == MODULE and begins and not self._saw_inside(row):
                self.cross(row, self._values(row, IN))
                self._take(row, self._values(row, IN))
            elif kind == MODULE and not begins:
                self._leave(row)
                if row in tops:
                    self._left.update(dict.fromkeys(self._values(row, OUT), row))

    def cross(self, row: int, values: list[int]) -> None:
        """Note what an event takes into the frames around it; only `BorderEdges` does."""

    def _saw_inside(self, row: int) -> bool:
        """Return whether calls or ops were recorded in a call; they then determine its inputs."""
        kids = self._structure.kids.get(row, ())
        return any(self._structure.kind[kid] in (MODULE, OP_EVENT) for kid in kids)

    def _values(self, row: int, role: str) -> list[int]:
        return [value for leaf, value in self.run.direct_values(row) if leaf.role == role]

    def _pass_op(self, row: int) -> None:
        taken, made = self._values(row, IN), self._values(row, OUT)
        self.cross(row, taken)
        box = self.boxes.box(row)
        if box is None:
            found = self.origins.pass_on(row, taken)
        else:
            self._take(row, taken)
            found = (row,)
            self.origins.last = row
            self.memory.write(box, row)
            self.memory.give(box, row)
        self.origins.made_by.update(dict.fromkeys(made, found))

    def _leave(self, row: int) -> None:
        """Handle the end of a call: it is the source of its results, unless its inside is drawn."""
        box = self.boxes.box(row)
        taken, given = self._values(row, IN), self._values(row, OUT)
        if box is None:
            passed_on = self.origins.pass_on(row, taken)
            for value in given:
                self.origins.made_by.setdefault(value, passed_on)
            return
        if box in self.boxes.frames:
            self.origins.leave_frame(given)
            self.memory.give(box, row)
            return
        went_in = set(taken)
        handed_on = [value for value in given if value in went_in]
        self._take(row, [v for v in handed_on if self.boxes.box(row) != self.origins.box_of(v)])
        self.origins.made_by.update(dict.fromkeys(given, (row,)))
        self.memory.give(box, row)
        self.origins.last = row

    def _take(self, row: int, values: list[int]) -> None:
        box = self.boxes.box(row)
        if box is None:
            return
        for value in values:
            self._left.pop(value, None)
            for origin in self.origins.of(value):
                self._link(origin, row, box, value)

    def _link(self, origin: Origin, row: int, box: str, value: int) -> None:
        source = self.origins.box(origin)
        if source is None or source == box:
            return
        runs = self.boxes.runs
        loops = not isinstance(origin, str) and is_next(runs.get(origin, ()), runs.get(row, ()))
        bundles = self._loops if loops else self._bundles
        bundles.setdefault((source, box), {}).setdefault(value, runs.get(row, ()))

    def carried(self) -> list[Carried]:
        """Return what the edges of the forward pass carry, those that lead outside last."""
        found = self.by_kind(self._bundles)
        for (source, target), bundle in self._loops.items():
            found.append(self.carries(source, target, NEXT, bundle))
        return found + self._outputs()

    def by_kind(self, bundles: dict[tuple[str, str], Bundle]) -> list[Carried]:
        """Return what edges between some boxes carry, an edge for each kind."""
        found = []
        for (source, target), bundle in bundles.items():
            kinds: dict[str, Bundle] = {}
            for value, runs in bundle.items():
                kinds.setdefault(self._kind(target, value), {})[value] = runs
            found += [self.carries(source, target, kind, kinds[kind]) for kind in kinds]
        return found

    def carries(self, source: str, target: str, kind: str, values: Bundle) -> Carried:
        """Return what an edge carries, with dtype and shape of each value."""
        texts = {value: self.origins.text(value) for value in values}
        return Carried(source, target, kind, values, texts)

    def _kind(self, target: str, value: int) -> str:
        return ORDER if value in self.origins.assumed else self.memory.kind(target, value)

    def _outputs(self) -> list[Carried]:
        """Return what leads to results of outermost calls that nothing takes."""
        labels: dict[tuple[str, str], dict[str, int]] = {}
        paths: dict[int, dict[int, str]] = {}
        for value, row in self._left.items():
            first = self.boxes.like.get(row, row)
            name = f"out{int(self.run.columns.id[first])}"
            if row not in paths:
                paths[row] = self._paths(row)
            label = _named(paths[row].get(value, ""), self.origins.text(value))
            for source in map(self.origins.box, self.origins.made_by.get(value, ())):
                if source is not None:
                    labels.setdefault((source, name), {}).setdefault(label, value)
                    self.origins.outside.setdefault(name, Node(name, OUTPUT, "output"))
        return [
            Carried(
                *ends,
                DATA,
                dict.fromkeys(said.values(), ()),
                {value: label for label, value in said.items()},
            )
            for ends, said in labels.items()
        ]

    def _paths(self, row: int) -> dict[int, str]:
        """Return where in the result of a call each value is, at its first position."""
        leaves = self.run.direct_values(row)
        return {v: leaf.path for leaf, v in reversed(leaves) if leaf.role == OUT}


def _named(path: str, text: str) -> str:
    """Write a result with its name, if it has one: `logits f32[2,6,40]`."""
    return text if not path or path[0].isdigit() else f"{path} {text}"
