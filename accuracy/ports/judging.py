"""Judge an answer: does it name the marked line, something next to it, or at least the function?

- `exact`: the line of the wrong op of B is marked, in the right layer; for an op that B omits, the
  line of the op of A. The line that called the function of the op counts as well, and a line that
  passes something to calls, if the op is the first that runs in them.
- `near`: at most one op that changes values lies between a marked op and the one named, or A's line
  is the other branch of the `if` that the mark is in.
- `function`: the function and the layer are right.
- `wrong`: anything else. `silent`: no answer.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

from accuracy.ports.answers import Answer
from accuracy.ports.planting import marked_lines
from clew.events.op_names import bare_op
from clew.run.event import Event

GRADES = EXACT, NEAR, FUNCTION, WRONG, SILENT = ("exact", "near", "function", "wrong", "silent")

# Ops that only move or copy elements.
_MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "expand", "clone", "_to_copy",
    "slice", "select", "split", "split_with_sizes", "unsqueeze", "squeeze", "cat", "stack",
    "unbind", "unfold", "alias", "detach", "view_as_real", "view_as_complex", "repeat", "index",
    "movedim", "contiguous", "flip", "roll", "_reshape_alias", "as_strided", "im2col", "copy_",
    "lift_fresh",
})  # fmt: skip


@dataclass(frozen=True)
class Spot:
    """Where a bug is in one of two programs: its file, its name and the path of its layer."""

    file: str
    bug: str
    place: str

    def has(self, event: Event) -> bool:
        """Return whether an event comes from a marked line in the right layer."""
        lines = marked_lines(self.file, self.bug)
        if not self.is_in_layer(event):
            return False
        if any(line in lines for line in lines_of(event, self.file)):
            return True
        return any(
            place.file == self.file and place.line in lines and _is_first(event, depth)
            for depth, place in enumerate(event.stack)
        )

    def is_in_layer(self, event: Event) -> bool:
        """Return whether an event is in the layer."""
        path = event.module or ""
        return not self.place or path == self.place or path.startswith(self.place + ".")


def lines_of(event: Event, file: str) -> list[int]:
    """Return the line of an event in a file and the one that called its function."""
    return [place.line for place in event.stack if place.file == file][-1:-3:-1]


def _is_first(event: Event, depth: int) -> bool:
    """Return whether no op ran before an event in the same run of the line at a depth."""
    before = event.row - 1
    while before >= 0:
        other = Event(event._run, before)
        if other.kind == "op":
            return other.stack[: depth + 1] != event.stack[: depth + 1]
        before -= 1
    return True


def grade(answer: Answer | None, a: Spot, b: Spot, omits: bool) -> str:
    """Grade an answer by where the bug is in either run."""
    if answer is None:
        return SILENT
    _, event_a, event_b = answer
    sides = [(event_b, b), *([(event_a, a)] if omits else [])]
    named = [(event, spot) for event, spot in sides if event is not None]
    if any(spot.has(event) for event, spot in named):
        return EXACT
    if any(_is_next_to(event, spot) for event, spot in named):
        return NEAR
    if event_a is not None and a.is_in_layer(event_a) and _is_other_branch(event_a, a):
        return NEAR
    both = [(event, spot) for event, spot in ((event_a, a), (event_b, b)) if event is not None]
    if any(spot.is_in_layer(event) and _is_in_function(event, spot) for event, spot in both):
        return FUNCTION
    return WRONG


def _is_next_to(event: Event, spot: Spot) -> bool:
    """Return whether at most one op that changes values follows a marked op up to an event."""
    waiting, seen = [(event, _cost(event))], {event.row}
    while waiting:
        one, cost = waiting.pop()
        for value in one.inputs.values():
            maker = value.producer
            if maker is None or maker.row in seen:
                continue
            if spot.has(maker):
                return True
            seen.add(maker.row)
            if cost + _cost(maker) <= 1:
                waiting.append((maker, cost + _cost(maker)))
    return False


def _cost(event: Event) -> int:
    return 0 if bare_op(event.name) in _MOVES else 1


def _is_other_branch(event: Event, spot: Spot) -> bool:
    lines = marked_lines(spot.file, spot.bug)
    mine = lines_of(event, spot.file)[:1]
    for node in ast.walk(_tree(spot.file)):
        if isinstance(node, ast.If):
            span = range(node.lineno, (node.end_lineno or 0) + 1)
            if any(line in span for line in lines) and any(line in span for line in mine):
                return True
    return False


def _is_in_function(event: Event, spot: Spot) -> bool:
    """Return whether an event's function has a mark, or asks for the bug by its name."""
    lines = lines_of(event, spot.file)[:1]
    if not lines:
        return False
    span = _function(spot.file, lines[0])
    named = marked_lines(spot.file, spot.bug) | _naming(spot.file, spot.bug)
    return any(line in span for line in named)


@cache
def _tree(file: str) -> ast.Module:
    with open(file, encoding="utf-8") as source:
        return ast.parse(source.read())


@cache
def _naming(file: str, bug: str) -> frozenset[int]:
    """Return the lines that have the name of a bug in quotes."""
    with open(file, encoding="utf-8") as source:
        return frozenset(n for n, text in enumerate(source, 1) if f'"{bug}"' in text)


@cache
def _function(file: str, line: int) -> range:
    """Return the lines of the innermost function around a line."""
    spans = [
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.FunctionDef)
    ]
    return min((span for span in spans if line in span), key=len, default=range(0))
