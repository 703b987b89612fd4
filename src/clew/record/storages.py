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


class LiveMemory:
    """The size of the memory of live tensors, and the references that are told when it is freed."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        # id of a weak reference -> the memory whose end it tells. The tensor table holds the
        # reference itself.
        self._references: dict[int, int] = {}
        # memory that no recorded op made -> the first value on it
        self._first_values: dict[int, int] = {}
        self._last_event = -1

    def learn(self, records: Records) -> None:
        """Learn the size of memory that no recorded op made."""
        for number, (size, reference) in records.sizes.items():
            self._sizes[outside_memory(number)] = size
            self._references[reference] = outside_memory(number)

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
        for at, storage in enumerate(storages):
            if storage % 2 == 0:
                self._first_values.setdefault(storage, first + at)
        return [known.get(storage, -1) for storage in storages]

    def hold(self, storages: list[int], references: list[int | None]) -> None:
        """Learn which memory is freed with which references, by their ids."""
        self._references.update(
            (reference, storage)
            for storage, reference in zip(storages, references, strict=True)
            if reference is not None
        )

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
            own = storage // 2 if storage % 2 else -1
            value = self._first_values.pop(storage, own) if storage >= 0 else -1
            if value >= 0:
                gone.append(at)
                values.append(value)
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
