"""Drop events past `Limits(events=...)`, except the ends of calls that were open before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from clew.events.vocabulary import COMPOSITE, MODULE
from clew.record.module_registry import ModuleName
from clew.stream.records import END, EVENT_FIELDS, EVENT_ROW, NativeRows


class EventLimit:
    """Counts events up to a limit; `on_reached` is called when the recording ends at it."""

    def __init__(self, most: float, on_reached: Callable[[], None]) -> None:
        self.most = most
        self.on_reached = on_reached
        self._recorded = 0
        # The newest event within the limit, once it was reached.
        self._newest = -1.0
        # The exception that ends the block, if it came past the limit and is not handed over yet.
        self._crash: int | None = None

    @property
    def is_reached(self) -> bool:
        """Return whether the limit is reached."""
        return self._recorded >= self.most

    @property
    def is_over(self) -> bool:
        """Return whether nothing more comes, not even the exception that ends the block."""
        return self.is_reached and self._crash is None

    def let_in(self, crash: int) -> None:
        """Admit the exception that ends the block."""
        self._crash = crash

    def has(self, event: int) -> bool:
        """Return whether an event is within the limit, once that was reached."""
        return event <= self._newest

    def first_ended(
        self, events: list[Any], native: NativeRows | None
    ) -> tuple[list[Any], NativeRows | None]:
        """Leave out events of the native engine that ended past the limit; count the others.

        Events of Python that ended before those are within the limit too. Calls that were open when
        the limit was reached stay, as they contain events within it.
        """
        if native is None or self.most == math.inf:
            return events, native
        rows = np.frombuffer(native.events, EVENT_ROW)
        open_calls = np.frombuffer(native.open_calls, EVENT_ROW)
        ids = np.append(rows["id"], np.array(events[::EVENT_FIELDS], np.int64))
        ends = np.append(rows["end"], np.array(events[END::EVENT_FIELDS], np.int64))
        room = max(0, int(self.most) - self._recorded)
        is_first = np.zeros(len(ends), bool)
        is_first[np.argsort(ends, kind="stable")[:room]] = True
        self._newest = max([self._newest, *ids[is_first].tolist()])
        if len(ends) >= room:
            open_calls = open_calls[open_calls["id"] <= self._newest]
        was_open = np.isin(rows["kind"], (MODULE, COMPOSITE)) & (rows["id"] <= self._newest)
        within = is_first[: len(rows)]
        self._recorded += int(within.sum())
        kept = rows[within | was_open]
        within_limit = native._replace(events=kept.tobytes(), open_calls=open_calls.tobytes())
        return events, within_limit

    def within(self, events: list[Any]) -> list[Any]:
        """Return those of some events that are within the limit.

        Past the limit, add the ends of calls that were open when it was reached, and the exception
        that ends the block.
        """
        if self.most == math.inf:
            return events
        room = EVENT_FIELDS * max(0, int(self.most) - self._recorded)
        first, rest = events[:room], events[room:]
        self._newest = max([self._newest, *first[::EVENT_FIELDS]])
        self._recorded += len(first) // EVENT_FIELDS
        for at in range(0, len(rest), EVENT_FIELDS):
            event, subject = rest[at : at + 2]
            was_open = self.has(event) and isinstance(subject, ModuleName)
            if was_open or event == self._crash:
                first += rest[at : at + EVENT_FIELDS]
        self._crash = None
        return first
