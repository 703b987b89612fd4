"""Memory for copies of tensors, used again once nobody has the copy any more.

Fresh memory is slow: the system hands it out page by page and clears each. Out go arrays of
bytes; when the last reference to one is gone, on whichever thread, its memory is there for the
next of about the same size.
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
# Memory that waits to be used again, at most.
_MOST_IDLE = 64 << 20


class Buffers:
    """Memory lent out for copies."""

    def __init__(self) -> None:
        self._taking = threading.Lock()
        self._idle: dict[int, list[Numbers]] = {}
        self._idle_bytes = 0
        # Memory handed back and not yet sorted in. That happens in the midst of anything, so it
        # takes no lock.
        self._back: deque[Numbers] = deque()
        self._lent: dict[int, Any] = {}

    def take(self, size: int) -> Numbers:
        """An array of bytes, whatever they are."""
        room = -(-size // _STEP) * _STEP
        with self._taking:
            self._sort_in()
            idle = self._idle.get(room)
            if idle:
                memory = idle.pop()
                self._idle_bytes -= room
            else:
                memory = np.empty(room, dtype=np.uint8)
        # Made of a buffer, it is what every view and tensor on it holds on to.
        array: Numbers = np.frombuffer(memory.data, np.uint8, size)
        key = id(memory)

        def hand_back(_: Any, memory: Numbers = memory) -> None:
            del self._lent[key]
            self._back.append(memory)

        self._lent[key] = ref(array, hand_back)
        return array

    def _sort_in(self) -> None:
        while self._back:
            memory = self._back.popleft()
            if self._idle_bytes + len(memory) > _MOST_IDLE:
                # Sizes that nobody asks for any more make room.
                self._idle.clear()
                self._idle_bytes = 0
            self._idle.setdefault(len(memory), []).append(memory)
            self._idle_bytes += len(memory)
