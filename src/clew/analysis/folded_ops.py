"""Fold ops into what people wrote: a composite, or a call of a module of torch.nn.

Input: a `Run`. Output: which rows stand for which ops. A composite stands for the ops it ran. A
call of a leaf module of torch.nn stands for its ops too, for an engine that sees no composites;
nothing else is guessed. What raised or gave NaN or Inf is not folded: it has to be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clew.errors import ClewError
from clew.events.columns import Ints
from clew.events.vocabulary import COMPOSITE, MODULE, OF_OPS, OP
from clew.run.event_table import output_stats
from clew.run.run import Run

# What `ops=` of the tree and the code view may be, besides None: every op, by its own name.
ATEN = "aten"


def folds_ops(ops: str | None) -> bool:
    """Return whether ops are folded; raise ClewError for what `ops=` cannot be."""
    if ops not in (None, ATEN):
        raise ClewError(f"ops={ops!r}: it is None, which folds ops, or {ATEN!r}, which shows all")
    return ops is None


class FoldedOps:
    """Which rows stand for which ops; without `folds`, each op for itself.

    `among` are the rows that are shown, with all in them; None for all.
    """

    def __init__(self, run: Run, folds: bool = True, among: Iterable[int] | None = None) -> None:
        self._run = run
        self._folds = folds
        self._among = among
        # For each op the row that stands for it, for other rows the row itself.
        self.stands: Ints = self._outermost() if folds else np.arange(len(run))

    def ops_of(self, row: int) -> list[int]:
        """Return the ops that a row stands for: those of a composite or a call, or itself."""
        kind = int(self._run.columns.kind[row])
        if kind == COMPOSITE:
            return self._ops_by_composite.get(row, [])
        if kind == MODULE:
            inside = self._run.rows_in(row)
            return [kid for kid in inside if self._run.columns.kind[kid] == OP]
        return [row]

    def is_shown(self, row: int) -> bool:
        """Return whether an op, or a composite, is shown by itself."""
        if int(self._run.columns.kind[row]) == COMPOSITE:
            return row in self._ops_by_composite
        return int(self.stands[row]) == row

    def is_folded_call(self, row: int) -> bool:
        """Return whether a call stands for its ops: of a module of torch.nn without calls inside.

        Of the classes of modules only the names are recorded; where their code lies says whose
        they are.
        """
        c = self._run.columns
        inside = self._run.rows_in(row)
        if not self._folds or c.error[row] >= 0 or not inside:
            return False
        if any(c.kind[kid] not in OF_OPS or self._stands_out[kid] for kid in inside):
            return False
        above = int(c.place[row])
        return all(self._is_of_torch_nn(int(c.place[kid]), above) for kid in inside)

    def _is_of_torch_nn(self, place: int, above: int) -> bool:
        """Return whether the code that a call runs, on the way to a place, is of torch.nn."""
        known = self._places.get((place, above))
        if known is None:
            places = self._run.columns.places
            at = place
            while at >= 0 and places[at].parent not in (above, -1):
                at = places[at].parent
            is_inside = at >= 0 and at != above and places[at].parent == above
            file = places[at].file.replace("\\", "/") if is_inside else ""
            known = self._places[place, above] = "/torch/nn/" in file
        return known

    @cached_property
    def _places(self) -> dict[tuple[int, int], bool]:
        return {}

    @cached_property
    def _ops_by_composite(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        is_op = self._run.columns.kind == OP
        for row in np.flatnonzero(is_op & (self.stands != np.arange(len(is_op)))).tolist():
            found.setdefault(int(self.stands[row]), []).append(row)
        return found

    @cached_property
    def _stands_out(self) -> NDArray[np.bool_]:
        """Return which ops raised or gave NaN or Inf, and which composites contain one."""
        run = self._run
        c = run.columns
        found: NDArray[np.bool_] = (c.kind == OP) & (c.error >= 0)
        if (run.stats["count"] >= 0).any():
            given = output_stats(c, run.stats, run.tensors, run.tensors.value)
            found |= (c.kind == OP) & ((given["nan"] > 0) | (given["inf"] > 0))
        around = run.composite_row
        rows = np.flatnonzero(found)
        while len(rows := around[rows][around[rows] >= 0]):
            found[rows] = True
        return found

    def _outermost(self) -> Ints:
        """Return for each op the outermost composite that stands for it, else the op itself."""
        run = self._run
        rows = np.arange(len(run))
        around = run.composite_row
        if not (around >= 0).any():
            return rows
        may_stand = ~self._stands_out
        if self._among is not None:
            shown = np.zeros(len(run), dtype=bool)
            for row in self._among:
                shown[[row, *run.subtree(row)]] = True
            may_stand &= shown
        found, at = rows, around
        while (at >= 0).any():
            found = np.where((at >= 0) & may_stand[at], at, found)
            at = np.where(at >= 0, around[at], -1)
        return np.where(run.columns.kind == OP, found, rows)
