"""What a recording knows besides its records: the machine, the ranks, the sources."""

from __future__ import annotations

import linecache
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.events.columns import ModuleRow
from clew.events.notebook_cells import file_of

if TYPE_CHECKING:
    from clew.record.recorder import Recorder


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


def module_rows(recorder: Recorder) -> list[ModuleRow]:
    return [
        ModuleRow(n.path, n.cls, n.entry.number, n.entry.wrapper)
        for n in list(recorder.modules.names)
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
