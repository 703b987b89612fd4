"""The module calls and ops of one run as a forest, numbered so that a subtree is a range.

Input: a `FlowGraph`. Output: a `CallForest`, whose nodes are module calls, ops, and groups: a step,
the backward pass or the optimizer within it, and what the backward pass runs for one call. Node
`n` and everything in it are the numbers from `n` to `n + size[n]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

import numpy as np

from clew.analysis.diff.flow_graph import FlowGraph
from clew.events.columns import OUT, Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import BACKWARD, FORWARD, MODULE, PHASES, RECOMPUTE

CALL, OP, GROUP = range(3)
# Fewer ops than this need no group.
_FEWEST = 4


class CallForest:
    """Nodes in the order in which they begin, each after the node that it is in."""

    def __init__(self, graph: FlowGraph) -> None:
        self.run = graph.run
        self._calls = set(self.run.rows(MODULE).tolist())
        self._rows: list[int] = sorted([*self._calls, *graph.rows.tolist()])
        self.groups: dict[int, str] = {}
        self.events: list[int] = []
        self.size: list[int] = []
        self._number(self._nested())
        # The last entry is for events that are no node.
        self.node_of: Ints = np.full(len(self.run) + 1, -1, dtype=np.int64)
        known = [(row, node) for node, row in enumerate(self.events) if row >= 0]
        if known:
            rows, nodes = np.array(known, dtype=np.int64).T
            self.node_of[rows] = nodes

    def __len__(self) -> int:
        return len(self.events)

    def inside(self, node: int) -> list[int]:
        """Return the nodes directly in a node; of -1, those in none."""
        at, end = (0, len(self)) if node < 0 else (node + 1, node + self.size[node])
        found = []
        while at < end:
            found.append(at)
            at += self.size[at]
        return found

    def kind(self, node: int) -> int:
        """Return `CALL`, `OP` or `GROUP`."""
        row = self.events[node]
        return GROUP if row < 0 else CALL if row in self._calls else OP

    def name(self, node: int) -> str:
        """Return the class of a call, the bare name of an op, the text of a group."""
        row = self.events[node]
        if row < 0:
            return self.groups[node]
        return self.run.name(row) if row in self._calls else bare_op(self.run.name(row))

    def path(self, node: int) -> str:
        """Return the path of a module call, the text of a group, nothing for an op."""
        row = self.events[node]
        if row < 0:
            return self.groups[node]
        return (self.run.module_path(row) or "") if row in self._calls else ""

    def shapes(self, node: int) -> tuple[object, ...]:
        """Return the shapes of the results of a call or an op."""
        row = self.events[node]
        values = [] if row < 0 else self.run.direct_values(row)
        numbers = [number for leaf, number in values if leaf.role == OUT]
        return tuple(self.run.metas[int(self.run.columns.meta[n])].shape for n in numbers)

    def _number(self, top: list[_Node]) -> None:
        """Number the nodes in order, without recursion: calls may be nested very deeply."""
        parents: list[int] = []
        stack = [(node, -1) for node in reversed(top)]
        while stack:
            node, parent = stack.pop()
            number = len(self.events)
            if node.text:
                self.groups[number] = node.text
            self.events.append(node.row)
            parents.append(parent)
            stack += [(kid, number) for kid in reversed(node.kids)]
        self.size = [1] * len(parents)
        for number in range(len(parents) - 1, -1, -1):
            if parents[number] >= 0:
                self.size[parents[number]] += self.size[number]

    def _nested(self) -> list[_Node]:
        nodes = {row: _Node(row) for row in self._rows}
        parents = self.run.parent_row
        roots: list[_Node] = []
        for row, node in nodes.items():
            parent = nodes.get(int(parents[row]))
            (roots if parent is None else parent.kids).append(node)
        if len(self.run.steps) < 2:
            return self._phases(roots)
        first = self.run.steps[0]
        return [
            _Node(-1, f"step {step - first}", self._phases(list(mine)))
            for step, mine in groupby(roots, lambda node: int(self.run.step[node.row]))
        ]

    def _phases(self, roots: list[_Node]) -> list[_Node]:
        """Put stretches of the backward pass and of the optimizer into groups."""
        found: list[_Node] = []
        for phase, mine in _stretches(roots, self._phase):
            if phase == FORWARD or len(mine) < _FEWEST:
                found += mine
            else:
                kids = self._parts(mine) if phase == BACKWARD else mine
                found.append(_Node(-1, PHASES[phase], kids))
        return found

    def _phase(self, node: _Node) -> int:
        phase = int(self.run.phase[node.row])
        return BACKWARD if phase == RECOMPUTE else phase

    def _parts(self, nodes: list[_Node]) -> list[_Node]:
        """Put neighbours of the backward pass that belong to one call into a group."""
        found: list[_Node] = []
        for owner, mine in _stretches(nodes, lambda node: int(self.run.owner_row[node.row])):
            path = "" if owner < 0 else self.run.module_path(owner)
            if not path or len(mine) < 2:
                found += mine
            else:
                found.append(_Node(-1, path, mine))
        return found


class _Node:
    """A node before it has a number; the row of a group is -1."""

    __slots__ = ("kids", "row", "text")

    def __init__(self, row: int, text: str = "", kids: list[_Node] | None = None) -> None:
        self.row = row
        self.text = text
        self.kids = [] if kids is None else kids


def _stretches(
    nodes: Iterable[_Node], key: Callable[[_Node], int]
) -> list[tuple[int, list[_Node]]]:
    return [(found, list(mine)) for found, mine in groupby(nodes, key)]
