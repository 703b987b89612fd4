"""Count values against the limits of a recording.

The first value that a limit leaves out becomes a gap with its remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from clew.events.model import Gap
from clew.request.limits import Limits

# Bytes of data handed to the sink at a time: many, as a batch costs the writer as much as a few
# megabytes do. The data that waits in memory is a few times this, however large or many the tensors
# of a step are.
_BATCH_BYTES = 32 << 20

# What is not recorded once a limit is reached, by the name of the limit.
_LIMITED = {
    "bytes": "the data of values",
    "elements": "the data of large values",
    "sample": "the data of most values",
    "seconds": "the data and statistics of values",
}


class Budget:
    """The bytes, elements and seconds that are left for values."""

    def __init__(self, limits: Limits, on_gap: Callable[[Gap], Any]) -> None:
        self._limits = limits
        self._on_gap = on_gap
        self._bytes = 0
        # Those of them whose data was deleted again; another thread counts them.
        self._given_back = 0
        # Bytes that have not been handed to the sink yet.
        self.pending = 0
        self._count = 0
        # Called with bytes that were deleted, where the native engine counts them.
        self.on_give_back: Callable[[int], None] | None = None
        # Returns the bytes that the native engine has kept and not handed over.
        self.native_pending: Callable[[], int] = lambda: 0
        # Returns whether data waits to be written: then this thread does some of the work.
        self.is_behind: Callable[[], bool] = lambda: False
        self._until = None if limits.seconds is None else time.monotonic() + limits.seconds

    def is_over(self) -> bool:
        """Return whether the time for values is up."""
        over = self._until is not None and time.monotonic() > self._until
        if over:
            self._limited(f"{self._limits.seconds} seconds", "seconds")
        return over

    def has_room(self, elements: int, size: int) -> bool:
        """Return whether `size` bytes of data are within the limits, and count them if so."""
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
        """Make room: so many bytes of recorded data were deleted."""
        self._given_back += size
        if self.on_give_back is not None:
            self.on_give_back(size)

    def native_limits(self) -> tuple[int, int, int, int, int]:
        """Return the limits as the native engine counts them, which keeps values itself.

        Those are the bytes that may wait, the bytes, elements, one in how many values, and until
        when; -1 for no limit.
        """
        limits = self._limits
        until = -1
        if limits.seconds is not None:
            until = time.monotonic_ns() + int(limits.seconds * 1e9)
        most = -1 if limits.bytes is None else limits.bytes
        elements = -1 if limits.elements is None else limits.elements
        return self._batch_bytes, most, elements, limits.sample, until

    def reached(self, which: int) -> None:
        """Report limits that the native engine has reached, a bit for each."""
        limits = self._limits
        for bit, what, name in (
            (1, f"{limits.bytes} bytes", "bytes"),
            (2, f"{limits.elements} elements a value", "elements"),
            (4, f"one value in {limits.sample}", "sample"),
            (8, f"{limits.seconds} seconds", "seconds"),
        ):
            if which & bit:
                self._limited(what, name)

    @property
    def is_full(self) -> bool:
        """Return whether enough data waits that it should be handed to the sink."""
        return self.pending + self.native_pending() >= self._batch_bytes

    @property
    def _batch_bytes(self) -> int:
        # Half of what may wait: one batch is written while the next fills.
        return min(_BATCH_BYTES, max(self._limits.queue // 2, 1))

    def _limited(self, what: str, name: str) -> None:
        self._on_gap(
            Gap(_LIMITED[name], "", f"the limit of {what} was reached",
                f"raise it with clew.trace(limits=Limits({name}=...))")
        )  # fmt: skip
