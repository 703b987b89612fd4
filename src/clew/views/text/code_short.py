"""Shorten what is listed under each line of the code view, and add notes on the backward pass.

Input: the tree with a node for every event. Output: the tree as it is shown: neighbours with the
same text are one node, long lists are cut, and below the ops of a line is a note on their backward
ops.
"""

from __future__ import annotations

from itertools import groupby

from clew.analysis.folded_ops import FoldedOps
from clew.events.vocabulary import OP, OPTIMIZER
from clew.run.run import Run
from clew.views.text.code_nodes import (
    Failure,
    ModuleCall,
    NamedValue,
    Node,
    Op,
    Ops,
    children,
    walk,
)
from clew.views.text.event_texts import EventTexts

_MOST_OPS = 40
_SHOWN_OPS = 30
_MOST_OPTIMIZER_OPS = 12


class Blocks:
    """Arrange blocks: the ops and named values under one line with no other line between."""

    def __init__(
        self,
        run: Run,
        texts: EventTexts,
        linked: list[bool],
        succinct: bool,
        folded: FoldedOps,
    ) -> None:
        self._run = run
        self._folded = folded
        self._succinct = succinct
        self._texts = texts
        self._phase: list[int] = run.phase.tolist()
        self._error: list[int] = run.columns.error.tolist()
        self._backward_of: dict[int, list[int]] = {}
        is_op: list[bool] = (run.columns.kind == OP).tolist()
        for row, forward in enumerate(run.forward_row.tolist()):
            if forward >= 0 and linked[row] and is_op[row]:
                self._backward_of.setdefault(forward, []).append(row)

    def arrange(self, nodes: list[Node]) -> None:
        """Arrange all blocks of a tree in place."""
        found = [node for _, node in walk(nodes)]
        for siblings in [nodes, *map(children, found)]:
            siblings[:] = self._arranged(siblings)
        for node in found:
            if isinstance(node, ModuleCall) and self._folded.is_folded_call(node.row):
                node.children += self._backward_notes(self._folded.ops_of(node.row))

    def _arranged(self, siblings: list[Node]) -> list[Node]:
        arranged: list[Node] = []
        for in_block, group in groupby(
            siblings, lambda n: isinstance(n, Op | NamedValue | Failure)
        ):
            block = list(group)
            arranged += self._block(block) if in_block else block
        return arranged

    def _block(self, block: list[Node]) -> list[Node]:
        """Arrange one block."""
        shown = [node.rows[0] for node in block if isinstance(node, Op) and not node.linked]
        forward = [op for row in shown for op in self._folded.ops_of(row)]
        if not self._succinct:
            backward = [row for op in forward for row in self._backward_of.get(op, ())]
            return [*block, *(Op([row], linked=True) for row in backward)]
        notes = self._backward_notes(forward)
        return [*self._cut(self._merged(self._counted(block))), *notes]

    def _backward_notes(self, forward: list[int]) -> list[Node]:
        backward = [row for op in forward for row in self._backward_of.get(op, ())]
        return [Ops("backward", backward)] if backward else []

    def _counted(self, block: list[Node]) -> list[Node]:
        """Count the ops of an optimizer that has many; errors and named values stay."""
        counted: list[int] = []
        rest: list[Node] = []
        for node in block:
            if (
                isinstance(node, Op)
                and self._is_fine(node)
                and self._phase[node.rows[0]] == OPTIMIZER
            ):
                counted += [op for row in node.rows for op in self._folded.ops_of(row)]
            else:
                rest.append(node)
        return [Ops("optimizer", counted), *rest] if len(counted) > _MOST_OPTIMIZER_OPS else block

    def _merged(self, block: list[Node]) -> list[Node]:
        """Join neighbours with the same text into one node."""
        merged: list[Node] = []
        for _, group in groupby(block, self._reading):
            first, *others = group
            for other in others:
                if isinstance(first, Op | NamedValue) and isinstance(other, Op | NamedValue):
                    first.rows += other.rows
            merged.append(first)
        return merged

    def _reading(self, node: Node) -> object:
        """Return a key that is equal for nodes with the same text, and unique for failed ones."""
        if isinstance(node, NamedValue):
            return "named", self._texts.named(node.rows[0])
        if not isinstance(node, Op) or not self._is_fine(node):
            return id(node)
        row = node.rows[0]
        texts = self._texts
        return "op", node.linked, texts.op(row), texts.numbers(row), texts.not_finite([row])

    def _cut(self, block: list[Node]) -> list[Node]:
        """Cut a long list; what failed stays."""
        if len(block) <= _MOST_OPS:
            return block
        shown, rest = block[:_SHOWN_OPS], block[_SHOWN_OPS:]
        failed = [node for node in rest if not self._is_fine(node)]
        left_out: list[int] = []
        for node in rest:
            if isinstance(node, Op | NamedValue) and self._is_fine(node):
                left_out += node.rows
        return [*shown, Ops("more", left_out), *failed]

    def _is_fine(self, node: Node) -> bool:
        if isinstance(node, Op | NamedValue):
            return self._error[node.rows[0]] < 0
        return not isinstance(node, Failure)
