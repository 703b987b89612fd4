"""What Clew failed at in another process, as a small file beside those with its batches."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

FAULT_SUFFIX = ".fault"
_LONGEST_TEXT = 1000


def file_name(worker: str) -> str:
    """Return the name, without suffix, of what this process writes."""
    name = "".join(c if c.isalnum() else "-" for c in worker)
    return f"{name}-{os.getpid()}"


def write_fault(folder: Path, worker: str, where: str, text: str) -> None:
    """Tell the process that reads a folder what Clew failed at here first."""
    path = folder / f"{file_name(worker)}{FAULT_SUFFIX}"
    with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:
        json.dump({"worker": worker, "where": where, "text": text[:_LONGEST_TEXT]}, file)
