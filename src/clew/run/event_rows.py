"""The events of a batch in order of their ids: what their other facts are derived from."""

from __future__ import annotations

import numpy as np

from clew.events.columns import Columns, Ints
from clew.events.vocabulary import COMPOSITE, OP
from clew.run.lookup import Rows, find
from clew.run.place_facts import PlaceFacts


class EventRows:
    """The events of one batch, sorted by id; `order` has their rows in the batch.

    `parent` is the module call an event ran in, also if it ran in a composite there; `composites`
    has those of earlier batches, and gets those of this one.
    """

    def __init__(self, c: Columns, places: PlaceFacts, composites: Rows) -> None:
        self.columns = c
        self.order: Ints = np.argsort(c.id, kind="stable")
        self.id: Ints = c.id[self.order]
        self.kind: Ints = c.kind[self.order]
        self.subject: Ints = c.subject[self.order]
        self.place: Ints = c.place[self.order]
        self.number: Ints = c.number[self.order]
        self.phase: Ints = places.phase[self.place]
        self.thread: Ints = places.thread[self.place]
        self.is_op = self.kind == OP
        is_composite = self.kind == COMPOSITE
        # Ops and composites: what a node of autograd may run.
        self.is_run = self.is_op | is_composite
        parent = c.parent[self.order]
        # For each composite its row in `composites`, for other events -1.
        self.composite: Ints = self.nothing()
        _learn_composites(composites, self.id[is_composite], parent[is_composite])
        self.composite[is_composite] = find(composites["id"], self.id[is_composite])
        self.parent: Ints = _calls(composites, parent)

    def nothing(self) -> Ints:
        """Return a new column that says -1 for each event."""
        return np.full(len(self.id), -1, dtype=np.int64)


def _learn_composites(composites: Rows, ids: Ints, parents: Ints) -> None:
    """Add composites with the module calls they ran in.

    One that was open comes again, and keeps its index.
    """
    if not len(ids):
        return
    known = find(composites["id"], ids)
    index = np.append(composites["index"], -1)[known]
    composites.keep(~np.isin(composites["id"], ids))
    composites.append(id=ids, call=parents, index=index)
    composites.keep(np.argsort(composites["id"], kind="stable"))
    composites["call"][:] = _calls(composites, composites["call"])


def _calls(composites: Rows, parents: Ints) -> Ints:
    """Return parents, the module call around it in place of each composite."""
    at = find(composites["id"], parents)
    while (at >= 0).any():
        above = np.where(at >= 0, composites["call"][at], parents)
        # A composite began after the one around it: nesting ends.
        at = np.where(above < parents, find(composites["id"], above), -1)
        parents = above
    return parents
