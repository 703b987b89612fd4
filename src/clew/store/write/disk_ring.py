"""The ring on disk: sealed parts of the oldest events are deleted while the program runs.

Files are divided into stretches: parts of the event and value tables, and shards. Each stretch
begins with the earlier values that the program can still use, so that it can be read without the
stretches before. Tables stay. So a kill at any time leaves the ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.events.columns import Ints
from clew.events.vocabulary import STEP
from clew.store.format.arrow import record_batch
from clew.store.format.schema import SCHEMAS, footer_name, part_name
from clew.store.format.shards import shard_name
from clew.store.write.trace_writer import Ends, Rows, TraceFiles
from clew.stream.batch import Batch
from clew.stream.ring import ring_piece


@dataclass(slots=True)
class _Stretch:
    """Some parts, from where the stretch before ends; `ends` once the next has begun."""

    events: int = 0
    bytes: int = 0
    shards: set[int] = field(default_factory=set)
    ends: Ends | None = None


class DiskRing:
    """Drops the oldest parts of one rank's files.

    `remove` deletes files by their names; `on_fallen` gets the bytes of data that were dropped.
    """

    def __init__(
        self,
        last: int,
        files: TraceFiles,
        remove: Callable[[list[str]], object],
        on_fallen: Callable[[int], object],
    ) -> None:
        self._last = last
        self._files = files
        self._remove = remove
        self._on_fallen = on_fallen
        self._stretches: deque[_Stretch] = deque([_Stretch()])
        self._begins = Ends(0, 0, 0)
        # Rows of the values that later batches may refer to, and of those whose data they share.
        self._alive = SCHEMAS["values"].empty_table()
        self._shared = pa.array([], pa.int64())
        # Shards of dropped stretches that may still be needed.
        self._left: set[int] = set()

    def begin(self, batch: Batch) -> None:
        """Make room for a batch, if needed."""
        now = self._stretches[-1].events
        ids, kinds = batch.columns["id"], batch.columns["kind"]
        begins_step = len(ids) > 0 and kinds[np.argmin(ids)] == STEP
        if now >= self._last or (begins_step and now >= ring_piece(self._last)):
            self._next_stretch()

    def wrote(self, batch: Batch, values: Rows) -> None:
        """Note a batch that was written, and its rows of values."""
        stretch = self._stretches[-1]
        stretch.events += len(batch.columns["id"]) - batch.open_calls
        payloads = (kept.payload for kept in batch.kept.values())
        stretch.bytes += sum(memoryview(p.data).nbytes for p in payloads if p is not None)
        if values:
            rows = pa.Table.from_batches([record_batch(values, SCHEMAS["values"])])
            stretch.shards |= _shards(rows)
            self._alive = pa.concat_tables([self._alive, rows])
        self._let_go(batch.gone)

    def _let_go(self, gone: Ints) -> None:
        """Drop rows of values, except those with data that other values share."""
        rows = self._alive
        is_gone = pc.is_in(rows["value"], pa.concat_arrays([self._shared, pa.array(gone)]))
        alive = rows.filter(pc.invert(is_gone))
        is_shared = pc.and_(is_gone, pc.is_in(rows["value"], alive["data_of"].combine_chunks()))
        self._alive = pa.concat_tables([rows.filter(is_shared), alive])
        self._shared = rows["value"].filter(is_shared).combine_chunks()

    def _next_stretch(self) -> None:
        self._alive = self._alive.combine_chunks()
        self._stretches[-1].ends = self._files.next_stretch(self._alive)
        self._stretches.append(_Stretch(shards=_shards(self._alive)))
        there = sum(stretch.events for stretch in self._stretches)
        while there - self._stretches[0].events >= self._last:
            there -= self._stretches[0].events
            self._let_fall(self._stretches.popleft())

    def _let_fall(self, stretch: _Stretch) -> None:
        assert stretch.ends is not None
        begins, self._begins = self._begins, stretch.ends
        self._files.let_fall(stretch.events, self._last, stretch.ends)
        self._left |= set(range(begins.shard, stretch.ends.shard))
        used: set[int] = set().union(*(later.shards for later in self._stretches))
        shards, self._left = self._left - used, self._left & used
        self._remove(
            [
                *_parts("events", begins.events, stretch.ends.events),
                *_parts("values", begins.values, stretch.ends.values),
                *map(shard_name, sorted(shards)),
            ]
        )
        self._on_fallen(stretch.bytes)


def _parts(table: str, begin: int, end: int) -> list[str]:
    """Return the sealed files of some parts of a table."""
    parts = [part_name(table, index, live=False) for index in range(begin, end)]
    return [name for part in parts for name in (part, footer_name(Path(part).stem))]


def _shards(rows: pa.Table) -> set[int]:
    """Return the shards that rows of values refer to."""
    return set(pc.unique(rows["shard"].drop_null()).to_pylist())
