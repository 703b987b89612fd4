"""Facts of the tree's nodes: names, tensors, counts, time, statistics, source, error.

Input: `Draft`s. Output: `TreeNode`s, made from the innermost outwards so that headings are the sums
of what is under them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from clew.analysis.fold import Folds, name_range
from clew.analysis.folded_ops import FoldedOps
from clew.analysis.parameters import Parameters
from clew.analysis.tree import tree_model
from clew.analysis.tree.outline import Draft
from clew.analysis.tree.totals import Totals
from clew.analysis.tree.tree_model import CALL, FAILURE, GROUP, LINE, OPS, REPEAT, TreeNode
from clew.events.columns import IN, OUT, Ints
from clew.events.model import Source
from clew.events.tensor_text import tensor_text
from clew.events.vocabulary import MODULE, OP, PHASES
from clew.run.run import Run
from clew.run.value import Value


class Facts:
    """Makes nodes of the drafts of one run."""

    def __init__(self, folds: Folds, totals: Totals, folded: FoldedOps) -> None:
        self._folds = folds
        self._folded = folded
        self._structure = folds.structure
        self._run: Run = folds.structure.run
        self._totals = totals
        self._looks: dict[int, str] = {}

    @cached_property
    def parameters(self) -> Parameters:
        """Return numbers of parameters."""
        return Parameters(self._run.columns.modules, self._run.columns.parameters)

    def nodes(self, drafts: Sequence[Draft]) -> tuple[TreeNode, ...]:
        """Make nodes of drafts and of all that is in them."""
        ordered: list[Draft] = []
        pending = list(drafts)
        while pending:
            draft = pending.pop()
            ordered.append(draft)
            pending += draft.children
        made: dict[int, TreeNode] = {}
        for draft in reversed(ordered):
            children = tuple(made.pop(id(child)) for child in draft.children)
            made[id(draft)] = self._node(draft, children)
        return tuple(made[id(draft)] for draft in drafts)

    def _node(self, draft: Draft, children: tuple[TreeNode, ...]) -> TreeNode:
        node = self._placed(draft, children)
        if draft.kind == CALL:
            return self._call(node, draft)
        if draft.kind == FAILURE:
            return self._failure(node, draft)
        if draft.kind == OPS:
            taken, given = self._taken(draft.rows), self._tensors(draft.rows[-1], OUT)
            return replace(self._of_ops(node, draft), inputs=taken, outputs=given)
        if draft.kind in (GROUP, LINE) or not children:
            return self._of_ops(node, draft)
        return node

    def _placed(self, draft: Draft, children: tuple[TreeNode, ...]) -> TreeNode:
        """Return a node with what all nodes have: sums over its children, and its event."""
        row = draft.rows[0]
        seconds = [child.seconds for child in children if child.seconds is not None]
        return TreeNode(
            kind=draft.kind,
            name=draft.name or ("repeated" if draft.kind == REPEAT else draft.kind),
            level=draft.level,
            count=draft.count,
            ops=sum(child.ops for child in children),
            calls=sum(child.calls for child in children),
            seconds=sum(seconds) if seconds else None,
            children=children,
            event=int(self._run.columns.id[row]),
            rank=int(self._run.process[row]),
            step=int(self._run.step[row]),
            phase=None if draft.numbers else PHASES[int(self._run.phase[row])],
            source=self._section_line(draft),
            sizes_vary=draft.sizes_vary,
            passes=draft.passes,
            mode=self._run.modes.get(draft.numbers[0]) if draft.kind == tree_model.STEP else None,
            numbers=draft.numbers,
            stats=self._section_stats(draft),
            leads_to_failure=any(child.leads_to_failure for child in children),
        )

    def _section_line(self, draft: Draft) -> Source | None:
        """Return the line that started the backward pass or the optimizer."""
        if draft.kind in (tree_model.BACKWARD, tree_model.OPTIMIZER):
            return self._run.running_line(draft.rows[0])
        return None

    def _section_stats(self, draft: Draft) -> Any:
        is_section = draft.kind in (tree_model.BACKWARD, tree_model.OPTIMIZER)
        return self._totals.stats(draft.rows) if is_section else None

    def _call(self, node: TreeNode, draft: Draft) -> TreeNode:
        row, run, c = draft.rows[0], self._run, self._run.columns
        cls = run.name(row) + (".forward" if run.is_reconstructed(row) else "")
        is_open = int(run.end[row]) < 0
        like = self._folds.twins([row], draft.within)
        modules = {c.modules[self._structure.subject[twin]] for twin in like}
        numbers = {module.number: module.path for module in modules}
        parameters = sum(self.parameters.inside(path) for path in numbers.values())
        own = like if draft.repeat is None else self._folds.twins([row], (draft.repeat,))
        subjects = {c.modules[self._structure.subject[twin]].number for twin in own}
        return replace(
            node,
            name=self._name(draft) or cls,
            cls=cls,
            ops=int(self._ops_inside[row]) * draft.times,
            calls=int(self._calls_inside[row]) * draft.times,
            seconds=None if is_open else int(self._totals.nanoseconds[row]) / 1e9,
            address=run.address(row),
            module=run.module_path(row),
            is_open=is_open,
            same_as=None if draft.same_as is None else self._same_as(row, draft.same_as),
            modules=len(numbers),
            parameters=parameters,
            own_modules=len(subjects) if draft.repeat is not None else 1,
            shares_parameters=not parameters and self._uses_parameters(row),
            inputs=self._tensors(row, IN),
            outputs=self._tensors(row, OUT),
            stats=self._totals.stats([row], row),
            source=run.source(row),
            error=run.error(row),
            leads_to_failure=node.leads_to_failure or run.error(row) is not None,
        )

    def _same_as(self, row: int, first: int) -> str:
        """Return the rank or step of an equal earlier call, or its name if that is the same."""
        for noun, numbers in (("rank", self._run.process), ("step", self._run.step)):
            if numbers[row] != numbers[first]:
                return f"{noun} {int(numbers[first])}"
        return self._structure.name(first)

    def _name(self, draft: Draft) -> str:
        """Return a module's name, or the first and last of those the node stands for."""
        row = draft.rows[0]
        if not draft.within:
            return self._structure.name(row)
        like = self._folds.twins([row], draft.within[-1:])
        return name_range(self._structure.name(row), self._structure.name(like[-1]), above=1)

    def _of_ops(self, node: TreeNode, draft: Draft) -> TreeNode:
        """Return a node with its ops, and with calls that are counted by their ops."""
        kind, rows = self._structure.kind, draft.rows
        ops = [row for row in rows if kind[row] == OP]
        counts = Counter(map(self._run.name, ops))
        written = dict.fromkeys(self._folded.stands[ops].tolist())
        folded = Counter(map(self._run.name, written))
        ended = [row for row in rows if self._run.end[row] >= 0]
        nanoseconds = int(self._totals.nanoseconds[rows].sum())
        with_result = [row for row in rows if self._totals.has_result(row)]
        result = with_result[-1] if with_result and draft.kind == OPS else None
        source, last = self._lines(ops) if draft.kind in (OPS, LINE) else (node.source, None)
        return replace(
            node,
            ops=len(ops) * draft.times,
            calls=sum(kind[row] == MODULE for row in rows) * draft.times,
            seconds=nanoseconds / 1e9 if ended else None,
            op_counts=tuple((name, count * draft.times) for name, count in counts.items()),
            folded_counts=tuple((name, count * draft.times) for name, count in folded.items()),
            stats=self._totals.stats(rows if result is None else [result], result),
            source=source,
            last_line=last,
        )

    def _failure(self, node: TreeNode, draft: Draft) -> TreeNode:
        row = draft.rows[0]
        node = self._of_ops(node, draft)
        is_op = self._structure.kind[row] == OP
        return replace(
            node,
            name=self._run.name(row),
            inputs=self._tensors(row, IN) if is_op else (),
            outputs=self._tensors(row, OUT) if is_op else (),
            source=self._run.source(row),
            error=self._run.error(row),
            arguments=self._arguments(row) if is_op else (),
            leads_to_failure=True,
        )

    def _arguments(self, row: int) -> tuple[tuple[str, str], ...]:
        arguments = self._run.arguments(row).items()
        return tuple((path, v.look if isinstance(v, Value) else repr(v)) for path, v in arguments)

    def _lines(self, rows: list[int]) -> tuple[Source | None, int | None]:
        """Return the first of the lines some ops came from, and the last if that is in its file."""
        sources = [source for row in (rows[0], rows[-1]) if (source := self._run.source(row))]
        if len(sources) < 2 or sources[0].file != sources[1].file:
            return (sources[0] if sources else None), None
        first, last = sorted(sources, key=lambda source: source.line)
        return first, last.line if last.line != first.line else None

    def _uses_parameters(self, row: int) -> bool:
        """Return whether a module that owns no parameters computes with another module's."""
        c = self._run.columns
        return any(
            c.value_name[value] >= 0
            and self.parameters.has(c.value_names[int(c.value_name[value])])
            for kid in self._structure.kids.get(row, ())
            if self._structure.kind[kid] == OP
            for leaf, value in self._run.leaf_values(kid)
            if leaf.role == IN
        )

    def _taken(self, rows: list[int]) -> tuple[tuple[str, str], ...]:
        """Return what some ops take from outside, parameters aside."""
        c = self._run.columns
        seen: set[int] = set()
        taken = []
        for row in rows:
            for leaf, value in self._run.leaf_values(row):
                if leaf.role == IN and value not in seen and c.value_name[value] < 0:
                    taken.append(("", self._look(value)))
                seen.add(value)
        return tuple(taken)

    def _tensors(self, row: int, role: str) -> tuple[tuple[str, str], ...]:
        """Return path and text of an event's tensors; of objects that hold tensors, the class."""
        pairs = [
            (leaf.path, self._look(value))
            for leaf, value in self._run.direct_values(row)
            if leaf.role == role
        ]
        pairs += self._run.holders(row, role).items()
        if role == OUT and not pairs and self._run.is_reconstructed(row):
            values = self._run.values_of(row, role)
            pairs = [(path, value.look) for path, value in values.items()]
        return tuple(pairs)

    def _look(self, value: int) -> str:
        meta = int(self._run.columns.meta[value])
        text = self._looks.get(meta)
        if text is None:
            text = self._looks[meta] = tensor_text(self._run.metas[meta])
        return text

    @cached_property
    def _ops_inside(self) -> Ints:
        return self._structure.kids.sums(self._run.columns.kind == OP)

    @cached_property
    def _calls_inside(self) -> Ints:
        return self._structure.kids.sums(self._run.columns.kind == MODULE)
