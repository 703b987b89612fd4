"""Boxes of a graph, and the box in which each event is drawn.

Input: folded calls and what the user wants to see of them. Output: nodes that nest as the module
calls do, and for each event its box. Of a repeat only the first run has boxes; the events of other
runs are drawn in the boxes of the same events in the first run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from clew.address import compile_path
from clew.analysis.fold import Folds, Item, Repeat, name_range
from clew.analysis.graph.graph_model import CALL, OP, REPEAT, Node
from clew.analysis.graph.op_memory import is_minor, starts_backward
from clew.analysis.structure import Structure
from clew.errors import ClewError
from clew.events.columns import IN, OUT
from clew.events.op_names import bare_op
from clew.events.vocabulary import BACKWARD, COMPOSITE, MODULE, OPTIMIZER, RECOMPUTE
from clew.events.vocabulary import OP as OP_EVENT
from clew.run.run import Run

BETWEEN, MAJOR_OPS, ALL_OPS, NO_OPS = "between", "major", "all", "none"
_ELSEWHERE = (BACKWARD, RECOMPUTE, OPTIMIZER)

# Deeper frames could not be seen, and would exceed Python's recursion limit.
_MOST_LEVELS = 400

# The runs an event belongs to: (number of a repeat, which run of it), outermost first.
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BoxOptions:
    """What to show: how deep, which ops, which calls to leave out."""

    depth: int | None = None
    ops: str = BETWEEN
    prune: bool | tuple[str, ...] = False


@dataclass(slots=True)
class Boxes:
    """The nodes, and where each event is drawn: those of later runs as in the first."""

    nodes: dict[str, Node] = field(default_factory=dict)
    # The event of each node in the first run; for a repeat, its first event.
    row_of: dict[str, int] = field(default_factory=dict)
    # Events of later runs → the same event in the first run; all others are drawn themselves.
    like: dict[int, int] = field(default_factory=dict)
    home: dict[int, str | None] = field(default_factory=dict)
    runs: dict[int, Runs] = field(default_factory=dict)
    tops: list[int] = field(default_factory=list)
    # Calls drawn as frames.
    frames: set[str] = field(default_factory=set)

    def box(self, row: int) -> str | None:
        """Return the node in which an event is drawn; None if it is not, and data passes through
        it.
        """
        return self.home.get(self.like.get(row, row))


class BoxMaker:
    """Turns siblings into nodes, frame by frame."""

    def __init__(self, folds: Folds, wanted: BoxOptions) -> None:
        self._folds = folds
        self._structure = folds.structure
        self._run = folds.structure.run
        self._wanted = wanted
        self._pruned = _pruned_by_name(self._run, wanted.prune)
        self._repeats = 0
        self.boxes = Boxes()

    def add(self, rows: list[int], level: int = 0) -> None:
        """Make boxes for siblings that no frame contains."""
        self.boxes.tops = rows
        self._add_items(self._folds.fold(rows), None, level)

    def _add_items(self, items: list[Item], parent: str | None, level: int) -> None:
        for item in items:
            if isinstance(item, Repeat):
                self._add_repeat(item, parent, level)
            elif self._structure.kind[item] == MODULE:
                self._add_call(item, parent, level)
            elif self._structure.kind[item] == OP_EVENT:
                self._add_op(item, parent, level)

    def _add_repeat(self, repeat: Repeat, parent: str | None, level: int) -> None:
        number = self._repeats
        self._repeats += 1
        first = list(repeat.items)
        shown = [item for item in first if isinstance(item, Repeat) or self._is_shown(item)]
        alone = len(shown) == 1 and not isinstance(shown[0], Repeat)
        frame = parent
        if shown and not alone:
            row = repeat.runs[0][0]
            frame = f"r{int(self._run.columns.id[row])}"
            if frame in self.boxes.nodes:  # of a repeat that begins with this one
                frame += f"x{number}"
            node = Node(frame, REPEAT, self._repeat_name(repeat), parent=parent, level=level)
            self._put(node, row)
        self._add_items(first, frame, level)
        # A single call or op carries the count itself.
        counted = frame if not alone else self.boxes.home.get(_row(shown[0]))
        if counted is not None and counted != parent:
            node = self.boxes.nodes[counted]
            self.boxes.nodes[counted] = replace(node, count=repeat.count, exact=repeat.exact)
        self._refer(repeat, number)

    def _refer(self, repeat: Repeat, number: int) -> None:
        """Map the events of later runs to the same events of the first run."""
        boxes = self.boxes
        spans = [span.tolist() for span in self._folds.spans(repeat)]
        inner = [boxes.runs.get(row, ()) for row in spans[0]]
        first = [boxes.like.get(row, row) for row in spans[0]]
        made: dict[Runs, Runs] = {}
        for run, span in enumerate(spans):
            made.clear()
            for row, like, within in zip(span, first, inner, strict=False):
                boxes.runs[row] = made.setdefault(within, ((number, run), *within))
                if row != like:
                    boxes.like[row] = like

    def _repeat_name(self, repeat: Repeat) -> str:
        step = self._run.step
        steps = [int(step[run[0]]) for run in repeat.runs]
        if steps == list(range(steps[0], steps[0] + len(steps))):
            return f"steps {steps[0]} … {steps[-1]}"
        calls = [row for row in repeat.runs[0] if self._structure.kind[row] == MODULE]
        last = [row for row in repeat.runs[-1] if self._structure.kind[row] == MODULE]
        if len(calls) == 1:
            return name_range(self._structure.name(calls[0]), self._structure.name(last[0]))
        return "repeated"

    def _add_call(self, row: int, parent: str | None, level: int) -> None:
        if not self._is_shown(row):
            self._draw_inside(row, None)
            return
        structure = self._structure
        module = self._run.columns.modules[structure.subject[row]]
        event = int(self._run.columns.id[row])
        name = structure.name(row) or module.cls or "(root)"
        node = Node(
            f"e{event}", CALL, name, module.cls, path=module.path, parent=parent, level=level
        )
        self._put(node, row)
        if self._opens(row, level):
            self.boxes.home[row] = node.id
            self.boxes.frames.add(node.id)
            self._add_items(self._folds.inside(row), node.id, level + 1)
        else:
            self._draw_inside(row, node.id)

    def _add_op(self, row: int, parent: str | None, level: int) -> None:
        if not self._is_shown(row):
            self.boxes.home[row] = None
            return
        event = int(self._run.columns.id[row])
        name = self._run.name(row)
        node = Node(f"e{event}", OP, bare_op(name), name, parent=parent, level=level)
        self._put(node, row)
        self.boxes.home[row] = node.id

    def _put(self, node: Node, row: int) -> None:
        self.boxes.nodes[node.id] = node
        self.boxes.row_of[node.id] = row

    def _draw_inside(self, row: int, box: str | None) -> None:
        """Draw a call and everything that ran in it as one box, or not at all."""
        for inner in self._structure.subtree(row):
            self.boxes.home[inner] = box

    def _opens(self, row: int, level: int) -> bool:
        """Return whether a call is drawn as a frame that contains what ran in it."""
        if self._wanted.depth is not None and level >= self._wanted.depth:
            return False
        if level >= _MOST_LEVELS:
            raise ClewError(
                f"calls are nested more than {_MOST_LEVELS} deep, more than a graph can show; "
                f"give depth={_MOST_LEVELS} or less"
            )
        inside = self._structure.kids.get(row, [])
        shown = [kid for kid in inside if self._is_shown(kid)]
        calls = [kid for kid in shown if self._structure.kind[kid] == MODULE]
        if calls or self._wanted.ops in (MAJOR_OPS, ALL_OPS):
            return bool(shown)
        return bool(shown) and level == 0 and self._wanted.prune is not True

    def _is_shown(self, row: int) -> bool:
        structure = self._structure
        if structure.kind[row] == COMPOSITE:
            return False
        if self._run.columns.error[row] >= 0:
            return True
        if structure.kind[row] == MODULE:
            if self._wanted.prune is True and structure.parent[row] >= 0:
                return self._contains_calls(row)
            return structure.subject[row] not in self._pruned
        if structure.kind[row] != OP_EVENT or self._run.phase[row] in _ELSEWHERE:
            return False
        if self._wanted.ops in (BETWEEN, MAJOR_OPS):
            return not is_minor(self._run, row)
        return self._wanted.ops == ALL_OPS

    def _contains_calls(self, row: int) -> bool:
        return any(self._structure.kind[kid] == MODULE for kid in self._structure.kids.get(row, ()))


def _row(item: Item) -> int:
    return item if isinstance(item, int) else item.runs[0][0]


def top_rows(structure: Structure) -> list[int]:
    """Return calls and ops of the forward pass that no call contains."""
    run = structure.run
    phase = run.phase.tolist()
    rows = [
        row
        for row in structure.kids.get(-1, [])
        if (structure.kind[row] == MODULE and phase[row] != RECOMPUTE)
        or (structure.kind[row] == OP_EVENT and phase[row] not in _ELSEWHERE)
    ]
    seeds = [r for r in rows if structure.kind[r] == OP_EVENT and starts_backward(run, r)]
    gradients = _only_for_gradients(run, seeds, phase) if seeds else set()
    return [row for row in rows if row not in gradients]


def _only_for_gradients(run: Run, seeds: list[int], phase: list[int]) -> set[int]:
    """Return those of some ops whose results only the backward pass takes."""
    made = {v: row for row in seeds for leaf, v in run.direct_values(row) if leaf.role == OUT}
    users: dict[int, set[bool]] = {}
    for row in range(min(seeds), len(run)):
        for leaf, value in run.direct_values(row):
            if leaf.role == IN and value in made:
                users.setdefault(made[value], set()).add(phase[row] == BACKWARD)
    return {row for row in seeds if users.get(row) == {True}}


def _pruned_by_name(run: Run, prune: bool | tuple[str, ...]) -> set[int]:
    """Return the modules that the user wants to leave out, by class or path."""
    if isinstance(prune, bool):
        return set()
    tests = [compile_path(pattern) for pattern in prune]
    return {
        subject
        for subject, module in enumerate(run.columns.modules)
        if any(test(module.cls) or test(module.path) for test in tests)
    }
