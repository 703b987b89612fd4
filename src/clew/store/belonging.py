"""Where ops belong that run outside the calls they are part of: in backward and in recomputation.

In come columns and what is known of each row, out come rows: of the op that made an autograd node,
and of the module call that made a checkpoint.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Columns, Ints, Place
from clew.events.records import BACKWARD, NODE_RUN, OP, RECOMPUTED, node_made

# Where torch makes checkpoints.
_CHECKPOINT = ("torch/utils/checkpoint.py", "torch\\utils\\checkpoint.py")


def makes_checkpoints(place: Place) -> bool:
    """Whether a place is in torch's own code for checkpoints."""
    return place.library and place.file.endswith(_CHECKPOINT)


def recomputed_outside(c: Columns) -> Ints:
    """The rows of ops that a checkpoint recomputes outside any module call."""
    return np.flatnonzero((c.kind == OP) & (c.number >= RECOMPUTED))


def node_makers(c: Columns, phase: Ints, thread: Ints) -> Ints:
    """For each op that a backward pass runs the row of the op that made its node, else -1."""
    result = np.full(len(c.id), -1, dtype=np.int64)
    ops = c.kind == OP
    in_backward = ops & ((phase == BACKWARD) | (c.number >= RECOMPUTED))
    backward = np.flatnonzero(in_backward & (c.number >= 0))
    run = c.number & NODE_RUN
    # With `create_graph`, backward ops make nodes as well, for a backward of the backward.
    made = np.where(in_backward, np.where(c.number >= 0, node_made(c.number), 0), c.number)
    makers = np.flatnonzero(ops & (~in_backward | (made > 0)))
    if not len(makers) or not len(backward):
        return result
    # An op that made node n reads n + 1; the first to read it is the one. Numbers count up
    # per thread; ops of other threads than the first are matched within their own.
    for number in np.unique(thread[makers]):
        mine = makers[thread[makers] == number]
        numbers, first = np.unique(made[mine], return_index=True)
        open_rows = backward[
            (result[backward] < 0) & ((thread[backward] == number) | (thread[backward] == 0))
        ]
        wanted = run[open_rows] + 1
        at = np.searchsorted(numbers, wanted)
        at[at >= len(numbers)] = 0
        hit = numbers[at] == wanted
        result[open_rows[hit]] = mine[first[at[hit]]]
        # A node made after its op had run, as for a write to a view, has no reader of its
        # own: it belongs to the op before it.
        last = np.searchsorted(made[mine], wanted - 1, "right") - 1
        late = ~hit & (last >= 0)
        result[open_rows[late]] = mine[last[late]]
    return result


def first_forward(makers: Ints, phase: Ints) -> Ints:
    """The same with forward ops only: a backward op stands for the forward op it belongs to."""
    rows = np.where(phase == BACKWARD, makers, -1)
    while True:
        again = np.flatnonzero((rows >= 0) & (phase[rows] == BACKWARD))
        if not len(again):
            return rows
        # One that belongs to itself or to a later one would never end.
        earlier = rows[rows[again]] < rows[again]
        rows[again] = np.where(earlier, rows[rows[again]], -1)


def checkpoint_caller(c: Columns, parent_row: Ints, modules: Ints, row: int) -> int:
    """The call that made the innermost checkpoint around a row, -1 if none did.

    `modules` has the calls of rows before, for a checkpoint in what another recomputes.
    """
    while row >= 0:
        above = int(parent_row[row])
        if _is_checkpointed(c, row, above):
            return above if above >= 0 else int(modules[row])
        row = above
    return -1


def _is_checkpointed(c: Columns, row: int, above: int) -> bool:
    """Whether a checkpoint lies between a row and the call it runs in."""
    place, end = int(c.place[row]), -1 if above < 0 else int(c.place[above])
    while place not in (end, -1):
        if makes_checkpoints(c.places[place]):
            return True
        place = c.places[place].parent
    return False
