"""The tree: what flows through a model, one line per module call, repeats folded.

Input: a `Run`. Output: a `TreeView` whose `str()` is the text: ranks and steps, forward pass,
backward, optimizer, coverage. It fits a screen unless the user asks for more, and says what it left
out. The text is made only from the nodes of `analysis.tree`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from clew.analysis.findings import Finding, findings_of
from clew.analysis.fold import Folds
from clew.analysis.folded_ops import folds_ops
from clew.analysis.tree.tree_build import tree_of
from clew.analysis.tree.tree_model import (
    FAILURE,
    GROUP,
    NAMED,
    RANK_LEVEL,
    STEP_LEVEL,
    THREAD,
    Tree,
    TreeNode,
    down_to,
    rest_of,
)
from clew.events.model import Source
from clew.events.notebook_port import Shown
from clew.events.vocabulary import MODULE, OP
from clew.plain_text import first_line, plain
from clew.run.run import Run
from clew.views.text.cells import Cells, cells_of, failure_text
from clew.views.text.finding_lines import finding_lines
from clew.views.text.style import (
    Style,
    clipped,
    counted,
    number_text,
    short_number,
    style_for,
    time_text,
)
from clew.views.text.tree_columns import TreeLine, laid_out

SCREEN = 60
_MOST_GROUPS = 8
# Lines nested deeper than this begin with their depth instead of tree lines.
_DEEPEST_LEAD = 12
_EMPTY = "nothing was recorded: run the model inside `with clew.trace(model) as t:`"
_EMPTY_WATCH = "nothing was recorded: no variable that is watched was met"


class TreeView(Shown):
    """The modules of a trace and what ran in them; `str()` is the text."""

    def __init__(
        self, run: Run, depth: int | None, fold: bool, rows: int | None, folds_ops: bool
    ) -> None:
        self._run = run
        self._folds_ops = folds_ops
        self._depth = depth
        self._fold = fold
        self._rows = rows

    def __str__(self) -> str:
        return self.text(style_for())

    def __repr__(self) -> str:
        calls = len(self._run.rows(MODULE))
        return f"<TreeView of {counted(calls, 'module call')}; print() shows it>"

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain data, repeats folded, down to the depth that was asked for."""
        return {
            **self._tree.to_dict(self._depth),
            "findings": [finding.to_dict() for finding in self._findings],
            "coverage": [str(gap) for gap in self._run.coverage],
            "crashes": self._run.crashes,
        }

    def text(self, style: Style) -> str:
        """Return the text in a given style."""
        if not len(self._run):
            why = _EMPTY_WATCH if self._run.level == "variables" else _EMPTY
            return "\n".join([why, *map(str, self._run.coverage)])
        tree, notes = self._tree, finding_lines(self._findings, self._run, style)
        heights = Heights(tree)
        room = self._room()
        depth = heights.depth_within(room) if self._depth is None else self._depth
        body = laid_out(lines_of(tree, depth), style)
        left_out = _left_out(heights, depth)
        if room is not None and len(body) > room + 1:
            hidden = heights.all - room
            body = body[: room + 1]
            left_out = f"… {counted(hidden, 'more line')} left out"
        if left_out:
            without = "" if self._rows is None else " without --rows"
            all_shown = style.way(
                f"t.tree(depth={heights.deepest})", f"--depth {heights.deepest}{without}"
            )
            notes = [_clipped(f"{left_out}; {all_shown} shows all", style), *notes]
        return style.finish("\n".join([self._header(style), *body, *notes]))

    @cached_property
    def _findings(self) -> list[Finding]:
        return findings_of(self._run)

    @cached_property
    def _tree(self) -> Tree:
        folds = Folds(self._run, self._fold)
        tree = tree_of(folds, self._folds_ops)
        if self._depth is not None or not self._fold:
            return tree
        height, room = Heights(tree).all, self._room()
        if room is None or height <= room:
            return tree
        # A loop whose tensors grow is folded only if there is no room to show each turn.
        shorter = tree_of(folds.without_sizes(), self._folds_ops)
        return shorter if Heights(shorter).all < height else tree

    def _room(self) -> int | None:
        """Return how many lines there are for the tree, None for no limit."""
        if self._rows is None and (self._depth is not None or not self._fold):
            return None
        # The header, the titles and the line that says what was left out.
        taken = 3 + len(finding_lines(self._findings, self._run, Style()))
        return max((SCREEN if self._rows is None else self._rows) - taken, 1)

    def _header(self, style: Style) -> str:
        """Write the name of the trace and its totals, which are the sums of the lines below."""
        tree = self._tree
        facts = run_facts(self._run, tree.parameters)
        spent, wall = time_text(tree.seconds), time_text(tree.wall_seconds)
        facts.append(f"{spent} ({wall} wall)" if tree.roots else wall)
        name = plain(tree.name)
        text = _clipped(f"{name}: {', '.join(facts)}", style)
        return style.paint(text[: len(name)], "bold") + text[len(name) :]


def run_facts(run: Run, parameters: int) -> list[str]:
    """Write how much a run has of everything: ranks, steps, calls, ops, parameters."""
    ranks, steps, calls = run.ranks, len(run.steps), len(run.rows(MODULE))
    facts = [counted(len(ranks), "rank")] if len(ranks) > 1 else []
    facts += [f"rank {ranks[0]}"] if len(ranks) == 1 and ranks[0] > 0 else []
    facts += [counted(steps, "step")] if steps > 1 else []
    facts += [counted(calls, "module call")] if calls else []
    facts += [counted(len(run.rows(OP)), "op")] if run.level == "ops" else []
    return [*facts, f"{short_number(parameters)} parameters"] if parameters else facts


def tree_view(
    run: Run,
    *,
    depth: int | None = None,
    fold: bool = True,
    rows: int | None = None,
    ops: str | None = None,
) -> TreeView:
    """Return the tree of a trace: modules down to a depth, in at most so many rows.

    Ops are folded into composites, unless `ops` is `aten`.
    """
    return TreeView(run, depth, fold, rows, folds_ops(ops))


def lines_of(tree: Tree, depth: int | None) -> list[TreeLine]:
    """Return the lines of a tree down to a depth."""
    lines: list[TreeLine] = []
    # Nodes still to be written, with their lead, the lead of lines below, their depth, how often
    # the nodes that contain them ran, and the source line above.
    pending: list[tuple[TreeNode, str, str, int, int, Source | None]] = []

    def push(
        nodes: Sequence[TreeNode], below: str, deep: int, times: int, above: Source | None
    ) -> None:
        found = _siblings(nodes, depth)
        if deep > _DEEPEST_LEAD:
            below = f"…{deep:<4} "
        for node in reversed(found):
            mark, rest = ("└─ ", "   ") if node is found[-1] else ("├─ ", "│  ")
            mark, rest = (mark, rest) if deep else ("", "")
            pending.append((node, below + mark, below + rest, deep, times, above))

    push(tree.roots, "", 0, 1, None)
    while pending:
        node, lead, below, deep, times, above = pending.pop()
        lines += _lines(node, lead, below, times, above)
        push(node.children, below, deep + 1, times * node.count, node.source or above)
    return [*lines, *_named_lines(tree)]


def _siblings(nodes: Sequence[TreeNode], depth: int | None) -> list[TreeNode]:
    """Return the siblings to write: ops of a thread beside its heading, many groups as few."""
    found: list[TreeNode] = []
    for node in _capped(down_to(nodes, depth)):
        if node.kind == THREAD:
            found += [replace(node, children=()), *_capped(down_to(node.children, depth))]
        else:
            found.append(node)
    return found


def _capped(nodes: list[TreeNode]) -> list[TreeNode]:
    """Return siblings with at most some parts of the model or names; the rest is one node."""
    groups = [node for node in nodes if node.kind in (GROUP, NAMED)]
    if len(groups) <= _MOST_GROUPS:
        return nodes
    rest = groups[_MOST_GROUPS:]
    if rest[0].kind == GROUP:
        name = f"… {counted(sum(node.count for node in rest), 'more module')}"
    else:
        name = f"… {counted(sum(node.modules for node in rest), 'more name')}"
    others = [node for node in nodes if node.kind not in (GROUP, NAMED)]
    return [*groups[:_MOST_GROUPS], rest_of(rest, name), *others]


def _lines(
    node: TreeNode, lead: str, below: str, times: int, above: Source | None
) -> list[TreeLine]:
    """Write a node: one line, and for a failure the error and where it was raised."""
    cells = cells_of(node, times, above)
    if node.kind != FAILURE:
        return [TreeLine(lead, cells)]
    error = first_line(node.error or "")
    words = [(f"✗ {error}", ("red", "bold")), (f"  {failure_text(node)}", ())]
    if node.ops:
        return [
            TreeLine(lead, cells),
            *(TreeLine(below, Cells(""), text, looks) for text, looks in words),
        ]
    leads = (lead, below)
    return [TreeLine(at, Cells(""), *text) for at, text in zip(leads, words, strict=True)]


def _named_lines(tree: Tree) -> list[TreeLine]:
    if not tree.named:
        return []
    total = sum(node.count for node in tree.named)
    head = Cells("named values", mark=f"×{number_text(total)}" if total > 1 else "")
    names = _capped(list(tree.named))
    leads = ["├─ "] * (len(names) - 1) + ["└─ "]
    lines = [TreeLine(lead, cells_of(node)) for lead, node in zip(leads, names, strict=True)]
    return [TreeLine("", head), *lines]


class Heights:
    """How many lines a tree takes down to each depth."""

    def __init__(self, tree: Tree) -> None:
        # Lines that are shown from a level on, at any, and as long as a level is not shown.
        self._at: Counter[int] = Counter()
        self._any = len(_named_lines(tree))
        self._rest: Counter[int] = Counter()
        self._lowest = min((node.level for node in tree.roots), default=0)
        self.deepest = 0
        pending = [_capped(list(tree.roots))]
        while pending:
            siblings = pending.pop()
            for node in siblings:
                self.deepest = max(self.deepest, node.level)
                lines = 1 if node.kind != FAILURE else 2 + bool(node.ops)
                if node.leads_to_failure:
                    self._any += lines
                else:
                    self._at[node.level] += lines
                if node.children:
                    pending.append(_capped(list(node.children)))
            failing = {node.leads_to_failure for node in siblings}
            self._rest[siblings[0].level if siblings else 0] += len(failing) == 2

    def at(self, depth: int) -> int:
        """Return the number of lines down to a depth."""
        shown = sum(lines for level, lines in self._at.items() if level <= depth)
        return self._any + shown + sum(n for level, n in self._rest.items() if level > depth)

    @property
    def all(self) -> int:
        """Return the number of lines of the whole tree."""
        return self.at(self.deepest)

    def depth_within(self, room: int | None) -> int:
        """Return the greatest depth at which the tree takes no more than some lines.

        At least the outermost calls and their children are shown; with several steps or ranks, at
        least the headings.
        """
        least = self._lowest if self._lowest < 0 else 1
        depth, lines = self.deepest, self.all
        while room is not None and depth > least and lines > room:
            lines += self._rest[depth] - self._at[depth]
            depth -= 1
        return depth


def _left_out(heights: Heights, depth: int) -> str:
    """Write what is deeper than a depth; empty if nothing is."""
    hidden = heights.all - heights.at(depth)
    if hidden <= 0:
        return ""
    where = {RANK_LEVEL: "inside the ranks", STEP_LEVEL: "inside the steps"}
    return f"… {counted(hidden, 'line')} {where.get(depth, f'below depth {depth}')} left out"


def _clipped(text: str, style: Style) -> str:
    return clipped(text, style.width) if style.bounded else text
