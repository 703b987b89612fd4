"""What a recording knows besides its records: the machine, the ranks, the sources, the columns."""

from __future__ import annotations

import linecache
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.events.columns import Columns, ModuleRow, Place
from clew.events.model import Gap
from clew.events.notebook_cells import file_of
from clew.store.write.memory_sink import MemoryStore

if TYPE_CHECKING:
    from clew.capture.recording import Recording


def recorded_columns(
    store: MemoryStore,
    recording: Recording,
    modes: dict[int, str],
    gaps: Iterable[Gap],
    environment: dict[str, Any],
    redact: bool = False,
    rank: int | None = None,
) -> Columns:
    """Everything recorded so far, as columns."""
    from clew.capture.sources import places_of

    arrays: dict[str, Any] = dict(store.arrays(recording.open_calls()))
    places = places_of(store.tables.nodes.rows)
    return Columns(
        **arrays,
        ops=store.tables.ops.rows,
        modules=module_rows(recording),
        notes=store.tables.notes.rows,
        labels=store.tables.labels.rows,
        places=places,
        templates=store.tables.templates.rows,
        metas=store.tables.metas.rows,
        errors=store.tables.errors.rows,
        value_names=store.tables.value_names.rows,
        parameters=list(recording.modules.parameters),
        threads=list(recording.thread_names),
        sources={} if redact else sources(places),
        kept=store.kept,
        modes=dict(modes),
        gaps=list(gaps),
        environment=environment,
        rank=rank_and_size()[0] if rank is None else rank,
    )


def surroundings(name: str | None, clock: int, began: float) -> dict[str, Any]:
    """Where a recording is made."""
    from clew import __version__

    torch = sys.modules.get("torch")
    return {
        "clew": __version__,
        "python": platform.python_version(),
        "torch": getattr(torch, "__version__", None),
        "platform": platform.platform(),
        "name": name,
        "time": began,
        "clock": clock,
    }


def module_rows(recording: Recording) -> list[ModuleRow]:
    return [
        ModuleRow(n.path, n.cls, n.entry.number, n.entry.wrapper)
        for n in list(recording.modules.names)
    ]


def rank_and_size(known: tuple[int, int] | None = None) -> tuple[int, int]:
    """This process among those of a distributed program; `known` if nothing tells now."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    if known is not None:
        return known
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return int(rank) if rank.isdigit() else 0, int(size) if size.isdigit() else 1


class RankFolder:
    """A folder to write to: one in it for each rank, once this process knows that it is one."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._made: Path | None = None
        self._ranks: tuple[int, int] | None = None
        self.path()

    def path(self) -> Path:
        """Where to write now, which is there."""
        rank, size = self._ranks = rank_and_size(self._ranks)
        path = self._folder / f"rank{rank}" if size > 1 else self._folder
        if path != self._made:
            path.mkdir(parents=True, exist_ok=True)
            self._made = path
        return path


def source_text(file: str) -> str | None:
    return "".join(linecache.getlines(file_of(file))) or None


def sources(places: list[Place]) -> dict[str, str]:
    files = {place.file for place in places if not place.library and place.line > 0}
    return {file: source_text(file) or "" for file in sorted(files)}
