"""Read the ranks of a saved trace one by one; a few small ones stay in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clew.analysis.ranks.keys import Hashes
from clew.analysis.ranks.rank_table import RankTable, read_rank_table
from clew.errors import BadTrace
from clew.events.columns import Floats
from clew.events.model import Gap
from clew.program_errors import pass_on
from clew.store.format.manifest import read_manifest
from clew.store.read.open_trace import fetch_tables, missing_ranks, rank_names
from clew.store.read.table_parts import Query, read_query
from clew.store.storage import Storage

# Slots of all ranks together that stay in memory, about 100 bytes each.
_MOST_HELD = 1_000_000
# Ranks whose numbers others are compared with, if not only equal ones count.
_MODELS = 3
_NUMBERS = ["norm", "mean", "min", "max"]


class RankReader:
    """The ranks of a trace, each read when asked for."""

    def __init__(self, storage: Storage, tol: float | None = None) -> None:
        manifest = read_manifest(storage)
        self._storage, self.tol = storage, tol
        self._folders = rank_names(storage)
        if not self._folders:
            raise BadTrace(f"{storage} holds no rank=* folder: nothing was recorded into it")
        self.ranks: list[int] = list(self._folders)
        self.gaps: list[Gap] = missing_ranks(manifest, self.ranks)
        self._models: dict[int, _Model] = {}
        self._held: dict[int, RankTable] = {}
        self._slots = 0

    @property
    def place(self) -> str:
        """Return where the trace is."""
        return str(self._storage)

    def tables(self, ranks: Sequence[int] | None = None) -> Iterator[RankTable]:
        """Yield the tables of all or some ranks."""
        for rank in self.ranks if ranks is None else ranks:
            yield self.read(rank)

    def read(self, rank: int) -> RankTable:
        """Return the table of one rank."""
        held = self._held.get(rank)
        if held is not None:
            return held
        gaps: list[Gap] = []
        folder = fetch_tables(self._storage, self._folders[rank])
        try:
            table = read_rank_table(folder, rank, gaps)
        except Exception as broken:
            pass_on(broken)
            # An untrusted file may cause any exception; the message names the rank.
            what = f"{type(broken).__name__}: {broken}"
            raise BadTrace(f"rank {rank} of {self._storage} is damaged: {what}") from broken
        self.gaps += [gap for gap in gaps if gap not in self.gaps]
        if self.tol is not None:
            self._join_near(table, self._numbers(rank))
        if self._slots + len(table.slot_value) <= _MOST_HELD:
            self._slots += len(table.slot_value)
            self._held[rank] = table
        return table

    def column(self, rank: int, columns: list[str]) -> pa.Table:
        """Return some columns of a rank's values table."""
        folder = fetch_tables(self._storage, self._folders[rank])
        return read_query(folder, Query("values", columns), [])[0]

    def _numbers(self, rank: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the values with statistics, and their norm, mean, min and max."""
        rows = self.column(rank, ["value", *_NUMBERS])
        number = rows["value"].to_numpy()
        facts = np.stack([rows[name].to_numpy().astype(np.float64) for name in _NUMBERS], axis=1)
        return number[~np.isnan(facts[:, 0])], facts[~np.isnan(facts[:, 0])]

    def _join_near(self, table: RankTable, numbers: tuple[NDArray[np.int64], Floats]) -> None:
        """Give tensors that are nearly those of an earlier rank the digest of that one."""
        order = np.argsort(numbers[0], kind="stable")
        known, facts = numbers[0][order], numbers[1][order]
        mine = table.values.number[table.slot_value]
        at = np.minimum(np.searchsorted(known, mine), max(len(known) - 1, 0))
        has = (known[at] == mine) if len(known) else np.zeros(len(mine), bool)
        shown = np.where(has[:, None], facts[at] if len(known) else np.nan, np.nan)
        digest = table.slot_digest.copy()
        for rank, model in self._models.items():
            if rank != table.rank:
                model.join(table.slot_key, shown, digest, cast(float, self.tol))
        table.__dict__["slot_digest"] = digest
        if len(self._models) < _MODELS and table.rank not in self._models:
            order = np.argsort(table.slot_key)
            self._models[table.rank] = _Model(table.slot_key[order], shown[order], digest[order])


@dataclass(frozen=True)
class _Model:
    """The tensors of a rank that others are compared with: keys in order, numbers, digests."""

    keys: Hashes
    numbers: Floats
    digest: Hashes

    def join(self, keys: Hashes, numbers: Floats, digest: Hashes, tol: float) -> None:
        """Replace digests of tensors whose numbers are nearly those of this rank."""
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        theirs = self.numbers[at]
        size = np.abs(theirs[:, 2:]).max(axis=1)
        near = np.abs(numbers[:, 0] - theirs[:, 0]) <= tol * theirs[:, 0]
        near &= (np.abs(numbers[:, 1:] - theirs[:, 1:]) <= tol * size[:, None]).all(axis=1)
        near &= (self.keys[at] == keys) & (digest != 0) & (self.digest[at] != 0)
        digest[near] = self.digest[at[near]]
