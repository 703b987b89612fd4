"""Build the tree of the code view: source lines as they call each other, ops beneath.

Input: a `Run` and perhaps some of its rows. Output: nodes (`code_nodes`). Lines of torch are left
out; torch's modules appear instead. A linked backward op, one that no user code ran, is put under
its forward op. Calls may be nested to any depth: instead of recursing, a function yields the work
inside, and `_finish` does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from clew.analysis.fold import Folds, Item, Repeat, name_range
from clew.analysis.folded_ops import FoldedOps
from clew.events.vocabulary import (
    BACKWARD,
    MODULE,
    OF_OPS,
    OP,
    OPTIMIZER,
    RECOMPUTE,
    STEP,
    TAP,
    VARIABLE,
)
from clew.run.run import Run
from clew.views.text.code_lines import Chain, Frame, OpenLines, extended
from clew.views.text.code_nodes import (
    BackwardPass,
    Failure,
    NamedValue,
    Node,
    Op,
    Ops,
    Rank,
    Repeated,
    Result,
)
from clew.views.text.code_places import CodePlaces
from clew.views.text.code_short import Blocks
from clew.views.text.event_texts import EventTexts
from clew.views.text.named_texts import NAMED

# Functions that only pass a call on; their lines are left out of the succinct view.
_PASSING_ON = {"wrapper", "wrapped", "inner", "decorate_context", "__call__"}

# Events of one phase that ran in one go, by the first of them.
Stretches: TypeAlias = dict[int, list[int]]
# Work that yields the work inside it.
Work: TypeAlias = Iterator["Work"]


def code_tree(
    run: Run, rows: list[int] | None, succinct: bool, texts: EventTexts, folds: bool = False
) -> list[Node]:
    """Build the tree of a whole run, or of what ran inside some events.

    In a run of several ranks each has a node. With `folds`, composites and calls of modules of
    torch.nn are shown in place of their ops.
    """
    given = run.children.get(-1, []) if rows is None else _outermost(run, rows)
    folded = FoldedOps(run, folds, None if rows is None else given)
    facts = _TreeFacts(run, texts, succinct, folded)
    blocks = Blocks(run, texts, facts.linked, succinct, folded)
    process = run.process.tolist()
    ranks = []
    for rank in run.ranks:
        mine = [row for row in given if process[row] == rank]
        nodes = _Builder(facts, chosen=rows is not None).build(mine)
        blocks.arrange(nodes)
        if nodes:
            ranks.append(Rank(rank, nodes))
    return list(ranks) if len(run.ranks) > 1 else [n for rank in ranks for n in rank.children]


def _outermost(run: Run, rows: list[int]) -> list[int]:
    """Return those of some rows, in order and once, that lie in no other of them."""
    chosen = set(rows)
    parents = run.parent_row.tolist()
    found = []
    for row in sorted(chosen):
        above = parents[row]
        while above >= 0 and above not in chosen:
            above = parents[above]
        if above < 0:
            found.append(row)
    return found


def _finish(work: Work) -> None:
    """Do work and the work it yields, in order, without recursion."""
    pending = [work]
    while pending:
        inner = next(pending[-1], None)
        if inner is None:
            pending.pop()
        else:
            pending.append(inner)


class _TreeFacts:
    """Facts that the trees of all ranks are built from."""

    def __init__(self, run: Run, texts: EventTexts, succinct: bool, folded: FoldedOps) -> None:
        self.run = run
        self.texts = texts
        self.succinct = succinct
        self.folded = folded
        self.folds = Folds(run, fold=succinct)
        self.places = CodePlaces(run)
        self.kind: list[int] = run.columns.kind.tolist()
        self.phase: list[int] = run.phase.tolist()
        self.parent: list[int] = run.parent_row.tolist()
        self.forward: list[int] = run.forward_row.tolist()
        self.error: list[int] = run.columns.error.tolist()
        self.children = run.children
        # For each row, whether it is a backward op whose line is that of its forward op.
        self.linked = _linked(run)

    def is_at_backward_line(self, row: int) -> bool:
        """Return whether user code ran an op in the backward pass."""
        place = self.run.source_place(row)
        return place is not None and not place.library and place.phase == BACKWARD


def _linked(run: Run) -> list[bool]:
    own = {n for n, p in enumerate(run.columns.places) if p.phase == BACKWARD and not p.library}
    pairs = zip(run.derived.forward.tolist(), run.derived.source.tolist(), strict=True)
    return [forward >= 0 and source not in own for forward, source in pairs]


class _Builder:
    """Goes through the events of one rank in order and puts each at its line."""

    def __init__(self, facts: _TreeFacts, chosen: bool) -> None:
        self._facts = facts
        self._run = facts.run
        self._succinct = facts.succinct
        self._kind, self._phase = facts.kind, facts.phase
        self._lines = OpenLines()
        # Whether the caller chose the rows, rather than taking all.
        self._chosen = chosen

    def build(self, rows: list[int]) -> list[Node]:
        """Build the tree of some siblings of one rank."""
        if self._chosen:
            kept = self._without_told_at_forward(rows)
            _finish(self._items(self._facts.folds.fold(kept), None, {}))
        else:
            _finish(self._siblings(rows, None))
        return self._lines.nodes

    def _without_told_at_forward(self, rows: list[int]) -> list[int]:
        """Leave out backward ops that the note under their forward op already counts."""
        chosen = set(rows)
        linked, forward = self._facts.linked, self._facts.forward
        return [row for row in rows if not (linked[row] and forward[row] in chosen)]

    def _siblings(self, rows: list[int], base: Chain | None) -> Work:
        """Put events under a chain of lines, the backward pass and the optimizer each as one."""
        stretches: Stretches = {}
        kept: list[int] = []
        open_phase = -1
        for row in rows:
            phase = self._phase[row] if self._kind[row] != STEP else open_phase
            phase = BACKWARD if phase == RECOMPUTE else phase
            if phase != open_phase or phase not in (BACKWARD, OPTIMIZER):
                kept.append(row)
            if phase in (BACKWARD, OPTIMIZER):
                stretches.setdefault(kept[-1], []).append(row)
            open_phase = phase
        kept = [row for row in kept if self._kind[row] != STEP]
        frames = self._facts.places.frames
        given = {row: (self._phase[row], *frames(row)) for row in stretches}
        yield self._items(self._facts.folds.fold(kept, given), base, stretches)

    def _items(self, items: list[Item], base: Chain | None, stretches: Stretches) -> Work:
        for item in items:
            if isinstance(item, Repeat):
                yield self._repeat(item, base, stretches)
            elif item in stretches:
                yield self._stretch(stretches[item], base)
            elif self._kind[item] == MODULE:
                yield self._call(item, base)
            else:
                self._event(item, base)

    def _stretch(self, rows: list[int], base: Chain | None) -> Work:
        """Put events that ran together in one phase other than the forward pass."""
        if self._phase[rows[0]] == OPTIMIZER:
            yield self._items(list(rows), base, {})
        else:
            yield self._backward(rows, base)

    def _repeat(self, repeat: Repeat, base: Chain | None, stretches: Stretches) -> Work:
        """Put the first of several equal runs, then how many more there are."""
        self._lines.go(base)
        before = self._lines.runs()
        yield self._items(list(repeat.items), base, stretches)
        self._lines.go(base)
        self._lines.repeat(before, repeat.count - 1)
        left_out = [
            tuple(event for row in run for event in stretches.get(row, (row,)))
            for run in repeat.runs[1:]
        ]
        self._lines.put(Repeated(self._names_of_others(repeat), left_out))

    def _names_of_others(self, repeat: Repeat) -> str:
        """Name the runs of a repeat except the first: by their steps, or by their modules."""
        pairs = list(zip(repeat.runs[1], repeat.runs[-1], strict=False))
        steps = self._run.step
        first, last = (int(steps[row]) for row in pairs[0])
        if first != int(steps[repeat.runs[0][0]]):
            return f"step {first}" if first == last else f"steps {first} … {last}"
        name = self._facts.folds.structure.name
        names = [
            name_range(name(a), name(b), above=1) or self._run.name(a)
            for a, b in pairs
            if self._kind[a] == MODULE
        ]
        return ", ".join(names[:3]) + (f", +{len(names) - 3}" if len(names) > 3 else "")

    def _call(self, row: int, base: Chain | None) -> Work:
        """Put a module call at its line; it gets a node if no line of its code ran."""
        chain = extended(base, self._frames(row))
        inside = self._facts.children.get(row, [])
        if self._facts.folded.is_folded_call(row):
            inside = []
        has_lines = any(self._facts.places.frames(event) for event in inside)
        own = () if has_lines else (Frame(("module", row), None, row, None),)
        body = extended(chain, own)
        if not inside:
            self._lines.go(body)
        elif self._phase[row] in (RECOMPUTE, BACKWARD):
            yield self._items(self._facts.folds.inside(row), body, {})
        else:
            yield self._siblings(inside, body)
        if has_lines and self._facts.texts.has_numbers(row):
            self._lines.go(chain)
            self._lines.put(Result(row))

    def _event(self, row: int, base: Chain | None) -> None:
        """Put an op, a named value or an error at its line."""
        kind = self._kind[row]
        node: Node
        if kind in OF_OPS:
            linked = self._facts.linked[row]
            if not self._facts.folded.is_shown(row):
                return
            if linked and self._facts.forward[row] >= 0 and not self._chosen:
                return  # shown under its forward op
            node = Op([row], linked)
            chain = self._forward_line(row) if linked else extended(base, self._frames(row))
        elif kind in NAMED or self._facts.error[row] >= 0:
            node = NamedValue([row]) if kind in NAMED else Failure(row)
            chain = extended(base, self._frames(row))
        else:
            return
        self._lines.go(chain)
        self._lines.put(node)

    def _forward_line(self, row: int) -> Chain | None:
        """Return the line of the forward op of a backward op that is shown by itself."""
        place = int(self._run.derived.source[row])
        if place < 0 or self._run.columns.places[place].library:
            return None
        module = self._run.module_path(row)
        above = int(self._run.owner_row[row])
        # The line did not run again for it, so every op gets a distinct position.
        frame = self._frame(place, ("forward", above), row, -1, module, module or "")
        return extended(None, [frame])

    def _backward(self, rows: list[int], base: Chain | None) -> Work:
        """Put a part of the backward pass: a note on ops shown elsewhere, then the others.

        Ops that user code ran, in a custom function or a hook, are at those lines. The succinct
        view only counts other ops without a forward op, and ops that checkpoints recompute.
        """
        self._lines.go(extended(base, self._line_that_began(rows)))
        is_op, linked = self._kind, self._facts.linked
        ops = [r for top in rows for r in (top, *self._run.subtree(top)) if is_op[r] == OP]
        elsewhere = [r for r in ops if linked[r] and self._facts.forward[r] >= 0]
        counted: set[int] = set()
        if self._succinct:
            counted.update(row for row in rows if self._is_counted(row))
        if elsewhere or counted:
            ops_alone = sorted(row for row in counted if self._kind[row] == OP)
            self._lines.put(BackwardPass(elsewhere, ops_alone))
        again = [row for row in ops if self._phase[row] == RECOMPUTE]
        if again and self._succinct:
            self._lines.put(Ops("recompute", again))
        for row in rows:
            if row in counted or (
                self._succinct and self._phase[row] == RECOMPUTE and self._kind[row] not in NAMED
            ):
                continue
            if self._kind[row] == MODULE:
                yield self._call(row, base)
            else:
                self._event(row, base)

    def _is_counted(self, row: int) -> bool:
        """Return whether the succinct view only counts an op of the backward pass."""
        kind, phase = self._kind[row], self._phase[row]
        if kind not in OF_OPS or phase != BACKWARD or self._facts.linked[row]:
            return False
        return self._facts.error[row] < 0 and not self._facts.is_at_backward_line(row)

    def _line_that_began(self, rows: list[int]) -> list[Frame]:
        """Return the lines, outside the backward pass, that began a part of it."""
        for row in rows:
            frames = self._frames(row)
            began = [f for f in frames if f.place is not None and f.place.phase not in _WITHIN]
            if began:
                return began
        return []

    def _frames(self, row: int) -> list[Frame]:
        """Return the user's lines between an event and the module call it ran in."""
        places = self._facts.places.frames(row)
        if self._succinct and len(places) > 1:
            is_call = self._kind[row] == MODULE
            kept = [p for p in places if self._function(p) not in _PASSING_ON]
            places = kept if kept and (is_call or kept[-1] == places[-1]) else places
        above = self._facts.parent[row]
        # The backward pass runs calls again, all from one line that itself runs once.
        again = self._phase[row] == RECOMPUTE and (above < 0 or self._phase[above] != RECOMPUTE)
        name = self._bound(row)
        call = row if (name or self._kind[row] == MODULE) and not again else -1
        module = self._run.module_path(above) if above >= 0 else None
        tag = self._tag(above) if above >= 0 else ""
        last = len(places) - 1
        return [
            self._frame(
                place,
                above,
                (self._position(place), name if at == last else ""),
                call if at == last else -1,
                module,
                tag if at == 0 else "",
            )
            for at, place in enumerate(places)
        ]

    def _frame(
        self, number: int, above: object, position: object, call: int, module: str | None, tag: str
    ) -> Frame:
        place = self._run.columns.places[number]
        columns = () if self._succinct else (place.col, place.end_col)
        key = (above, place.file, place.function, place.line, *columns)
        return Frame(key, position, call, place, module, tag)

    def _bound(self, row: int) -> str:
        """Return the name that an event's line assigns each time it runs, or an empty text."""
        label = self._run.label(row) if self._kind[row] in (VARIABLE, TAP) else None
        return label.stem if label is not None and label.role is None else ""

    def _position(self, number: int) -> object:
        """Return a key that identifies a position in a line."""
        place = self._run.columns.places[number]
        return (place.col, place.end_line, place.end_col) if place.end_col else number

    def _function(self, number: int) -> str:
        return self._run.columns.places[number].function.rpartition(".")[2]

    def _tag(self, row: int) -> str:
        name = self._run.module_path(row) or self._run.name(row)
        return f"{name}, recompute" if self._phase[row] == RECOMPUTE else name


_WITHIN = (BACKWARD, RECOMPUTE)
