"""Write a whole trace into a folder, local or remote, that appears when it is complete."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from clew.events.columns import Columns
from clew.store.format.manifest import create_manifest, new_manifest
from clew.store.format.schema import rank_folder
from clew.store.write.claim import TRACE
from clew.store.write.place import place_folder
from clew.store.write.whole_trace import EventRows, write_rank


def save(
    columns: list[Columns], path: str | os.PathLike[str], exist: str, event_rows: EventRows
) -> Path | str:
    """Write the traces of one or more ranks; return the folder, perhaps with a number."""
    place, _ = place_folder(path, exist, TRACE, partial(_write, columns, event_rows))
    return place


def _write(columns: list[Columns], event_rows: EventRows, folder: Path) -> None:
    folder.mkdir()
    create_manifest(folder, new_manifest(columns[0].environment, len(columns)))
    for rank in columns:
        (folder / rank_folder(rank.rank)).mkdir()
        write_rank(folder / rank_folder(rank.rank), rank, event_rows)
