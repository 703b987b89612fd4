"""Results of calls that ran no hooks, such as `model.forward(x)`, inferred from what ran.

Input: a run and the row of such a call. Output: the values it must have returned.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from clew.events.columns import IN, OUT
from clew.events.vocabulary import BACKWARD, OP

if TYPE_CHECKING:
    from clew.run.run import Run


class InferredResults:
    """Infers results, of one call at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def of(self, row: int) -> list[int]:
        """Return the values made inside a call and used outside it, in the order of their use."""
        run, c = self._run, self._run.columns
        inside = run.subtree(row)
        made = [
            n
            for r in inside
            if c.kind[r] == OP
            for leaf, n in run.leaf_values(r)
            if leaf.role == OUT and run.producer_row(n) == r
        ]
        last_row = max(inside, default=row)
        later = []
        for n in dict.fromkeys(made):
            uses = self._uses.get(n, [])
            at = bisect_right(uses, (last_row, len(c.refs)))
            later += [(uses[at], n)] if at < len(uses) else []
        used = [n for _, n in sorted(later)]
        if used or not made:
            return used
        # Nothing used it: the first result of the last op.
        last = c.producer[made[-1]]
        return [next(n for n in made if c.producer[n] == last)]

    @cached_property
    def _uses(self) -> dict[int, list[tuple[int, int]]]:
        """Return where each value is taken, outside the backward pass: rows, and which tensor."""
        uses: dict[int, list[tuple[int, int]]] = {}
        phase = self._run.phase.tolist()
        for row in range(len(self._run)):
            if phase[row] != BACKWARD:
                for position, (leaf, number) in enumerate(self._run.leaf_values(row)):
                    if leaf.role == IN:
                        uses.setdefault(number, []).append((row, position))
        return uses
