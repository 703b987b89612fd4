"""Nodes of the code view: source lines, what ran at them, and notes on what is shown elsewhere.

The tree is built by `code_tree`, written as text by `code_text` and as plain data by `code_data`.
Rows are rows of the `Run`; nodes hold facts and short texts, no colour and no layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clew.events.columns import Place


@dataclass(slots=True)
class Runs:
    """How often a line ran in one place of the tree."""

    total: int = 1


@dataclass(slots=True)
class Line:
    """A source line. It is the `run`-th time that the line runs here, of `runs.total`.

    `module` is the path of the module whose code it is, None outside any. `tag` names that module
    at the first line of its code. `calls` are the rows of the module calls made from here.
    """

    place: Place
    module: str | None
    tag: str
    run: int
    runs: Runs
    calls: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class ModuleCall:
    """A call of a module of torch, or of one in which nothing ran."""

    row: int
    children: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Result:
    """Result of a module call whose source lines are above, if statistics were recorded."""

    row: int


@dataclass(slots=True)
class Op:
    """An op, or neighbours with the same text. `linked` ops are at the line of their forward op."""

    rows: list[int]
    linked: bool = False


@dataclass(slots=True)
class NamedValue:
    """A variable, tap or gradient, or neighbours with the same text."""

    rows: list[int]


@dataclass(slots=True)
class Failure:
    """An exception that no op raised."""

    row: int


@dataclass(slots=True)
class Ops:
    """Ops that are only counted.

    `kind` is `backward` for the backward ops of the ops above, `recompute` for ops that a
    checkpoint ran again, `optimizer`, or `more` for ops that a long list leaves out.
    """

    kind: str
    rows: list[int]


@dataclass(slots=True)
class BackwardPass:
    """A part of the backward pass.

    `elsewhere` are ops shown at the lines of their forward ops, `counted` those that have no
    forward op and are only counted here. All others follow below, at their lines.
    """

    elsewhere: list[int]
    counted: list[int]


@dataclass(slots=True)
class Repeated:
    """Runs that are left out because they equal the one before: the outermost rows of each."""

    names: str
    runs: list[tuple[int, ...]]


@dataclass(slots=True)
class Rank:
    """What ran on one rank."""

    rank: int
    children: list[Node] = field(default_factory=list)


Node = Line | ModuleCall | Result | Op | NamedValue | Failure | Ops | BackwardPass | Repeated | Rank


def children(node: Node) -> list[Node]:
    """Return the nodes below a node."""
    return node.children if isinstance(node, Line | ModuleCall | Rank) else []


def walk(nodes: list[Node]) -> Iterator[tuple[int, Node]]:
    """Walk a tree of any depth in order; yield each node with its depth."""
    pending = [(0, node) for node in reversed(nodes)]
    while pending:
        depth, node = pending.pop()
        yield depth, node
        pending += [(depth + 1, child) for child in reversed(children(node))]
