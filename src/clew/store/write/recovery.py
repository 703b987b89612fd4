"""Recovery: seal what a killed process left open, so that other tools can read it.

Input: the folder of a trace. Output: lines about what was done, none if there was nothing to do.
Live parts become Parquet up to where they are readable, open shards get their header, rebuilt from
the values table. Nothing readable is removed, damaged files are kept under another name, and a
second recovery does nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import ClewError
from clew.events.model import Gap
from clew.store.format.json_rows import dump, to_json
from clew.store.format.live_stream import LiveFile
from clew.store.format.manifest import (
    MANIFEST,
    Format,
    create_manifest,
    format_of,
    new_manifest,
    read_manifest,
)
from clew.store.format.schema import SCHEMAS, part_name
from clew.store.read.live_writer import live_rank_writer
from clew.store.read.open_trace import not_closed, rank_folders, rank_links, read_files
from clew.store.read.table_parts import parts_of, read_table
from clew.store.safe_files import opened
from clew.store.storage import LocalStorage, is_url
from clew.store.write.seal_part import seal_part
from clew.store.write.seal_shards import seal_shards

# Temporary files that sealing writes before it renames them.
_ASIDE = re.compile(r"(events|values|tables)-\d{5,9}(\.footer)?\.tmp")


def recover(path: str | os.PathLike[str]) -> list[str]:
    """Seal what a killed run left open in the folder of its trace; return lines about what was
    done.

    Raises ClewError if the run is still being written.
    """
    if is_url(path):
        raise ClewError(
            f"{path} is not recovered in place: what is there was sealed before it was uploaded; "
            "a copy of a folder that was not can be recovered once it is local"
        )
    folder = Path(path)
    storage = LocalStorage(folder)
    ranks = rank_folders(folder)
    if not ranks:
        read_manifest(storage)
    try:
        done = list(_restore_manifest(storage, ranks))
        done += [f"{name}: left alone, it is a link" for name in rank_links(storage)]
        return [*done, *_recover_ranks(ranks, format_of(read_manifest(storage)))]
    except OSError as refused:
        raise ClewError(f"cannot recover {folder}: {refused}") from refused


def _recover_ranks(ranks: dict[int, Path], form: Format) -> Iterator[str]:
    for folder in ranks.values():
        for line in _recover_rank(folder, form):
            yield folder.name + (line if line.startswith(":") else f"/{line}")


def _restore_manifest(storage: LocalStorage, ranks: dict[int, Path]) -> Iterator[str]:
    """Write a manifest for a trace that has lost its own."""
    if os.path.lexists(storage.folder / MANIFEST):
        read_manifest(storage)
        return
    environment: dict[str, object] = {}
    for rank in ranks.values():
        environment = environment or read_files(rank)[0].environment
    create_manifest(storage.folder, new_manifest(environment, len(ranks)))
    yield f"{MANIFEST}: was missing, written anew from what the ranks say"


def _recover_rank(folder: Path, form: Format) -> Iterator[str]:
    columns, end = read_files(folder, form)
    live = sorted(folder.glob("*.arrows"))
    if live or end.events is None or list(folder.glob(".shard-*.open")):
        _check_writer(folder)
    yield from _clear_away(folder)
    yield from seal_shards(folder)
    for table in SCHEMAS:
        for stem, kinds in sorted(parts_of(folder, table, []).items()):
            yield from _recover_part(folder, table, stem, kinds)
    if end.events is None:
        gap = not_closed(columns, "what could be read was sealed by `clew recover`")
        _write_end(folder, len(columns.id), gap)
        yield f": closed after {len(columns.id)} events"


def _check_writer(folder: Path) -> None:
    """Raise ClewError if the files are still being written."""
    writer = live_rank_writer(folder)
    if writer is not None:
        raise ClewError(
            f"{folder} {writer}; wait until it ends; a growing trace can be read as it is"
        )


def _clear_away(folder: Path) -> Iterator[str]:
    """Remove unfinished temporary files; the files they were made from are still there."""
    for path in sorted(path for path in folder.iterdir() if _ASIDE.fullmatch(path.name)):
        path.unlink()
        yield f"{path.name}: half-written copy removed"


def _recover_part(folder: Path, table: str, stem: str, kinds: list[str]) -> Iterator[str]:
    sealed, live = folder / f"{stem}.parquet", folder / f"{stem}.arrows"
    if any(path.is_symlink() for path in (sealed, live)):
        raise ClewError(f"{folder / stem} is a link; recover only files that are the trace's own")
    whole = "parquet" in kinds and _is_whole(sealed)
    if whole and "arrows" in kinds:
        live.unlink()
        yield f"{live.name}: was sealed already, the live copy removed"
    if whole:
        return
    if "parquet" in kinds and "arrows" in kinds:
        sealed.rename(sealed.with_name(f"{sealed.name}.damaged"))
    path = live if "arrows" in kinds else sealed
    try:
        rows, damage = seal_part(path, table, _later_events(folder, stem, table))
    except OSError:
        raise
    except Exception as broken:
        # Reading untrusted bytes may raise anything.
        aside = path.with_name(f"{path.name}.damaged")
        path.rename(aside)
        yield f"{path.name}: cannot be read ({broken}), kept as {aside.name}"
        return
    line = f"{path.name}: sealed with {rows} rows"
    if path.with_name(f"{path.name}.damaged").exists():
        line += f", {len(damage)} stretches are damaged and kept in {path.name}.damaged"
    elif damage:
        line += ", the last batch was incomplete"
    yield line


def _later_events(folder: Path, stem: str, table: str) -> pa.Table | None:
    """Return the ids of events in later parts, which have newer rows of open calls."""
    if table != "events":
        return None
    ids, stretches = read_table(folder, table, ["id"], [])
    return pa.concat_tables([ids[:0], *(s.rows for s in stretches if s.stem > stem)])


def _is_whole(path: Path) -> bool:
    """Return whether any tool can open a sealed part."""
    try:
        with opened(path):
            pq.read_metadata(str(path))
    except Exception:
        # Reading untrusted bytes may raise anything.
        return False
    return True


def _write_end(folder: Path, events: int, gap: Gap) -> None:
    """Close the tables: add a gap for where the run stopped, and the number of events."""
    numbers = [int(stem.rpartition("-")[2]) for stem in parts_of(folder, "tables", [])]
    known, _ = read_table(folder, "tables", ["table", "number"], [])
    gaps = known.filter(pa.compute.equal(known["table"], "gap"))["number"]
    number = (pa.compute.max(gaps).as_py() or 0) + 1 if len(gaps) else 0
    rows = [["gap", "end"], [number, 0], [dump(gap), to_json({"events": events})]]
    path = folder / part_name("tables", max(numbers, default=-1) + 1, live=True)
    file = LiveFile(path, SCHEMAS["tables"])
    file.write(pa.record_batch(rows, schema=SCHEMAS["tables"]))
    file.end()
    seal_part(path, "tables")
