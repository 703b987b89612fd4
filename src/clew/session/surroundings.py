"""What a recording knows besides its records: the machine, the ranks, the sources."""

from __future__ import annotations

import linecache
import os
import platform
import sys
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


def source_text(file: str) -> str | None:
    return "".join(linecache.getlines(file_of(file))) or None
