"""The memory of tensors from birth to end, one entry per storage.

Input: a `Run`. Output: `Lifetimes`, arrays over storages: bytes, the row after which each is there,
the row before which it is gone. Views share a storage, which is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.events.columns import Flags, Ints
from clew.events.vocabulary import COMPOSITE, MODULE, OP
from clew.run.run import Run

# Devices on which tensors have no memory.
_NOWHERE = ("", "meta", "unknown")


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Storages that a call or an op met, in order of their first values.

    A storage is alive from row `born` up to before row `died`, which is the end of its rank if it
    was not freed. `made` is the row of the event that made it, -1 if none did. `name` is the number
    of the parameter's or buffer's name, -1 without one. `of_value` has the storage of every value,
    -1 for those that are not counted.
    """

    run: Run
    first: Ints
    size: Ints
    made: Ints
    born: Ints
    died: Ints
    freed: Ints
    name: Ints
    device: Ints
    devices: list[str]
    of_value: Ints
    # Mentions of storages by ops and calls: the row, the storage, whether as a result.
    row: Ints
    storage: Ints
    is_output: Flags
    # storages whose bytes are not known
    unknown: int

    def __len__(self) -> int:
        return len(self.first)

    def first_mention(self, chosen: Flags | slice) -> Ints:
        """Return the first row of the chosen mentions of each storage, -1 if there is none."""
        found = np.full(len(self), -1, dtype=np.int64)
        # Rows are in order, and the last assignment to an index holds.
        found[self.storage[chosen][::-1]] = self.row[chosen][::-1]
        return found

    def last_mention(self, chosen: Flags | slice) -> Ints:
        """Return the last row of the chosen mentions of each storage, -1 if there is none."""
        found = np.full(len(self), -1, dtype=np.int64)
        found[self.storage[chosen]] = self.row[chosen]
        return found

    def rows_of(self, rank: int) -> tuple[int, int]:
        """Return the first row of a rank, and the one after its last."""
        first, end = np.searchsorted(self.run.process, [rank, rank + 1])
        return int(first), int(end)


def lifetimes(run: Run) -> Lifetimes:
    """Follow every storage of a run from its birth to its end."""
    c = run.columns
    _, first, of_value = np.unique(c.storage, return_index=True, return_inverse=True)
    tensors = run.tensors
    by_call = np.isin(c.kind, (OP, COMPOSITE, MODULE))[tensors.event]
    row, storage = tensors.event[by_call], of_value[tensors.value[by_call]]
    is_output = tensors.is_output[by_call]
    mentioned = np.full(len(first), -1, dtype=np.int64)
    mentioned[storage[::-1]] = row[::-1]
    metas = c.metas
    is_real = np.array(
        [meta.device not in _NOWHERE and meta.placements is None for meta in metas], dtype=bool
    )
    met = (mentioned >= 0) & is_real[c.meta[first]]
    counted = met & (c.nbytes[first] > 0)
    number = np.where(counted, np.cumsum(counted) - 1, -1)
    name = np.full(len(first), -1, dtype=np.int64)
    named = c.value_name >= 0
    name[of_value[named]] = c.value_name[named]
    devices = sorted({meta.device for meta in metas})
    device = np.array([devices.index(meta.device) for meta in metas], dtype=np.int64)
    kept = number[storage] >= 0
    found = Lifetimes(
        run,
        first[counted],
        c.nbytes[first[counted]],
        run.producers[first[counted]],
        mentioned[counted],
        mentioned[counted],
        run.freed[first[counted]],
        name[counted],
        device[c.meta[first[counted]]],
        devices,
        number[of_value],
        row[kept],
        number[storage[kept]],
        is_output[kept],
        int((met & (c.nbytes[first] < 0)).sum()),
    )
    _set_spans(found)
    return found


def _set_spans(found: Lifetimes) -> None:
    """Set from which row on each storage is there, and before which it is gone."""
    run, c = found.run, found.run.columns
    process = run.process[found.born]
    producer = c.producer[found.first]
    for rank in run.ranks:
        low, high = found.rows_of(rank)
        mine = np.flatnonzero(process == rank)
        ids = c.id[low:high]
        # By ids: the event itself may have been dropped from the run.
        by_id = low + np.searchsorted(ids, np.maximum(producer[mine], 0))
        stays = (producer[mine] < 0) & (found.name[mine] >= 0)
        met = found.born[mine]
        born = np.where(producer[mine] >= 0, by_id, np.where(stays, low, met))
        freed = found.freed[mine]
        gone = low + np.searchsorted(ids, np.maximum(freed, 0))
        found.born[mine] = np.minimum(born, high - 1)
        # What was made after the last of these rows was never there.
        died = np.where(born == high, 0, np.where(freed >= 0, gone, high))
        found.died[mine] = np.maximum(died, found.born[mine])
