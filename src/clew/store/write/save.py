"""Places for traces: claim a folder for a new run, write a whole trace into it.

Nothing that is there is overwritten unless it is a trace and `exist="replace"` says so. Ranks of
one run share a folder without talking to each other: the first to come writes the manifest, the
others recognise their job in it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clew.errors import BadTrace, ClewError
from clew.events.columns import Columns
from clew.store.format.manifest import new_manifest, read_manifest, same_job, write_manifest
from clew.store.format.schema import rank_folder
from clew.store.read.open_trace import rank_folders
from clew.store.write.whole_trace import EventRows, write_rank

EXIST = ("new", "replace")
_MOST_TRIES = 100_000


def claim(path: Path, rank: int, exist: str, environment: dict[str, Any], world_size: int) -> Path:
    """The folder for one rank of a run, made for it: never one that holds another run.

    With `exist="new"` a taken path gets a number, `run-2.clew`; with `"replace"` the old run's
    files of this rank, and of ranks that the new run does not have, are removed first.
    """
    manifest = new_manifest(environment, world_size)
    for candidate in _candidates(path):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            if exist == "replace":
                _make_way(candidate, rank, manifest)
            folder = candidate / rank_folder(rank)
            if _is_ours(candidate, manifest):
                folder.mkdir()
                return folder
        except FileExistsError:
            continue
        except (OSError, ValueError) as refused:
            raise ClewError(f"cannot write a trace to {candidate}: {refused}") from refused
    raise ClewError(f"cannot write a trace to {path}: it and every name like it are taken")


def save(columns: list[Columns], path: Path, exist: str, event_rows: EventRows) -> Path:
    """Write traces of one or more ranks into a folder of their own; the folder.

    The folder appears in one move, when all of it is written.
    """
    if exist not in EXIST:
        raise ClewError(f"exist={exist!r} is not one of {', '.join(map(repr, EXIST))}")
    path = Path(os.path.abspath(path))
    aside = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        aside.mkdir(parents=True)
        try:
            write_manifest(aside, new_manifest(columns[0].environment, len(columns)))
            for rank in columns:
                folder = aside / rank_folder(rank.rank)
                folder.mkdir()
                write_rank(folder, rank, event_rows)
            return _move(aside, path, exist)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as refused:
        raise ClewError(f"cannot save a trace to {path}: {refused}") from refused


def _candidates(path: Path) -> Iterator[Path]:
    path = Path(os.path.abspath(path))
    if os.path.exists(path) and not path.is_dir():
        raise ClewError(f"{path} is a file; give a folder for the trace, such as {path.name}.clew")
    yield from numbered(path)


def numbered(path: Path) -> Iterator[Path]:
    """A path, and those to take instead where it is taken: `run-2.clew`, `run-3.clew`."""
    yield path
    for number in range(2, _MOST_TRIES):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def _move(aside: Path, path: Path, exist: str) -> Path:
    """Give a finished trace its name."""
    if exist == "replace" and path.is_dir() and any(path.iterdir()):
        _check_replaceable(path)
        old = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        os.rename(path, old)
        os.rename(aside, path)
        shutil.rmtree(old, ignore_errors=True)
        return path
    for candidate in _candidates(path):
        try:
            # Onto an empty folder it may go, onto anything else not.
            os.rename(aside, candidate)
            return candidate
        except OSError:
            if not candidate.exists():
                raise
    raise ClewError(f"cannot save a trace to {path}: it and every name like it are taken")


def _is_ours(folder: Path, manifest: dict[str, Any]) -> bool:
    """Whether a folder is this job's, which it is if it was nobody's."""
    if not (folder / "manifest.json").exists():
        if rank_folders(folder):
            return False
        write_manifest(folder, manifest)
    try:
        return same_job(read_manifest(folder), manifest)
    except BadTrace:
        return False


def _make_way(folder: Path, rank: int, manifest: dict[str, Any]) -> None:
    """Remove what an older run left, as far as it is this rank's to remove."""
    if not (folder / "manifest.json").exists():
        return
    _check_replaceable(folder)
    ranks = rank_folders(folder)
    if not same_job(read_manifest(folder), manifest):
        # Ranks that the new run has are theirs to remove: they may be there already.
        for number in [n for n in ranks if n >= manifest["world_size"]]:
            shutil.rmtree(ranks[number])
        write_manifest(folder, manifest, replace=True)
    if rank in ranks:
        shutil.rmtree(ranks[rank])


def _check_replaceable(folder: Path) -> None:
    try:
        read_manifest(folder)
    except BadTrace as other:
        raise ClewError(
            f"{folder} is there and is not a trace, so it is not replaced; choose another place"
        ) from other
