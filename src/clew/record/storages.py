"""The memory that tensors lie on: its number, its size, and before which op it was seen to be gone.

Memory is numbered by the first value on it, or, where that came from outside, as the table of
tensors has numbered it: odd and even numbers.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import Meta
from clew.stream.records import EVENT_FIELDS, SEEN, Records


def own_memory(value: int) -> int:
    """The number of the memory that a value is the first to have."""
    return 2 * value + 1


def outside_memory(number: int) -> int:
    """The number of memory that was met from outside."""
    return 2 * number


class Memory:
    """What is known of the memory of tensors that live."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        # id of a reference -> the memory of the tensor it tells of; whoever has the tensor's token
        # has the reference, so that it can be let go of when torch asks for that
        self._references: dict[int, int] = {}
        # memory -> tensors on it that are told of when they are gone, and whether it is gone with
        # the last of them: autograd holds on to memory by itself
        self._holders: dict[int, tuple[int, bool]] = {}
        self._last_event = -1

    def learn(self, records: Records) -> None:
        """Learn how large memory is that was met from outside."""
        self._sizes |= {outside_memory(number): size for number, size in records.sizes.items()}

    def size(self, storage: int, value: int, look: Meta) -> int:
        """The bytes of the memory that a new value has, -1 where they are not known."""
        if storage == own_memory(value):  # as large as the first tensor on it
            self._sizes[storage] = look.nbytes
        return self._sizes.get(storage, -1)

    def hold(self, storage: int, reference: int, is_followed: bool) -> None:
        """Learn of a tensor, and of the id of what is told to be gone when it is."""
        self._references[reference] = storage
        count, is_all = self._holders.get(storage, (0, storage % 2 == 1))
        self._holders[storage] = (count + 1, is_all and not is_followed)

    def freed(self, records: Records) -> list[tuple[int, int]]:
        """The memory that is gone, by the first value on it, and the op before which it was."""
        self._last_event = max([self._last_event, *records.events[::EVENT_FIELDS]])
        if not records.gone:
            return []
        seen_by: dict[int, int] = {}
        for at in range(0, len(records.events), EVENT_FIELDS):
            seen = records.events[at + SEEN]
            if seen is not None:
                seen_by[records.events[at]] = seen if type(seen) is int else seen[0]
        ids = sorted(seen_by)
        counts = np.maximum.accumulate(np.array([seen_by[event] for event in ids], np.int64))
        ids.append(self._last_event + 1)
        found = []
        for at, reference in enumerate(records.gone):
            storage = self._references.pop(id(reference), -1)
            count, is_all = self._holders.pop(storage, (0, False))
            if count > 1:
                self._holders[storage] = (count - 1, is_all)
            elif is_all:
                found.append((storage // 2, ids[int(np.searchsorted(counts, at, side="right"))]))
        return found

    def forget(self, storages: set[int]) -> None:
        """Forget all memory but some."""
        self._sizes = {at: size for at, size in self._sizes.items() if at in storages}
