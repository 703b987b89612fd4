"""Follow the memory of tensors: its number, its size, and before which op it was freed.

Memory that an op made has an odd number, from the first value on it. Memory that no recorded op
made has an even one, from the number that the tensor table gave it.
"""

from __future__ import annotations

import numpy as np

from clew.stream.records import EVENT_FIELDS, SEEN, Records


def own_memory(value: int) -> int:
    """Return the number of the memory that this value is the first on."""
    return 2 * value + 1


def outside_memory(number: int) -> int:
    """Return the number of memory that no recorded op made."""
    return 2 * number


class Memory:
    """The size of the memory of live tensors, and how many tensors lie on each."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        # id of a weak reference -> the memory of its tensor. The tensor table holds the reference
        # itself, so that it can drop it when torch asks for that.
        self._references: dict[int, int] = {}
        # memory -> tensors on it whose end is reported, and whether the memory is freed with the
        # last of them: autograd may keep memory by itself
        self._holders: dict[int, tuple[int, bool]] = {}
        self._last_event = -1

    def learn(self, records: Records) -> None:
        """Learn the size of memory that no recorded op made."""
        self._sizes |= {outside_memory(number): size for number, size in records.sizes.items()}

    def size(self, storage: int, value: int, needed: int) -> int:
        """Return the bytes of the memory of a new value, -1 where they are not known.

        `needed` is what a tensor of its meta needs: memory is as large as the first tensor on it.
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
        """Count tensors on their memory, under the ids of their weak references.

        `follows` says of each whether autograd follows it.
        """
        holders = self._holders
        for storage, reference, is_followed in zip(storages, references, follows, strict=True):
            if reference is not None:
                self._references[reference] = storage
                count, is_all = holders.get(storage, (0, storage % 2 == 1))
                holders[storage] = (count + 1, is_all and not is_followed)

    def freed(self, records: Records) -> list[tuple[int, int]]:
        """Return the first value on each freed memory, and the op before which it was freed."""
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
        """Forget the sizes of all memory but these."""
        self._sizes = {at: size for at, size in self._sizes.items() if at in storages}
