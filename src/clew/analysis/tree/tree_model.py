"""Data model of the tree: frozen nodes, numbers as numbers.

`ops`, `calls` and `seconds` of a node are totals over everything it stands for: all runs of a
repeat, all steps and ranks that are folded into one. The ops and calls of a node's children, if it
has any, sum to those of the node (a call counts itself in addition). Knows no `Run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clew.events.model import Source
from clew.plain_text import plain

# Headings: all that is under them ran on a rank, in a step, on a thread, or several times.
RANK, STEP, THREAD, REPEAT = "rank", "step", "thread", "repeat"
# A module call; ops that ran between calls; an op or a line of Python that raised.
CALL, OPS, FAILURE = "call", "ops", "failure"
# The backward pass with the parts of the model it went through, the optimizer with its lines.
BACKWARD, GROUP, OPTIMIZER, LINE = "backward", "group", "optimizer", "line"
# Named values; a node for what a level leaves out.
NAMED, REST = "named", "rest"

# Levels of the headings. Entries of a step are at 0, what runs in a call is one level deeper.
RANK_LEVEL, STEP_LEVEL = -2, -1


@dataclass(frozen=True, slots=True)
class ResultStats:
    """Statistics of a result over everything its node stands for.

    Counts of NaN and Inf are over all results; the rest is of the first result that has statistics,
    over its finite elements: their number, mean, standard deviation and range.
    """

    nan: int
    inf: int
    count: int = 0
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {
            "mean": self.mean, "std": self.std, "min": self.min, "max": self.max,
            "count": self.count, "nan": self.nan, "inf": self.inf,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TreeNode:
    """One line of the tree and what is under it.

    `count` says how many runs, ranks, steps or groups in a row are folded into the node; all of
    them have the same ops. If the node lies in others that are folded, each run of those has
    `count` more. Names, tensors, source and event are those of the first.
    """

    kind: str
    name: str
    level: int
    count: int = 1
    ops: int = 0
    calls: int = 0
    # None if it has not ended.
    seconds: float | None = None
    children: tuple[TreeNode, ...] = ()
    # The first event it stands for: its id on its rank, its rank, step and phase.
    event: int | None = None
    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    # For a call.
    cls: str = ""
    address: str | None = None
    module: str | None = None
    is_open: bool = False
    # An earlier sibling with the same inside, which is not shown again, or its step or rank.
    same_as: str | None = None
    # How many different modules are called, and their parameters. `own_modules` are those that the
    # node folds itself: it may also lie in other folded nodes.
    modules: int = 0
    parameters: int = 0
    own_modules: int = 0
    # It has no parameters and computes with those of another module.
    shares_parameters: bool = False
    # Paths of the tensors that go in and come out, with dtype and shape.
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    # How often each op ran, in order of first use; the same with composites in place of their ops.
    op_counts: tuple[tuple[str, int], ...] = ()
    folded_counts: tuple[tuple[str, int], ...] = ()
    stats: ResultStats | None = None
    source: Source | None = None
    last_line: int | None = None
    # Sizes of tensors differ between the runs that are folded.
    sizes_vary: bool = False
    # For the backward pass and the optimizer: how often they began, if the passes differ.
    passes: int = 1
    mode: str | None = None
    # The numbers of the ranks or steps of a heading.
    numbers: tuple[int, ...] = ()
    error: str | None = None
    # For an op that failed: paths of its arguments with dtype and shape, constants as Python.
    arguments: tuple[tuple[str, str], ...] = ()
    leads_to_failure: bool = False

    def __repr__(self) -> str:
        times = f" ×{self.count}" if self.count > 1 else ""
        counts = f"{self.ops} ops, {self.calls} calls"
        return plain(f"<TreeNode {self.kind} {self.name}{times}: {counts}>")

    def facts(self) -> dict[str, Any]:
        """Return the fields by name, without the children."""
        return {
            "kind": self.kind,
            "name": self.name,
            "class": self.cls or None,
            "count": self.count,
            "ops": self.ops,
            "calls": self.calls,
            "seconds": self.seconds,
            "event": self.event,
            "rank": self.rank,
            "step": self.step,
            "phase": self.phase,
            "address": self.address,
            "module": self.module,
            "open": self.is_open,
            "same_as": self.same_as,
            "modules": self.modules,
            "parameters": self.parameters,
            "shares_parameters": self.shares_parameters,
            "inputs": [{"path": path, "tensor": text} for path, text in self.inputs],
            "outputs": [{"path": path, "tensor": text} for path, text in self.outputs],
            "op_counts": dict(self.op_counts),
            "folded_counts": dict(self.folded_counts),
            "stats": None if self.stats is None else self.stats.to_dict(),
            "source": self._source(),
            "sizes_vary": self.sizes_vary,
            "passes": self.passes,
            "mode": self.mode,
            "numbers": list(self.numbers),
            "error": self.error,
            "arguments": [{"path": path, "text": text} for path, text in self.arguments],
        }

    def _source(self) -> dict[str, object] | None:
        source = self.source
        if source is None:
            return None
        last = source.line if self.last_line is None else self.last_line
        return {
            "file": source.file, "line": source.line, "last_line": last,
            "function": source.function, "text": source.text,
        }  # fmt: skip


def walk(nodes: Sequence[TreeNode]) -> Iterator[TreeNode]:
    """Yield nodes and all that is under them, parents first, in order."""
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node.children)


def down_to(nodes: Sequence[TreeNode], depth: int | None) -> list[TreeNode]:
    """Return the siblings that a depth leaves: all or none, except the way to a failure.

    If only that is shown, a node beside it stands for the rest, so that the sums still hold.
    """
    hidden = [node for node in nodes if depth is not None and node.level > depth]
    failed = [node for node in hidden if node.leads_to_failure]
    if not failed:
        return [] if hidden else list(nodes)
    others = [node for node in hidden if not node.leads_to_failure]
    return [rest_of(others, f"… {len(others)} more"), *failed] if others else failed


def rest_of(nodes: Sequence[TreeNode], name: str) -> TreeNode:
    """Return a node that stands for several siblings."""
    seconds = [node.seconds for node in nodes if node.seconds is not None]
    return TreeNode(
        REST,
        name,
        nodes[0].level,
        ops=sum(node.ops for node in nodes),
        calls=sum(node.calls for node in nodes),
        seconds=sum(seconds) if seconds else None,
    )


def to_dicts(nodes: Sequence[TreeNode], depth: int | None = None) -> list[dict[str, Any]]:
    """Return nodes and all that is under them, down to a depth, as plain data."""
    roots: list[dict[str, Any]] = []
    pending = [(node, roots) for node in reversed(down_to(nodes, depth))]
    while pending:
        node, siblings = pending.pop()
        inside: list[dict[str, object]] = []
        siblings.append({**node.facts(), "children": inside})
        pending += [(child, inside) for child in reversed(down_to(node.children, depth))]
    return roots


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A whole run: its totals, what ran at the top, and its named values.

    `seconds` is the time of the roots together, `wall_seconds` that from the first event to the
    last.
    """

    name: str
    level: str | None
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    calls: int
    ops: int
    parameters: int
    seconds: float
    wall_seconds: float
    roots: tuple[TreeNode, ...]
    named: tuple[TreeNode, ...]

    def to_dict(self, depth: int | None = None) -> dict[str, Any]:
        """Return the tree as plain data, down to a depth."""
        return {
            "name": self.name,
            "level": self.level,
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "calls": self.calls,
            "ops": self.ops,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "wall_seconds": self.wall_seconds,
            "children": to_dicts(self.roots, depth),
            "named": to_dicts(self.named),
        }
