"""Whether an op that expanded both of its operands was meant to.

Outer products are ordinary (masks, rotary tables, pairwise distances), so the rule asks where the
dimension of 1 comes from. One that the program made by `unsqueeze`, `None` or `keepdim` is meant.
One that came with the data, or out of a layer with one output, is not.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.broadcasts import COMPARING, Broadcast, result_shape
from clew.analysis.shape.call import CREATED, numel
from clew.analysis.shape.rules import CREATION
from clew.analysis.shape_chain import trace_dimension
from clew.analysis.shape_links import INPUT, OUTSIDE, PARAMETER, ShapeLink
from clew.events.columns import IN
from clew.events.op_names import bare_op
from clew.events.vocabulary import FORWARD, OP
from clew.run.run import Run

# Ops between a difference and the mean of it that a loss is.
_OF_LOSSES = frozenset({"pow", "abs", "square", "mul", "exp", "log", "sqrt", "neg", "clamp"})
_MEANS = frozenset({"mean", "sum"})
_MOST_OPS_OF_A_LOSS = 5


def is_unmeant(run: Run, found: Broadcast) -> bool:
    """Return whether the dimensions of 1 came with the data, or a loss is made of the result."""
    operands = [n for leaf, n in run.leaf_values(found.row) if leaf.role == IN]
    operands = [n for n in operands if numel(run.value(n).shape or ()) > 1]
    if any(_is_learned(run, number) for number in operands):
        return False
    shorter, longer = sorted(operands, key=lambda number: len(run.value(number).shape or ()))
    if found.name not in COMPARING and _belong_to_one(run, shorter, longer):
        return False
    shape = run.value(longer).shape or ()
    ones = [dim for dim, size in enumerate(shape) if size == 1 and found.result[dim] > 1]
    ends = [end for dim in ones for end in trace_dimension(run, longer, dim).origins]
    if all(_is_given(end) for end in ends):
        return True
    made = [end.event.row for end in ends if end.how == CREATED and end.event is not None]
    if len(made) < len(ends) or _line(run, found.row) in [_line(run, row) for row in made]:
        return False
    return _is_loss_term(run, found)


def _belong_to_one(run: Run, first: int, second: int) -> bool:
    """Return whether two operands are made of the same tensor: scores of all its pairs are meant.

    The weights of attention over a graph are sums of two scores, one of each node.
    """
    ends = []
    for number in (first, second):
        shape = run.value(number).shape or ()
        at = shape.index(max(shape))
        ends.append({(end.text, end.after) for end in trace_dimension(run, number, at).origins})
    return ends[0] == ends[1]


def _is_learned(run: Run, number: int) -> bool:
    """Return whether a value is a parameter or buffer, whose shape somebody chose."""
    value = run.value(number)
    return value.name is not None or (value.requires_grad and run.producer_row(number) < 0)


def _is_given(end: ShapeLink) -> bool:
    """Return whether a dimension of 1 came with the data or out of a layer."""
    if end.how == CREATED:
        return end.event is not None and bare_op(end.event.name) in CREATION
    return end.how in (INPUT, OUTSIDE, PARAMETER)


def _line(run: Run, row: int) -> tuple[str, int] | None:
    source = run.source_place(row)
    return None if source is None else (source.file, source.line)


def _is_loss_term(run: Run, found: Broadcast) -> bool:
    """Return whether a difference goes through elementwise ops alone into one mean or sum."""
    if found.name != "sub":
        return False
    value = next(iter(run.event(found.row).outputs.values()))
    for _ in range(_MOST_OPS_OF_A_LOSS):
        row = _only_use(run, value.number)
        name = "" if row is None else bare_op(run.name(row))
        if row is None or name not in _OF_LOSSES | _MEANS:
            return False
        if name in _MEANS:
            return result_shape(run, row) == ()
        value = next(iter(run.event(row).outputs.values()), value)
    return False


def _only_use(run: Run, value: int) -> int | None:
    """Return the row of the only op of the forward pass that took a value, None if not one."""
    c, tensors = run.columns, run.tensors
    rows = tensors.event[(tensors.value == value) & ~tensors.is_output]
    names = {int(row): bare_op(run.name(int(row))) for row in np.unique(rows)}
    # Autograd saves a value with a `detach`.
    used = [
        row
        for row, name in names.items()
        if c.kind[row] == OP and run.phase[row] == FORWARD and name != "detach"
    ]
    return used[0] if len(used) == 1 else None
