"""Collect the records of events from the observers until they are handed over."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.record.foreign import Foreign

# Events handed over at a time: few enough to stay small, enough to amortise the call.
_BATCH = 1 << 14


class EventBuffer:
    """Event ids and event records; at most about `batch` of them before they are handed over."""

    def __init__(self, batch: float = math.inf) -> None:
        self.ids: Iterator[int] = itertools.count()
        self.events: list[Any] = []
        # Appends the fields of an event.
        self.push: Callable[[tuple[Any, ...]], None] = self.events.extend
        # Records are handed over whenever an event id has all of these bits.
        self.batch_bits = _batch_bits(batch)
        # Attributes noted of modules and optimizers. They are read again once a turn, which ends
        # with every step and hand-over.
        self.attributes: list[Any] = []
        self.turn = [0]
        # What other processes recorded.
        self.foreign: list[Foreign] = []
        # Whether events were handed over before.
        self.was_taken = False

    def next_id(self) -> int:
        """Return the id that the next event gets."""
        peek: Any = getattr(self.ids, "peek_id", None)
        return int(repr(self.ids)[len("count(") : -1] if peek is None else peek())

    def is_empty(self) -> bool:
        """Return whether no event was recorded so far."""
        if isinstance(self.ids, itertools.count):
            return not self.events and not self.was_taken
        return self.next_id() == 0  # events that the native engine has are not here

    def tell(self, on_end: Callable[[tuple[Any, ...]], None]) -> None:
        """Call a function with each record that is pushed."""
        extend = self.events.extend

        def push(record: tuple[Any, ...]) -> None:
            extend(record)
            on_end(record)

        self.push = push

    def take(self) -> tuple[list[Any], list[Any]]:
        """Remove and return the records of events, and the noted attributes.

        Records that other threads append meanwhile stay for the next call.
        """
        events = self.events[:]
        del self.events[: len(events)]
        self.was_taken = self.was_taken or bool(events)
        attributes, self.attributes = self.attributes, []
        self.turn[0] += 1
        return events, attributes


def _batch_bits(most: float) -> int:
    """Return the low bits of the last id of a batch of at most so many events."""
    size = _BATCH
    while size > max(most, 1):
        size >>= 1
    return size - 1
