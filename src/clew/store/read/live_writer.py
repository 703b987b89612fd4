"""Find out whether the files of a trace are still being written, and by whom."""

from __future__ import annotations

import os
import time
from pathlib import Path

from clew.store.format.json_rows import from_json, load_facts
from clew.store.format.manifest import MANIFEST
from clew.store.format.processes import runs_here, this_host
from clew.store.read.open_trace import rank_folders
from clew.store.read.table_parts import read_table

# A process on another host cannot be asked: files it wrote less than this long ago count as live.
_QUIET_SECONDS = 60


def live_writer(trace: Path) -> str | None:
    """Return who still writes to a trace, as the end of a sentence; None if no one does."""
    ranks = rank_folders(trace)
    if not ranks and _is_recent([trace / MANIFEST]):
        return "was begun just now"
    return next(filter(None, map(live_rank_writer, ranks.values())), None)


def live_rank_writer(folder: Path) -> str | None:
    """Return who still writes to the files of a rank; None if no one does."""
    files = [folder / name for name in os.listdir(folder)]
    if files and not any(path.name.endswith((".arrows", ".open")) for path in files):
        return None
    writer = _writer(folder)
    host = writer.get("host")
    if runs_here(writer):
        return f"is being written by process {writer.get('pid')}, which still runs"
    if host != this_host() and _is_recent([folder, *files]):
        whose = "" if host is None else " by a process on another host"
        return f"was written to less than {_QUIET_SECONDS} seconds ago{whose}"
    return None


def _writer(folder: Path) -> dict[str, object]:
    """Return the process that signed a rank's tables last, empty if none did."""
    rows, _ = read_table(folder, "tables", ["table", "row"], [])
    signed = [row["row"] for row in rows.to_pylist() if row["table"] == "writer"]
    try:
        return load_facts(from_json(signed[-1])) if signed else {}
    except (ValueError, TypeError):
        return {}


def _is_recent(paths: list[Path]) -> bool:
    newest = 0.0
    for path in paths:
        try:
            newest = max(newest, path.lstat().st_mtime)
        except OSError:
            continue
    return time.time() - newest < _QUIET_SECONDS
