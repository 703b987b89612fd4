"""Reuse the memory of tensor copies that nobody references any more.

Fresh memory is slow: the system maps it page by page and clears each. `take` returns an array of
bytes; when the last reference to it is gone, on whichever thread, its memory serves the next array
of about the same size.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any
from weakref import ref

import numpy as np

from clew.events.statistics import Numbers

# Sizes are rounded up to a multiple of this, so that similar tensors share memory.
_STEP = 64 << 10
# Bytes of unused memory that may wait for reuse.
_MOST_IDLE = 64 << 20


class Buffers:
    """A pool of memory for copies."""

    def __init__(self) -> None:
        self._taking = threading.Lock()
        self._idle: dict[int, list[Numbers]] = {}
        self._idle_bytes = 0
        # Weak references to arrays that are gone, whose memory is not in `_idle` yet. A garbage
        # collection may append to it at any point, even in `take`, so this takes no lock; and no
        # Python code, in which what a signal handler raises would be lost.
        self._gone: deque[Any] = deque()
        # By the id of the reference to its array, the reference and the memory.
        self._lent: dict[int, tuple[Any, Numbers]] = {}

    def take(self, size: int) -> Numbers:
        """Return an array of so many bytes, with arbitrary content."""
        room = -(-size // _STEP) * _STEP
        with self._taking:
            self._sort_in()
            idle = self._idle.get(room)
            if idle:
                memory = idle.pop()
                self._idle_bytes -= room
            else:
                memory = np.empty(room, dtype=np.uint8)
        # `frombuffer` makes this array the base of every view and tensor made from it, so that its
        # weak reference dies only after all of them.
        array: Numbers = np.frombuffer(memory.data, np.uint8, size)
        reference = ref(array, self._gone.append)
        self._lent[id(reference)] = reference, memory
        return array

    def _sort_in(self) -> None:
        while self._gone:
            lent = self._lent.pop(id(self._gone.popleft()), None)
            if lent is None:  # an interrupt came before it was noted
                continue
            memory = lent[1]
            if self._idle_bytes + len(memory) > _MOST_IDLE:
                # Drop what waits: nobody may ask for those sizes again.
                self._idle.clear()
                self._idle_bytes = 0
            self._idle.setdefault(len(memory), []).append(memory)
            self._idle_bytes += len(memory)
