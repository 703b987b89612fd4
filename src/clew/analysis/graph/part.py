"""Choose the part of a run that a graph draws: one rank, and one forward pass of one step.

Input: a run and what the user asked for. Output: the rows to draw and a text that describes them. A
whole training run would be thousands of boxes with the same content.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.graph.boxes import top_rows
from clew.analysis.structure import Structure
from clew.errors import ClewError
from clew.events.vocabulary import BACKWARD, MODULE, OPTIMIZER
from clew.run.run import Run


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Rows that no call contains, in order, and a text for them if the run has more."""

    rows: list[int]
    said: str = ""


def one_rank(run: Run, rows: list[int] | None = None) -> tuple[Run, list[int] | None, str]:
    """Return the run of one rank, those of some rows that belong to it, and a text for it.

    It is the first rank, or the first that has some of the rows.
    """
    if len(run.ranks) == 1:
        return run, rows, ""
    rank = run.ranks[0] if not rows else int(run.process[min(rows)])
    mine = np.flatnonzero(run.process == rank)
    if rows is not None:
        first = int(mine[0])
        rows = [row - first for row in rows if run.process[row] == rank]
    return run.only(rank=rank), rows, f"rank {rank} of {len(run.ranks)}"


def of_step(run: Run, rows: list[int], step: int) -> GraphPart:
    """Return those of some rows that ran in a step."""
    found = [row for row in rows if run.step[row] == step]
    if not found:
        there = sorted({int(run.step[row]) for row in rows})
        known = f"{there[0]} to {there[-1]}" if there else "none"
        raise ClewError(f"nothing ran in step {step}; there are steps {known}")
    return GraphPart(found)


def first_forward(structure: Structure) -> GraphPart:
    """Return one forward pass of the first step that has one."""
    run = structure.run
    passes = forward_passes(structure)
    if not passes:
        return GraphPart([])
    step = int(run.step[passes[0][0]])
    said = [f"step {step} of {len(run.steps)}"] if len(run.steps) > 1 else []
    if len(passes) > 1 and run.step[passes[1][0]] == step:
        said.insert(0, "first forward")
    return GraphPart(passes[0], ", ".join(said))


def forward_passes(structure: Structure) -> list[list[int]]:
    """Return the outermost rows of each forward pass, those without a module call left out.

    A pass ends where the backward pass or an optimizer begins, else with its step. If the run has
    no module call at all, every pass counts.
    """
    run = structure.run
    tops = np.array(top_rows(structure), dtype=np.int64)
    others = np.flatnonzero(np.isin(run.phase, (BACKWARD, OPTIMIZER)))
    passed = np.searchsorted(others, tops)
    step, rank = run.step[tops], run.process[tops]
    ends = np.flatnonzero((np.diff(passed) != 0) | (np.diff(step) != 0) | (np.diff(rank) != 0))
    passes = [rows.tolist() for rows in np.split(tops, ends + 1) if len(rows)]
    kind = structure.kind
    return [rows for rows in passes if any(kind[row] == MODULE for row in rows)] or passes
