"""What the facts of later events need of earlier ones.

Input and output: arrays that `derive` and its parts append to and read. Its size does not grow with
the run: what later events cannot need is dropped.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Ints
from clew.run.address_counts import AddressCounts
from clew.run.lookup import Interned, Rows
from clew.run.place_facts import PlaceFacts

# How much of the past is kept: ops whose autograd graph may be alive (per thread), events that may
# have made a value, calls that a later event may lie in, steps begun.
MOST_MAKERS = 1 << 20
MOST_EVENTS = 1 << 18
MOST_CALLS = 1 << 16
MOST_MARKS = 1 << 16
# In a run with steps, a writer keeps the last steps, and at least this many events.
_RECENT_STEPS = 3
_RECENT_EVENTS = 1 << 12


class State:
    """What facts of later events need of earlier ones; its size does not grow with the run."""

    def __init__(self) -> None:
        self.places = PlaceFacts()
        self.paths = Interned()
        self.prefixes = Interned()
        self.counts = AddressCounts()
        # Ids of the events that begin a step or a named prefix block, and what they begin.
        self.steps = Rows(("id", "step"))
        self.stretches = Rows(("id", "prefix"))
        # Module calls that events may lie in, by id.
        self.calls = Rows(("id", "path", "place", "parent", "checkpoint"))
        # Composites that events may lie in, by id: the module call each ran in, and its index
        # among the events of its address.
        self.composites = Rows(("id", "call", "index"))
        # The module of each event that may have made a value, by id.
        self.events = Rows(("id", "owner", "path"), MOST_EVENTS)
        # Values that events may take, by number.
        self.values = Rows(("number", "producer", "name", "meta"))
        self.value_count = 0
        # thread -> ops that made autograd nodes, in order of the numbers of those
        self.makers: dict[int, Rows] = {}

    def forget(self, gone: Ints, still_open: Ints) -> None:
        """Drop what later events do not need, so that the state stays small in a long run.

        Later events take none of the values `gone`, and may lie in the calls `still_open`. Of what
        is older than the last two steps, including autograd graphs, only the newest is kept.
        """
        self.values.keep(~np.isin(self.values["number"], gone))
        if len(self.steps) < _RECENT_STEPS:
            return
        since = int(self.steps["id"][-_RECENT_STEPS])
        oldest = min(since, int(still_open.min(initial=since)))
        for marks in (self.steps, self.stretches):
            # Including the one that is in effect at the beginning.
            first = int(np.searchsorted(marks["id"], oldest, "right")) - 1
            marks.keep(slice(max(0, first), None))
        for table in (self.calls, self.composites):
            ids = table["id"]
            table.keep((ids >= since) | np.isin(ids, still_open))
        for table in (self.events, *self.makers.values()):
            wanted_rows = table["id"] >= since
            wanted_rows[-_RECENT_EVENTS:] = True
            if table is self.events:
                wanted_rows |= np.isin(table["id"], self.values["producer"])
            table.keep(wanted_rows)
