"""How much may be kept: the limits of a recording, counted down as values come.

What a limit leaves out is told once, as a gap with the remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from clew.events.model import Gap
from clew.request.limits import Limits

# Data handed to the sink at a time: what waits in memory is a few times this, however large or
# many the tensors of a step are.
_BATCH_BYTES = 16 << 20

# What is not kept, by the limit that was reached.
_LIMITED = {
    "bytes": "the data of values",
    "elements": "the data of large values",
    "sample": "the data of most values",
    "seconds": "the data and statistics of values",
}


class Budget:
    """The room there is for values."""

    def __init__(self, limits: Limits, on_gap: Callable[[Gap], Any]) -> None:
        self._limits = limits
        self._on_gap = on_gap
        self._bytes = 0
        # Of those, the bytes that are gone again; told by another thread.
        self._given_back = 0
        # Bytes that wait to be handed over.
        self.pending = 0
        self._count = 0
        # Whether there are data waiting to be written: then it helps to do some of the work here.
        self.is_behind: Callable[[], bool] = lambda: False
        self._until = None if limits.seconds is None else time.monotonic() + limits.seconds

    def is_over(self) -> bool:
        """Whether the time for values is up."""
        over = self._until is not None and time.monotonic() > self._until
        if over:
            self._limited(f"{self._limits.seconds} seconds", "seconds")
        return over

    def has_room(self, elements: int, size: int) -> bool:
        """Whether the data of a value, `size` bytes, is within the limits; it counts if it is."""
        limits = self._limits
        self._count += 1
        if limits.elements is not None and elements > limits.elements:
            self._limited(f"{limits.elements} elements a value", "elements")
            return False
        if limits.sample > 1 and self._count % limits.sample != 1:
            self._limited(f"one value in {limits.sample}", "sample")
            return False
        if limits.bytes is not None and self._bytes - self._given_back + size > limits.bytes:
            self._limited(f"{limits.bytes} bytes", "bytes")
            return False
        self._bytes += size
        self.pending += size
        return True

    def give_back(self, size: int) -> None:
        """Make room: so many bytes of what was kept are gone."""
        self._given_back += size

    @property
    def is_full(self) -> bool:
        """Whether so much data has gathered that it should be handed over."""
        return self.pending >= min(_BATCH_BYTES, self._limits.queue)

    def _limited(self, what: str, name: str) -> None:
        self._on_gap(
            Gap(_LIMITED[name], "", f"the limit of {what} was reached",
                f"raise it with clew.trace(limits=Limits({name}=...))")
        )  # fmt: skip
