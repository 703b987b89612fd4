"""Find the forward op that each op of a backward pass belongs to, by the numbers of autograd nodes.

Input: the events of a batch and the ops of earlier batches whose graphs may be alive. Output: for
each event, the facts of its forward op. Must not know: which module an event belongs to.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Ints
from clew.events.vocabulary import BACKWARD, NODE_RUN, RECOMPUTED, node_made
from clew.run.derive_state import State
from clew.run.event_rows import EventRows
from clew.run.lookup import Rows, find

# Facts of an op that made an autograd node: the number it read; id, place, owner and module path of
# the forward op that it is or belongs to; the call that made the checkpoint that contains it.
MAKER = ("made", "id", "place", "owner", "path", "checkpoint")
_NO_MAKERS = Rows(MAKER, 0)


class ForwardOps:
    """The forward ops of the events of one batch."""

    def __init__(self, events: EventRows, state: State) -> None:
        self._events = events
        self._state = state
        number = events.number
        in_backward = events.is_run & ((events.phase == BACKWARD) | (number >= RECOMPUTED))
        # Ops that a node runs, and the number each op read; with `create_graph` backward ops make
        # nodes as well, for a backward of the backward.
        self._runs: Ints = np.flatnonzero(in_backward & (number >= 0))
        made = np.where(number >= 0, node_made(number), 0)
        self.made: Ints = np.where(in_backward, made, number)
        self.makers: Ints = np.flatnonzero(events.is_op & (~in_backward | (self.made > 0)))
        # For the op that made the node that an op runs: its row here, or its facts.
        self.maker: Ints = events.nothing()
        self.known: dict[str, Ints] = {name: events.nothing() for name in MAKER}
        self._find_makers()
        # The row of the forward op of a backward op, where it is in this batch.
        self.link: Ints = self._follow_forward()

    def _find_makers(self) -> None:
        """Find the forward op that made each autograd node that runs.

        An op that makes node n afterwards reads n + 1 as the next number; the first op to read it
        is the maker. Numbers count up per thread, so ops of other threads are matched within their
        thread; those of a thread that has made no node itself run nodes of any thread. A node made
        after its op had run, as for a write to a view, has no reader: it belongs to the op before
        it.
        """
        threads = sorted(
            {*self._state.makers, *np.unique(self._events.thread[self.makers]).tolist()}
        )
        unknown = self._match(threads, self._runs, exact=True)
        self._match(threads, unknown, exact=False)

    def _match(self, threads: list[int], unknown: Ints, exact: bool) -> Ints:
        """Match ops that nodes run with the ops that made the nodes; return those not matched."""
        events = self._events
        for thread in threads:
            of = events.thread[unknown]
            at_home = (of == thread) | (of == 0) | ~np.isin(of, threads)
            rows, unknown = unknown[at_home], unknown[~at_home]
            if not len(rows):
                continue
            before = self._state.makers.get(thread, _NO_MAKERS)
            mine = self.makers[events.thread[self.makers] == thread]
            mine = mine[np.argsort(self.made[mine], kind="stable")]
            wanted = (events.number[rows] & NODE_RUN) + 1
            early, late = before["made"], self.made[mine]
            if exact:
                old, new = find(early, wanted), find(late, wanted)
                new[old >= 0] = -1
            else:
                old, new = (np.searchsorted(n, wanted, "left") - 1 for n in (early, late))
                old[new >= 0] = -1
            self.maker[rows[new >= 0]] = mine[new[new >= 0]]
            for name in MAKER:
                self.known[name][rows[old >= 0]] = before[name][old[old >= 0]]
            unknown = np.concatenate([unknown, rows[(old < 0) & (new < 0)]])
        return unknown

    def _follow_forward(self) -> Ints:
        """Replace a backward op as the maker of another backward op by the forward op it belongs
        to.
        """
        backward = self._events.phase == BACKWARD
        link = np.where(backward, self.maker, -1)
        while True:
            again = np.flatnonzero((link >= 0) & backward[link])
            if not len(again):
                break
            up = link[again]
            for name in MAKER:
                self.known[name][again] = self.known[name][up]
            # A link to itself or to a later op would never end.
            link[again] = np.where(link[up] < up, link[up], -1)
        return link
