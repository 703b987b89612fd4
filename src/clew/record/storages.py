"""The memory that tensors lie on: its number, its size, and before which op it was seen to be gone.

Memory is numbered by the first value on it, or, where that came from outside, as the table of
tensors has numbered it: odd and even numbers.
"""

from __future__ import annotations

import numpy as np

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

    def size(self, storage: int, value: int, needed: int) -> int:
        """Return the bytes of the memory that a new value has, -1 where they are not known.

        `needed` is what a tensor of its look needs: memory is as large as the first tensor on it.
        """
        if storage == own_memory(value):
            self._sizes[storage] = needed
            return needed
        return self._sizes.get(storage, -1)

    def sizes(
        self, storages: list[int], first: int, metas: list[int], needed: list[int]
    ) -> list[int]:
        """Return the bytes of the memory of new values, numbered from `first` on."""
        own = own_memory(first)
        known = self._sizes
        known.update(
            (storage, needed[meta])
            for at, (storage, meta) in enumerate(zip(storages, metas, strict=True))
            if storage == own + 2 * at
        )
        return [known.get(storage, -1) for storage in storages]

    def hold(self, storages: list[int], references: list[int | None], follows: list[int]) -> None:
        """Learn of tensors, and of the ids of what is told to be gone when each of them is.

        `follows` says whether autograd follows each.
        """
        holders = self._holders
        for storage, reference, is_followed in zip(storages, references, follows, strict=True):
            if reference is not None:
                self._references[reference] = storage
                count, is_all = holders.get(storage, (0, storage % 2 == 1))
                holders[storage] = (count + 1, is_all and not is_followed)

    def freed(self, records: Records) -> list[tuple[int, int]]:
        """The memory that is gone, by the first value on it, and the op before which it was."""
        events = records.events[::EVENT_FIELDS]
        self._last_event = max(events, default=self._last_event)
        if not records.gone:
            return []
        gone: list[int] = []
        values: list[int] = []
        for at, reference in enumerate(records.gone):
            storage = self._references.pop(id(reference), -1)
            count, is_all = self._holders.pop(storage, (0, False))
            if count > 1:
                self._holders[storage] = (count - 1, is_all)
            elif is_all:
                gone.append(at)
                values.append(storage // 2)
        seen = [
            (event, count if type(count) is int else count[0])
            for event, count in zip(events, records.events[SEEN::EVENT_FIELDS], strict=True)
            if count is not None
        ]
        by_id = np.array(sorted(seen), np.int64).reshape(-1, 2)
        ids = np.append(by_id[:, 0], self._last_event + 1)
        counts = np.maximum.accumulate(by_id[:, 1])
        before = ids[np.searchsorted(counts, gone, side="right")].tolist()
        return list(zip(values, before, strict=True))

    def forget(self, storages: set[int]) -> None:
        """Forget all memory but some."""
        self._sizes = {at: size for at, size in self._sizes.items() if at in storages}
