"""Encode values as columns: tokens become numbers, writes to memory become new values.

A tensor that shares memory with one that was written to is a new value from then on. Its producer
is the op that wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import record
from clew.events.columns import VALUE_COLUMNS, Ints
from clew.record.record_tables import RecordTables
from clew.record.storages import LiveMemory, outside_memory, own_memory
from clew.stream.records import SAME, VALUE_FIELDS, NumberedToken, Records, Token, tokens_in

if TYPE_CHECKING:
    from clew.record.native_rows import NativeNumbers

# A thread records an event with a token it has made within so many hand-overs, and so many values
# of each are remembered for it.
_RECENT = 4
_RECENT_VALUES = 1024
# At least so many writes to one memory are remembered.
_SLACK = 8


class ValueColumns:
    """The values of one batch after the other: their columns, numbers and memory."""

    def __init__(self, tables: RecordTables) -> None:
        self._tables = tables
        self._memory = LiveMemory()
        # Columns of the batch that is being made, but for values of the native engine, which come
        # first; and how many values came before all of these.
        self.columns: dict[str, list[int]] = {}
        self._first = 0
        self.native: dict[str, Ints] = {}
        self._native_numbers: NativeNumbers | None = None
        # id of a token -> number of its value
        self.numbers: dict[int, int] = {}
        # value -> (storage, meta, grad, name, version, producer), for values that may still be used
        self.alive: dict[int, tuple[int, int, int, int, int, int]] = {}
        # Tokens that another thread may have made and not yet used in an event.
        self._recent: deque[list[Token]] = deque(maxlen=_RECENT)
        # storage -> writes to it in order: (the value written, its version, the event that wrote,
        # whether autograd follows it)
        self.writes: dict[int, list[tuple[int, int, int, int]]] = {}
        # (value, newest write to its memory) -> the value it has become
        self._renewed: dict[tuple[int, int], int] = {}
        # value written by an event not yet encoded -> (storage, version, event)
        self.unencoded: dict[int, tuple[int, int, int]] = {}

    def begin(self, records: Records) -> None:
        """Begin a batch with the values of some records."""
        first = self._first + len(self.columns.get("version", ()))
        self.columns = {name: [] for name in VALUE_COLUMNS}
        self.native = {}
        if records.native is not None:
            self.native = self.native_numbers.learn(records.native, first)
            first += len(self.native["version"])
        self._first = first
        self._memory.learn(records)
        tokens, versions, storages, *facts, grads, producers, names, references = (
            records.values[field::VALUE_FIELDS] for field in range(VALUE_FIELDS)
        )
        given = {*self.numbers, *map(id, tokens)}
        for storage in storages:
            if isinstance(storage, tuple) and id(storage) not in given:
                self.numbers[id(storage)] = self.lost(storage)
                given.add(id(storage))
        first = self.next_number
        numbers = range(first, first + len(tokens))
        self.numbers.update(zip(map(id, tokens), numbers, strict=True))
        metas = self._tables.many_metas(list(zip(tokens, *facts, strict=True)))
        named = self._tables.many_value_names(names)
        places: list[int] = list(range(own_memory(first), own_memory(numbers.stop), 2))
        shared: dict[int, int] = {}
        for at, storage in enumerate(storages):
            if storage is None:
                versions[at] = 0
            elif type(storage) is int:
                places[at] = outside_memory(storage)
                if versions[at] is None:
                    versions[at] = -1
            else:
                base = self.numbers[id(storage)]
                places[at] = places[base - first] if base >= first else self.alive[base][0]
                shared[at] = base
        if shared:
            self._follow_shared(shared, first, places, versions, producers)
        columns = self.columns
        for name, added in (
            ("version", versions), ("storage", places), ("meta", metas), ("grad", grads),
            ("producer", producers), ("value_name", named),
            ("nbytes", self._memory.sizes(places, first, metas, self._tables.meta_bytes())),
        ):  # fmt: skip
            columns[name] += added
        columns["freed"] += [-1] * len(tokens)
        self.alive.update(
            zip(numbers, zip(places, metas, grads, named, versions, producers, strict=True),
                strict=True)
        )  # fmt: skip
        self._memory.hold(places, references)

    def _follow_shared(
        self, shared: dict[int, int], first: int, places: list[int], versions: list[Any],
        producers: list[int],
    ) -> None:  # fmt: skip
        """Set the versions of values that share memory; `shared` maps each to its base's number."""
        for at, base in shared.items():
            if producers[at] == SAME:
                if base >= first:
                    version, producer = versions[base - first], producers[base - first]
                else:
                    version, producer = self.alive[base][4:]
                versions[at], producers[at] = self._newest(places[at], version, producer)
            elif versions[at] is None:
                versions[at] = -1
            else:
                self.unencoded[first + at] = (places[at], versions[at], producers[at])

    def _newest(self, storage: int, version: int, producer: int) -> tuple[int, int]:
        """Return the version that writes have given some memory, and the event of the last one."""
        for _, written, writer, _ in self.writes.get(storage, ())[-1:]:
            version, producer = written, writer
        for place, written, writer in self.unencoded.values():
            if place == storage:
                version, producer = written, writer
        return version, producer

    @property
    def next_number(self) -> int:
        """Return the number that the next value gets."""
        return self._first + len(self.columns["version"])

    @property
    def native_numbers(self) -> NativeNumbers:
        """Return the numbers that rows and values of the native engine have here."""
        if self._native_numbers is None:
            self._native_numbers = record.NativeNumbers(self._tables)
        return self._native_numbers

    def number(self, token: Token) -> int | None:
        """Return the number of the value of a token, None if it has none."""
        if type(token) is NumberedToken:
            return self.native_numbers.value(token.number)
        return self.numbers.get(id(token))

    def arrays(self) -> dict[str, Any]:
        """Return the columns of all values of the batch."""
        if not self.native:
            return dict(self.columns)
        return {
            name: np.concatenate((self.native[name], np.array(column, np.int64)))
            for name, column in self.columns.items()
        }

    def append(
        self, storage: int, version: int, meta: int, grad: int, producer: int, name: int
    ) -> int:
        """Add one value, and return its number."""
        number = self.next_number
        columns = self.columns
        columns["version"].append(version)
        columns["storage"].append(storage)
        columns["meta"].append(meta)
        columns["grad"].append(grad)
        columns["producer"].append(producer)
        columns["value_name"].append(name)
        columns["nbytes"].append(
            self._memory.size(storage, number, self._tables.meta_bytes()[meta])
        )
        columns["freed"].append(-1)
        self.alive[number] = (storage, meta, grad, name, version, producer)
        return number

    def append_foreign(
        self, storages: dict[int, int], storage: int, version: int, meta: int, grad: int, name: int
    ) -> int:  # fmt: skip
        """Add one value of another process; `storages` maps its memory to memory here."""
        place = storages.setdefault(storage, own_memory(self.next_number))
        return self.append(place, version, meta, grad, -1, name)

    def lost(self, token: Token) -> int:
        """Add a value of which only the shape is known: its thread was too late with its event."""
        meta = self._tables.meta((token, None, "unknown", None, None))
        return self.append(own_memory(self.next_number), 0, meta, 0, -1, -1)

    def as_of(self, value: int, event: int) -> int:
        """Return the value a tensor has when an event begins, a new one if its memory changed."""
        storage, meta, grad, name, _, _ = self.alive[value]
        before = (write for write in reversed(self.writes[storage]) if write[2] < event)
        head, version, producer, followed = next(before, (-1, 0, 0, 0))
        if head <= value:
            self._credit(value, head, producer)
            return value
        renewed = self._renewed.get((value, head))
        if renewed is None:
            # A tensor that requires grad was written to this memory: all tensors on it do now.
            grad = grad or followed
            renewed = self.append(storage, version, meta, grad, producer, name)
            self._renewed[value, head] = renewed
        return renewed

    def _credit(self, value: int, head: int, producer: int) -> None:
        """Set the write as producer of a value that has none and was met after the write."""
        at = value - self._first
        if head >= 0 and at >= 0 and self.columns["producer"][at] == -1:
            self.columns["producer"][at] = producer

    def wrote(self, values: Iterable[int]) -> None:
        """Remember the writes of an event that returned these values."""
        for value in values:
            write = self.unencoded.pop(value, None)
            if write is not None:
                storage, version, producer = write
                head = (value, version, producer, self.alive[value][2])
                self.writes.setdefault(storage, []).append(head)

    def freed(self, records: Records) -> Ints:
        """Mark values whose memory was freed; return those of earlier batches, with the op."""
        earlier: list[tuple[int, int]] = []
        freed = self._memory.freed(records)
        if records.native is not None:
            values, events = self.native_numbers.freed(records.native)
            start = self._first - len(self.native["freed"])
            is_here = values >= start
            self.native["freed"][values[is_here] - start] = events[is_here]
            earlier += zip(values[~is_here].tolist(), events[~is_here].tolist(), strict=True)
        for number, event in freed:
            if number >= self._first:
                self.columns["freed"][number - self._first] = event
            else:
                earlier.append((number, event))
        found: Ints = np.array(earlier, np.int64).reshape(-1, 2).T
        return found

    def forget(self, records: Records, used_elsewhere: Iterable[int], oldest: float) -> Ints:
        """Forget values that no later record can use, and return their numbers.

        `oldest` is the first event that is still open.
        """
        if records.is_shared:
            self._recent.append(records.values[::VALUE_FIELDS][-_RECENT_VALUES:])
        else:
            self._recent.clear()
        before, numbers = self.alive, self.numbers
        # The value of a token that another thread made just now comes with the next records.
        mentioned = map(id, tokens_in([*records.surviving, *self._recent]))
        self.numbers = {token: numbers[token] for token in mentioned if token in numbers}
        used = {*self.numbers.values(), *used_elsewhere}
        self.alive = {number: before[number] for number in used}
        storages = {facts[0] for facts in self.alive.values()}
        self.writes = {
            storage: _since(self.writes[storage], oldest)
            for storage in storages
            if storage in self.writes
        }
        self._memory.forget(storages)
        self.unencoded.clear()
        self._renewed.clear()
        gone = np.array([number for number in before if number not in used], np.int64)
        if records.native is None:
            return gone
        return np.append(gone, self.native_numbers.gone(records.native))


def _since(writes: list[tuple[int, int, int, int]], event: float) -> list[Any]:
    """Return the writes to some memory that an event, or one after it, may see.

    Those are the last one before it and all after it; and a few more, for events of other threads.
    """
    before = sum(write[2] < event for write in writes)
    return writes[max(0, before - _SLACK) :]
