"""What a recording knows besides its records: machine, ranks, sources."""

from __future__ import annotations

import linecache
import os
import platform
import sys
import time
from typing import Any

from clew import __version__
from clew.events.notebook_cells import file_of


class Environment:
    """Where and when a recording is made."""

    def __init__(self) -> None:
        self._ranks = _ranks_of_distributed()
        self._clock = time.perf_counter_ns()
        self._began = time.time()

    @property
    def rank(self) -> int:
        """Return the rank of this process."""
        return self._known_ranks()[0]

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return self._known_ranks()[1]

    def find_rank(self) -> None:
        """Read the rank again: torch.distributed may have come up, and may be gone later."""
        self._ranks = _ranks_of_distributed() or self._ranks

    def _known_ranks(self) -> tuple[int, int]:
        # To look variables up that are not set takes long, and most traces are never read.
        if self._ranks is None:
            self._ranks = _ranks_of_variables()
        return self._ranks

    def facts(self, name: str | None) -> dict[str, Any]:
        """Return the facts of where and when a recording is made."""
        torch = sys.modules.get("torch")
        return {
            "clew": __version__,
            "python": platform.python_version(),
            "torch": getattr(torch, "__version__", None),
            "platform": platform.platform(),
            "name": name,
            "time": self._began,
            "clock": self._clock,
        }


def rank_and_size(known: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the rank and the world size; `known`, if given, while torch.distributed has none."""
    return _ranks_of_distributed() or known or _ranks_of_variables()


def _ranks_of_variables() -> tuple[int, int]:
    """Return the rank and the world size that the variables of the environment name."""
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return int(rank) if rank.isdigit() else 0, int(size) if size.isdigit() else 1


def _ranks_of_distributed() -> tuple[int, int] | None:
    """Return the rank and the world size that torch.distributed has, None while it has none."""
    distributed = sys.modules.get("torch.distributed")
    # Where torch was built without it, the module has no such function.
    is_initialized = getattr(distributed, "is_initialized", None)
    if distributed is None or is_initialized is None or not is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def source_text(file: str) -> str | None:
    """Return the text of a source file, None if there is none."""
    return "".join(linecache.getlines(file_of(file))) or None
