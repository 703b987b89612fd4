"""Numbers of float16 near the end of its range: about to overflow, or lost as 0.

Input: a `Run`. Output: `RangeWarning`s, one for each line and op. An op is named only if its own
inputs were well inside the range, so that a mask of -65504 and what is computed from it is none.
bfloat16 has the range of float32 and needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clew.analysis.loss_scale import LossScales
from clew.analysis.nonfinite_hints import LARGEST, number_text
from clew.events.columns import Flags, Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import BACKWARD, OP
from clew.run.run import Run

# As in `native/sources/kept.cpp`.
NEAR_OVERFLOW = LARGEST["float16"] / 2
# Casts, and ops that put numbers of the program into a tensor.
_NOT_COMPUTED = frozenset(
    {"_to_copy", "copy_", "masked_fill", "masked_fill_", "full", "full_like", "fill_", "where",
     "scalar_tensor", "lift_fresh", "clamp", "clamp_"}
)  # fmt: skip
# A gradient is lost if so large a part of it became 0 by a cast.
_LOST, _FEWEST = 0.5, 16


@dataclass(frozen=True, slots=True)
class RangeWarning:
    """An op whose result is near the end of float16, how often, and a sentence about it."""

    row: int
    text: str
    count: int


def range_warnings(run: Run) -> list[RangeWarning]:
    """List ops that nearly overflow and gradients that became 0, the first of each line."""
    dtypes = np.array([meta.dtype for meta in run.metas])
    if "float16" not in dtypes:
        return []
    is_half = (dtypes == "float16")[run.columns.meta]
    found = _grouped(run, _near_overflow(run, is_half), _near_text)
    found += _grouped(run, _lost(run, is_half), _lost_text)
    return sorted(found, key=lambda one: one.row)


def _near_overflow(run: Run, is_half: Flags) -> Ints:
    """Return the rows of ops whose result is past half the range, of inputs that are not."""
    tensors, stats = run.tensors, run.stats
    with np.errstate(invalid="ignore"):
        largest = np.fmax(np.abs(stats["min"]), np.abs(stats["max"]))
        near = (largest >= NEAR_OVERFLOW) & is_half & (stats["inf"] == 0) & (stats["nan"] == 0)
    rows = np.unique(tensors.event[tensors.is_output & near[tensors.value]])
    taken = ~tensors.is_output & (largest >= NEAR_OVERFLOW)[tensors.value]
    rows = np.setdiff1d(rows, tensors.event[taken])
    # A GradScaler raises its scale until gradients overflow: they are meant to be near the end.
    scales = LossScales(run)
    is_scaled = [scales.at(row) > 1 for row in rows.tolist()]
    rows = rows[(run.phase[rows] != BACKWARD) | ~np.array(is_scaled, dtype=bool)]
    return np.asarray(rows[_is_op(run, rows, lambda name: name not in _NOT_COMPUTED)])


def _lost(run: Run, is_half: Flags) -> Ints:
    """Return the rows of casts of gradients that made most of them 0."""
    tensors, stats = run.tensors, run.stats
    rows = np.unique(tensors.event[tensors.is_output & is_half[tensors.value]])
    rows = rows[(run.phase[rows] == BACKWARD) & _is_op(run, rows, lambda name: name == "_to_copy")]
    first, end = np.searchsorted(tensors.event, rows), np.searchsorted(tensors.event, rows, "right")
    given, made = tensors.value[first], tensors.value[end - 1]
    count, more = stats["count"][made], stats["zeros"][made] - stats["zeros"][given]
    lost = (count >= _FEWEST) & (stats["count"][given] == count) & (more >= _LOST * count)
    return np.asarray(rows[lost])


def _is_op(run: Run, rows: Ints, wanted: Callable[[str], bool]) -> Flags:
    names = np.array([wanted(bare_op(name)) for name in run.columns.ops] + [False])
    columns = run.columns
    return names[np.where(columns.kind[rows] == OP, columns.subject[rows], -1)]


def _grouped(run: Run, rows: Ints, text: Callable[[Run, int], str]) -> list[RangeWarning]:
    """Return one warning for each op of each line."""
    groups: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        key = int(run.derived.source[row]), int(run.columns.subject[row])
        groups.setdefault(key, []).append(row)
    return [RangeWarning(same[0], text(run, same[0]), len(same)) for same in groups.values()]


def _near_text(run: Run, row: int) -> str:
    stats = [value.stats for value in run.event(row).outputs.values() if value.stats is not None]
    sizes = [max(abs(s.min), abs(s.max)) for s in stats if s.min is not None and s.max is not None]
    return (
        f"numbers up to {number_text(max(sizes, default=NEAR_OVERFLOW))}, and float16 ends at "
        "65504: run this op in float32 or bfloat16, or make its input smaller"
    )


def _lost_text(run: Run, row: int) -> str:
    event = run.event(row)
    made = next(iter(event.outputs.values())).stats
    given = next(iter(event.inputs.values())).stats
    assert made is not None
    assert given is not None
    return (
        f"{made.zeros - given.zeros:,} of {made.count:,} elements of a gradient became 0 in "
        "float16: scale the loss with torch.amp.GradScaler"
    )
