"""Silent broadcasting: an op that expanded both of its operands, where that was hardly meant.

Input: a `Run`. Output: `Broadcast`s: a loss of [N] against [N,1], or a difference of the two. What
could be one is found here; whether it was meant, `analysis.unmeant` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from clew import analysis
from clew.analysis.shape.call import Shape, numel
from clew.events.columns import IN, Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import FORWARD, OP
from clew.run.run import Run

COMPARING = frozenset({"sub", "eq", "ne"})
_ARITHMETIC = COMPARING | {"add", "mul", "div", "pow", "maximum", "minimum"}
# A damaged trace may have shapes of any size.
_MOST = 2**62


@dataclass(frozen=True, slots=True)
class Broadcast:
    """An op, or a loss function, that expanded both operands: its row, its name and the shapes."""

    row: int
    name: str
    shapes: tuple[Shape, ...]
    result: Shape
    count: int


def silent_broadcasts(run: Run) -> list[Broadcast]:
    """List where both operands were expanded and hardly meant to be, one entry for each line."""
    found: dict[tuple[object, ...], list[Broadcast]] = {}
    for one in (*_in_loss_functions(run), *_in_arithmetic(run)):
        key = (int(run.derived.source[one.row]), one.name, one.shapes)
        found.setdefault(key, []).append(one)
    kept = [
        Broadcast(same[0].row, same[0].name, same[0].shapes, same[0].result, len(same))
        for same in found.values()
        if _is_loss(same[0].name) or analysis.is_unmeant(run, same[0])
    ]
    return sorted(kept, key=lambda one: one.row)


def _is_loss(name: str) -> bool:
    return name.endswith("_loss")


# What could be one


def _in_loss_functions(run: Run) -> Iterator[Broadcast]:
    """Yield calls of losses of torch that expanded both the input and the target.

    They expand them by `broadcast_tensors`, one op for each tensor that has another shape.
    """
    c = run.columns
    losses = [_loss_of(run, place) for place in range(len(c.places))]
    is_of_loss = np.array([bool(name) for name in losses], dtype=bool)
    is_expand = np.array([bare_op(name) == "expand" for name in c.ops] + [False])
    rows = np.flatnonzero(c.kind == OP)
    rows = rows[is_expand[c.subject[rows]] & is_of_loss[c.place[rows]]]
    for row, following in pairwise(rows.tolist()):
        if following == row + 1 and c.place[row] == c.place[following]:
            shapes = (*_shapes(run, row)[:1], *_shapes(run, following)[:1])
            result = result_shape(run, row)
            if len(shapes) == 2 and max(map(numel, shapes)) < numel(result):
                name = losses[int(c.place[row])]
                yield Broadcast(_loss_row(run, following), name, shapes, result, 1)


def _loss_row(run: Run, expand: int) -> int:
    """Return the row of the op after the last expansion, which the loss function runs itself."""
    c = run.columns
    following = expand + 1
    if following == len(run):
        return expand
    around = c.places[c.places[int(c.place[expand])].parent]
    here = c.places[int(c.place[following])]
    return following if (here.file, here.function) == (around.file, around.function) else expand


def _loss_of(run: Run, place: int) -> str:
    """Return the loss function of torch that `broadcast_tensors` runs for at a place, or ""."""
    here = run.columns.places[place]
    if here.function != "broadcast_tensors" or here.parent < 0:
        return ""
    caller = run.columns.places[here.parent]
    is_torch = caller.file.replace("\\", "/").endswith("torch/nn/functional.py")
    return caller.function if is_torch and _is_loss(caller.function) else ""


def _in_arithmetic(run: Run) -> Iterator[Broadcast]:
    """Yield ops whose result has more elements than each of two operands of equal sizes."""
    for row in _larger_than_operands(run).tolist():
        shapes = tuple(shape for shape in _shapes(run, row) if numel(shape) > 1)
        result = result_shape(run, row)
        is_broadcast = len(shapes) == 2 and len(result) == max(map(len, shapes))
        if is_broadcast and _are_equal_but_for_ones(*shapes):
            yield Broadcast(row, bare_op(run.name(row)), shapes, result, 1)


def _larger_than_operands(run: Run) -> Ints:
    """Return the rows of arithmetic in the forward pass whose result outgrew every operand."""
    c, tensors = run.columns, run.tensors
    is_wanted = np.array([bare_op(name) in _ARITHMETIC for name in c.ops] + [False])
    rows = (c.kind == OP) & (run.phase == FORWARD)
    rows &= is_wanted[np.where(rows, c.subject, -1)]
    mine = rows[tensors.event]
    event, value, is_output = tensors.event[mine], tensors.value[mine], tensors.is_output[mine]
    sizes = np.array([min(numel(meta.shape or ()), _MOST) for meta in c.metas] + [1])
    size = sizes[c.meta[value]]
    given, taken = np.zeros((2, len(rows)), dtype=np.int64)
    np.maximum.at(given, event[is_output], size[is_output])
    np.maximum.at(taken, event[~is_output], size[~is_output])
    return np.flatnonzero(rows & (given > taken))


def _are_equal_but_for_ones(first: Shape, second: Shape) -> bool:
    """Return whether two shapes of different rank have the same sizes apart from those of 1."""
    sizes = [[size for size in shape if size != 1] for shape in (first, second)]
    return sizes[0] == sizes[1] and len(first) != len(second)


def _shapes(run: Run, row: int) -> list[Shape]:
    values = [run.value(number) for leaf, number in run.leaf_values(row) if leaf.role == IN]
    return [value.shape or () for value in values]


def result_shape(run: Run, row: int) -> Shape:
    """Return the shape of the first result, that of a number if there is none."""
    results = list(run.event(row).outputs.values())
    return (results[0].shape or ()) if results else ()
