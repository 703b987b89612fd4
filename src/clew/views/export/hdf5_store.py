"""A sink for `clew.trace(out="run.h5")`: events stay in memory, values go to an HDF5 file.

The file is written by the thread that `store.disk` writes native traces with. A value that is in
the file is no longer in memory: whoever asks for it reads it from there. If the file cannot be
written any more, that is said once, values are let go and the program runs on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from clew.errors import ClewError
from clew.events.columns import Ints
from clew.events.model import Gap
from clew.events.outputs import Hdf5
from clew.events.records import PARTS, Batch, Kept, Payload
from clew.store.decode import decode
from clew.store.disk import DiskStore, Surroundings
from clew.store.encode import encode
from clew.store.kept import StoredPayload
from clew.store.memory import MemoryStore
from clew.views.export.dtypes import Array
from clew.views.export.live_hdf5 import LiveHdf5, Stored
from clew.views.export.live_names import LiveNames, Occurrence

# A kill loses at most so many seconds of what nobody has flushed.
_COMMIT_SECONDS = 1.0
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_TRIES = 100_000


class Hdf5Store(DiskStore):
    """Keeps events in memory and writes values to an HDF5 file, on a thread of its own."""

    def __init__(
        self,
        file: LiveHdf5,
        path: Path,
        rank: int,
        around: Callable[[list[Any]], Surroundings],
        on_gap: Callable[[Gap], Any],
    ) -> None:
        super().__init__(path, rank, around, on_gap)
        self._memory = MemoryStore()
        self._file: LiveHdf5 | None = file
        self._names = LiveNames(self._memory.tables)
        self._lock = threading.Lock()
        self._last_commit = time.monotonic()
        self.tables = self._memory.tables
        self.kept = self._memory.kept

    @property
    def place(self) -> Path | str:
        """The file that is written."""
        return self.folder

    def arrays(self, open_calls: list[Any]) -> dict[str, Ints]:
        """Every column, with rows for calls that are still open."""
        with self._lock:
            return self._memory.arrays(open_calls)

    def _write(self, batch: Batch) -> None:
        with self._lock:
            part = self._memory.add(batch)
            open_part = self.tables.compact_open(batch.open_calls)
            self._memory.add_values(open_part)
            self._names.learn_values(self._memory.since("value_name", self._names.values))
        try:
            if self._file is not None:
                around = self._around(self.tables.nodes.rows)
                found = self._names.found(
                    part, open_part, around.places, around.modules, self._has_data
                )
                for address, occurrences in found.items():
                    self._append(self._file, address, occurrences)
                self._names.keep_only(self.tables.alive)
                if time.monotonic() - self._last_commit > _COMMIT_SECONDS:
                    self._settle()
        except Exception as fault:
            self._give_up(fault)
        for number in part.kept:
            payload = self.kept[number].payload
            if self._file is None and not isinstance(payload, StoredPayload):
                self.kept[number] = Kept(self.kept[number].stats, None)

    def _has_data(self, number: int) -> bool:
        kept = self.kept.get(number)
        return kept is not None and kept.payload is not None

    def _append(self, file: LiveHdf5, address: str, occurrences: list[Occurrence]) -> None:
        items = list(self._readable(file, address, occurrences))
        places = file.append(address, items)
        for (occurrence, recorded, _), place in zip(items, places, strict=True):
            kept = self.kept[occurrence.number]
            payload = kept.payload
            if payload is not None and type(payload) is Payload and payload.dtype != PARTS:
                fetch = partial(_fetched, file, place, recorded)
                stored = StoredPayload(recorded, payload.shape, fetch)
                self.kept[occurrence.number] = Kept(kept.stats, stored)

    def _readable(
        self, file: LiveHdf5, address: str, occurrences: list[Occurrence]
    ) -> Iterator[tuple[Occurrence, str, Array]]:
        for occurrence in occurrences:
            payload = self.kept[occurrence.number].payload
            assert payload is not None
            try:
                array = decode(payload, "array")
                recorded = str(array.dtype) if payload.dtype == PARTS else payload.dtype
                array = file.converted(address, occurrence, recorded, array)
            except ClewError as unfit:
                remedy = "it is in the trace itself: t.save() keeps it"
                self._tell_later(Gap("a value of the file", address, str(unfit), remedy))
                continue
            yield occurrence, recorded, array

    def _settle(self) -> None:
        if self._file is None:
            return
        try:
            self._file.commit()
            self._last_commit = time.monotonic()
        except Exception as fault:
            self._give_up(fault)

    def _seal(self) -> None:
        self._settle()

    def _give_up(self, fault: Exception) -> None:
        if self._file is not None:
            self._file.give_up()
        self._file = None
        why = f"writing failed ({type(fault).__name__}: {fault})"
        remedy = "make room or choose another place for out=; what was written is readable"
        self._tell_later(Gap("values from here on", str(self.folder), why, remedy))

    def _tell_later(self, gap: Gap) -> None:
        self._untold = self._untold or gap


def _fetched(file: LiveHdf5, place: Stored, recorded: str) -> bytes:
    return encode(file.read(place), recorded)


def claim_file(path: Path, rank: int, exist: str) -> Path:
    """A path for one rank's file that nothing is at: rank 0 has it plain, others with a number."""
    path = Path(os.path.abspath(path))
    if rank:
        path = path.with_name(f"{path.stem}.rank{rank:05d}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if exist == "replace" and os.path.lexists(path):
            _remove(path)
    except OSError as refused:
        raise ClewError(f"cannot write an HDF5 file to {path}: {refused}") from refused
    for number in range(1, _MOST_TRIES):
        free = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        if not os.path.lexists(free):
            return free
    raise ClewError(f"cannot write an HDF5 file to {path}: it and every name like it are taken")


def _remove(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            if file.read(len(_SIGNATURE)) == _SIGNATURE:
                path.unlink()
                return
    raise ClewError(f"{path} is there and is not an HDF5 file, so it is not replaced")


def open_hdf5(
    settings: Hdf5,
    rank: int,
    exist: str,
    environment: dict[str, Any],
    around: Callable[[list[Any]], Surroundings],
    on_gap: Callable[[Gap], Any],
) -> Hdf5Store:
    """The sink of one rank."""
    path = claim_file(Path(settings.path), rank, exist)
    try:
        file = LiveHdf5(settings, path, rank, environment)
    except OSError as refused:
        raise ClewError(f"cannot write an HDF5 file to {path}: {refused}") from refused
    return Hdf5Store(file, path, rank, around, on_gap)
