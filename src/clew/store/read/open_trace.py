"""Read a trace on disk: complete or still growing, sealed or left by a kill.

Input: a folder. Output: the columns of each rank. Opening reads only the manifest and the names of
the rank folders; rows are read at first use, payloads one by one. Damaged parts are left out and
listed as gaps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from clew.errors import BadTrace
from clew.events.columns import Columns
from clew.events.model import Gap
from clew.events.vocabulary import STEP
from clew.program_errors import pass_on
from clew.store.format.manifest import Format, RunCheck, format_of, read_manifest
from clew.store.format.shards import Shards, StoredShards
from clew.store.read.rank_columns import read_rank
from clew.store.storage import LocalStorage, Storage

_MOST_RANKS = 1_000_000
_RANK = re.compile(r"rank=(\d{1,9})")
PART = re.compile(r"(events|values|tables)-\d{5,9}\.(parquet|arrows)")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank's files end: how many events there are, if it was closed, and what could not be
    read.
    """

    events: int | None
    damage: list[Gap]


# The columns of each rank, read at first use, and gaps of the whole trace.
Opened: TypeAlias = tuple[dict[int, Callable[[], Columns]], list[Gap]]


def open_trace(storage: Storage) -> Opened:
    """Open a trace: each rank is read at first use."""
    manifest = read_manifest(storage)
    ranks, links = rank_names(storage), _linked(storage)
    if not ranks:
        why = str(links[0]) if links else "nothing was recorded into it"
        raise BadTrace(f"{storage} holds no rank=* folder: {why}")
    form, check = format_of(manifest), RunCheck(storage, manifest.get("run"))
    reads: dict[int, Callable[[], Columns]] = {
        rank: partial(_read_rank, storage, name, form, len(ranks) == 1, check)
        for rank, name in ranks.items()
    }
    return reads, [*links, *missing_ranks(manifest, list(ranks))]


def rank_names(storage: Storage) -> dict[int, str]:
    """Return the folder names of a trace's ranks, in order; empty if there is no such trace."""
    try:
        found = {name: _RANK.fullmatch(name) for name in storage.folders()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as refused:
        raise BadTrace(f"{storage} cannot be read: {refused}") from refused
    return dict(sorted((int(match[1]), name) for name, match in found.items() if match))


def rank_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of a local trace's ranks, in order."""
    return {rank: folder / name for rank, name in rank_names(LocalStorage(folder)).items()}


def rank_links(storage: Storage) -> list[str]:
    """Return the rank folders that are links, which are not followed."""
    return [name for name in storage.links() if _RANK.fullmatch(name)]


def _linked(storage: Storage) -> list[Gap]:
    return [
        Gap(name, storage.name, "it is a link, and links are not followed out of a trace",
            "copy the folder it leads to into the trace")
        for name in rank_links(storage)
    ]  # fmt: skip


def missing_ranks(manifest: dict[str, object], there: list[int]) -> list[Gap]:
    """Return a gap for ranks that the run had and the trace does not."""
    size = manifest.get("world_size")
    # A manifest from an untrusted file may hold anything.
    if type(size) is not int or not len(there) < size <= _MOST_RANKS:
        return []
    known = set(there)
    count = size - sum(rank < size for rank in known)
    missing = islice((rank for rank in range(size) if rank not in known), 8)
    listed = ", ".join(map(str, missing)) + (", …" if count > 8 else "")
    what = f"rank {listed}" if count == 1 else f"ranks {listed}"
    return [
        Gap(what, "", f"the run had {size} ranks, and these have no folder here",
            "copy their rank=* folders into the trace; the others are shown")
    ]  # fmt: skip


def _read_rank(storage: Storage, name: str, form: Format, alone: bool, check: RunCheck) -> Columns:
    """Read the columns of a rank, with a gap where it stopped if it was not closed."""
    folder = fetch_tables(storage, name)
    check()
    columns, end = read_files(folder, form, StoredShards(storage, name), check)
    # Check that no other run replaced the folder meanwhile.
    check()
    if alone and not len(columns.id) and end.damage:
        listed = "; ".join(map(str, end.damage[:5]))
        raise BadTrace(f"nothing in {folder} can be read: {listed}")
    columns.gaps += _missing(columns, end)
    return columns


def fetch_tables(storage: Storage, name: str) -> Path:
    """Return a local folder with the tables of a rank."""
    try:
        return storage.local(name, PART)
    except OSError as failed:
        raise BadTrace(f"{storage}/{name} cannot be read: {failed}") from failed


def read_files(
    folder: Path,
    form: Format | None = None,
    shards: Shards | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Columns, Ending]:
    """Read the columns of one rank's files, and how they end.

    Without `form` they have the current format. The data of values is read from `shards`, or from
    the folder itself; if that fails, `check` may raise the reason.
    """
    if shards is None:
        shards = StoredShards(LocalStorage(folder.parent), folder.name)
    try:
        columns, events, damage = read_rank(folder, form or Format(), shards, check)
        return columns, Ending(events, damage)
    except Exception as broken:
        pass_on(broken)
        # An untrusted file may cause any exception; the message names the trace.
        raise BadTrace(f"{folder} is damaged: {type(broken).__name__}: {broken}") from broken


def not_closed(columns: Columns, remedy: str) -> Gap:
    """Return a gap for where a rank stopped that was not closed."""
    return Gap(
        "the end of the run",
        f"rank {columns.rank}",
        "the trace was not closed: its process was killed, or still runs; "
        f"the last that is there is {_last(columns)}",
        remedy,
    )


def _missing(columns: Columns, end: Ending) -> list[Gap]:
    """Return gaps for what is missing at the end of a rank."""
    if end.events is None:
        return [not_closed(columns, "load it again later, or seal it with `clew recover`")]
    lost = end.events - len(columns.id)
    if lost <= 0:
        return []
    why = f"files are cut short or missing; the last that is there is {_last(columns)}"
    return [Gap(f"{lost} events", f"rank {columns.rank}", why, "the others are shown")]


def _last(columns: Columns) -> str:
    if not len(columns.id):
        return "nothing"
    begun = columns.subject[columns.kind == STEP]
    return f"event {int(columns.id[-1])} of step {int(begun[-1]) if len(begun) else 0}"
