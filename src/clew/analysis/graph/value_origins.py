"""Where each value comes from: an event that is drawn, or from outside.

Input: events in order, and what each made. Output: the origins of values. Events that are not drawn
pass on the origins of what they took. If ops were not recorded, values that came from them are
linked to the event before, and noted as assumed.
"""

from __future__ import annotations

from collections.abc import Iterable

from clew.analysis.graph.boxes import Boxes
from clew.analysis.graph.graph_model import INPUT, Node
from clew.analysis.graph.op_memory import is_empty
from clew.analysis.structure import Structure
from clew.events.columns import IN
from clew.events.vocabulary import MODULE
from clew.events.vocabulary import OP as OP_EVENT

# The most source boxes of a value that passed through ops that are not drawn.
_MOST_SOURCES = 32

# Where a value comes from: an event, or the node of a value from outside.
Origin = int | str


class ValueOrigins:
    """The origins of the values that have been seen so far."""

    def __init__(self, structure: Structure, boxes: Boxes) -> None:
        self._structure = structure
        self._run = structure.run
        self._boxes = boxes
        c = self._run.columns
        self._sees_ops = c.environment.get("level") != "modules"
        self._names: list[int] = c.value_name.tolist()
        self.made_by: dict[int, tuple[Origin, ...]] = {}
        # For ops and calls that are not drawn: their inputs.
        self._through: dict[int, tuple[Origin, ...]] = {}
        # Values whose path was not recorded.
        self.assumed: set[int] = set()
        # The last event that was drawn.
        self.last: int | None = None
        self._arguments = self._named_arguments()
        self.outside: dict[str, Node] = {}
        self._texts: dict[int, str] = {}

    def pass_on(self, row: int, taken: list[int]) -> tuple[Origin, ...]:
        """Return the origins that an event which is not drawn passes on."""
        found = dict.fromkeys(origin for value in taken for origin in self.of(value))
        self._through[row] = tuple(found)[:_MOST_SOURCES]
        return self._through[row]

    def leave_frame(self, given: Iterable[int]) -> None:
        """Attribute the results of a frame to its last box, if ops were not recorded."""
        if self._sees_ops or self.last is None:
            return
        for value in given:
            if value not in self.made_by:
                self.made_by[value] = (self.last,)
                self.assumed.add(value)

    def box_of(self, value: int) -> str | None:
        """Return the box that a value comes from, None if from none or several."""
        origins = self.made_by.get(value, ())
        return self.box(origins[0]) if len(origins) == 1 else None

    def box(self, origin: Origin) -> str | None:
        """Return the box of an origin, None if it is not drawn."""
        return origin if isinstance(origin, str) else self._boxes.box(origin)

    def of(self, value: int) -> tuple[Origin, ...]:
        """Return where a value comes from; a parameter comes from nowhere."""
        known = self.made_by.get(value)
        if known is not None:
            return known
        if self._names[value] >= 0:
            return ()
        row = self._run.producer_row(value)
        if row in self._through:
            return self._through[row]
        # Written through another tensor on the same memory: the write is its producer.
        if row >= 0 and self._boxes.box(row) is not None and self._structure.kind[row] == OP_EVENT:
            return (row,)
        if not self._sees_ops and value not in self._arguments:
            self.assumed.add(value)
            return () if self.last is None else (self.last,)
        return () if is_empty(self._run, value) else (self._input(value),)

    def _input(self, value: int) -> str:
        """Return the node of a value from outside."""
        name = f"in{value}"
        if name not in self.outside:
            text = self.text(value)
            node = Node(name, INPUT, self._arguments.get(value, "tensor"), outputs=(text,))
            self.outside[name] = node
        return name

    def text(self, value: int) -> str:
        """Return dtype and shape of a value as text."""
        meta = int(self._run.columns.meta[value])
        if meta not in self._texts:
            self._texts[meta] = self._run.value(value).look
        return self._texts[meta]

    def _named_arguments(self) -> dict[int, str]:
        """Return values given to the outermost calls, by the name of the argument."""
        names: dict[int, str] = {}
        for row in self._boxes.tops:
            if self._structure.kind[row] == MODULE:
                for leaf, value in self._run.leaf_values(row):
                    if leaf.role == IN:
                        at = leaf.path
                        name = "input" if at == "0" else f"input {at}" if at[:1].isdigit() else at
                        names.setdefault(value, name)
        return names
