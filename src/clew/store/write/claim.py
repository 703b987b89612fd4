"""Claim a folder for a run that is about to be written: `clew.trace(out=...)`.

Input: a path or URL, the rank, and what to do if the path is taken. Output: a folder for this rank
alone. The path that was asked for holds the newest run: whoever writes the new manifest moves an
earlier run to a numbered name. Ranks of one run share a folder without communicating: they
recognise their job in the manifest.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import ClewError
from clew.request.exist import checked_exist
from clew.store.format.manifest import (
    MANIFEST,
    RunCheck,
    create_manifest,
    found_manifest,
    new_manifest,
    same_job,
)
from clew.store.format.schema import rank_folder
from clew.store.read.live_writer import live_writer
from clew.store.read.open_trace import rank_names
from clew.store.storage import LocalStorage, Storage, storage_of
from clew.store.write.place import (
    FolderKind,
    is_a_file,
    not_ours,
    remove_folder,
    rename_to_hidden,
    rename_to_number,
    taken,
)

_MARKS = (".manifest-", ".moving-")
# How long to wait for another rank that moves an earlier run away.
_PATIENCE = 30.0
# How often this process has claimed a path, by path and rank: ranks that trace twice to one path
# share the first folder for their first trace, and the second for their second.
_turns: Counter[tuple[str, int]] = Counter()


def _is_trace(storage: Storage) -> bool:
    return found_manifest(storage) is not None or bool(rank_names(storage))


def _owns(name: str) -> bool:
    return name == MANIFEST or name.startswith(("rank=", *_MARKS))


TRACE = FolderKind("a trace", MANIFEST, _is_trace, _owns, live_writer)


@dataclass(frozen=True, slots=True)
class Claim:
    """The place of one rank of a run: where the trace is, and the folder to write to.

    `check` raises if another run has the place by now. `said` is the reason if it is not the place
    that was asked for.
    """

    storage: Storage
    folder: Path
    check: RunCheck
    said: str | None = None


def claim(
    out: str | os.PathLike[str],
    rank: int,
    exist: str,
    environment: dict[str, object],
    world_size: int,
) -> Claim:
    """Claim a folder for one rank of a run, never one that holds another run."""
    exist = checked_exist(exist)
    storage = storage_of(out)
    if isinstance(storage, LocalStorage):
        storage = LocalStorage(Path(os.path.abspath(out)))
    _turns[str(storage), rank] += 1
    manifest = new_manifest(environment, world_size, _turns[str(storage), rank])
    try:
        if isinstance(storage, LocalStorage):
            return _claim_local(storage, rank, exist, manifest)
        return _claim_remote(storage, rank, exist, manifest)
    except OSError as refused:
        if isinstance(refused, ClewError):
            raise
        raise ClewError(f"cannot write a trace to {storage}: {refused}") from refused


def _claim_local(place: LocalStorage, rank: int, exist: str, manifest: dict[str, object]) -> Claim:
    if place.folder.exists() and not place.folder.is_dir():
        raise is_a_file(place.folder)
    deadline = time.monotonic() + _PATIENCE
    while True:
        late = time.monotonic() > deadline
        try:
            found = _try_local(place, rank, exist, manifest, late)
        except FileNotFoundError:
            # Another rank moves the folder at the same time.
            if late:
                raise
            continue
        if found is not None:
            return found


def _try_local(
    place: LocalStorage, rank: int, exist: str, manifest: dict[str, object], late: bool
) -> Claim | None:
    """Claim the place, or make it free; return None if it is to be tried again."""
    path = place.folder
    for home in _homes(place, manifest):
        found = _take(home, rank, manifest)
        if found is not None:
            return found
    found = _take(place, rank, manifest)
    if found is not None:
        return _settled(found, place, manifest)
    there = found_manifest(place)
    if there is None and not rank_names(place):
        if not _is_used(path):
            return None
        raise taken(path) if exist == "error" else not_ours(path, "a trace")
    if exist == "error":
        raise taken(path)
    why = live_writer(path)
    if _run_of(place) != (there or {}).get("run"):
        # Another rank has moved it meanwhile: this folder is its successor.
        return None
    if why is None and late:
        why = "is being moved by a process that does not finish"
    if why is None:
        _move_away(place, exist, manifest)
        return None
    if exist == "replace":
        raise ClewError(f"{path} {why}, so it is not replaced; choose another place")
    return _settled(_take_number(place, rank, manifest, why), place, manifest)


def _homes(place: LocalStorage, manifest: dict[str, object]) -> list[LocalStorage]:
    """Return the folders that other ranks of this run have made, the earliest first."""
    if not _may_be_one_of_many(manifest):
        return []
    found = []
    others = itertools.takewhile(lambda other: other.folder.exists(), place.numbered())
    for candidate in (place, *others):
        there = found_manifest(candidate)
        if there is not None and _is_ours(there, manifest):
            made = (candidate.folder / MANIFEST).stat().st_mtime_ns
            found.append((made, str(there.get("run")), candidate))
    return [candidate for *_, candidate in sorted(found, key=lambda home: home[:2])]


def _settled(found: Claim, place: LocalStorage, manifest: dict[str, object]) -> Claim | None:
    """Return up a folder if another rank made an earlier one: all ranks use the earliest."""
    homes = _homes(place, manifest)
    mine = found.folder.parent
    if not homes or homes[0].folder == mine:
        return found
    found.folder.rmdir()
    if os.listdir(mine) == [MANIFEST]:
        (mine / MANIFEST).unlink()
        mine.rmdir()
    return None


def _take(place: LocalStorage, rank: int, manifest: dict[str, object]) -> Claim | None:
    """Claim a folder that is empty or this run's, unless it has this rank already."""
    if found_manifest(place) is None:
        if _is_used(place.folder):
            return None
        place.folder.mkdir(parents=True, exist_ok=True)
        create_manifest(place.folder, manifest)
    there = found_manifest(place)
    if there is None or not _is_ours(there, manifest):
        return None
    folder = place.folder / rank_folder(rank)
    try:
        folder.mkdir()
    except (FileExistsError, FileNotFoundError):
        return None
    return Claim(place, folder, RunCheck(place, there.get("run")))


def _is_ours(there: dict[str, object], manifest: dict[str, object]) -> bool:
    """Return whether a manifest is this run's: written by this process or by another rank."""
    if there.get("run") == manifest["run"]:
        return True
    return _may_be_one_of_many(manifest) and same_job(there, manifest)


def _may_be_one_of_many(manifest: dict[str, Any]) -> bool:
    """Return whether this process is a rank among others; not all launchers say how many."""
    return manifest["world_size"] > 1 or "RANK" in os.environ


def _is_used(folder: Path) -> bool:
    try:
        return any(not name.startswith(_MARKS) for name in os.listdir(folder))
    except FileNotFoundError:
        return False


def _take_number(place: LocalStorage, rank: int, manifest: dict[str, Any], why: str) -> Claim:
    for candidate in place.numbered():
        found = _take(candidate, rank, manifest)
        if found is not None:
            said = f"{place} {why}; this run goes to {candidate}"
            return Claim(candidate, found.folder, found.check, said)
    raise AssertionError("numbers do not end")


def _move_away(place: LocalStorage, exist: str, manifest: dict[str, object]) -> None:
    """Move an earlier run away, or let another rank do it.

    Only the process that creates the marker file in the folder of that very run may move it.
    """
    run = _run_of(place)
    mark = place.folder / f".moving-{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        time.sleep(0.01)
        return
    if _run_of(place) != run:
        # It was moved before the marker was made, which is in its successor.
        mark.unlink(missing_ok=True)
        return
    try:
        moved = (rename_to_number if exist == "keep" else rename_to_hidden)(place.folder)
    except OSError:
        mark.unlink(missing_ok=True)
        raise
    (moved / mark.name).unlink()
    if exist == "replace":
        place.folder.mkdir(exist_ok=True)
        create_manifest(place.folder, manifest)
        remove_folder(moved, TRACE, place.folder)


def _run_of(place: Storage) -> object:
    return (found_manifest(place) or {}).get("run")


def _claim_remote(place: Storage, rank: int, exist: str, manifest: dict[str, object]) -> Claim:
    """Claim a remote folder, where nothing can be moved; return a local folder to upload from."""
    mine = f"{rank_folder(rank)}/"
    for candidate in itertools.chain([place], place.numbered()):
        sizes = candidate.sizes()
        there = found_manifest(candidate) if MANIFEST in sizes else None
        shares = there is not None and _is_ours(there, manifest)
        if sizes and not (shares and not any(name.startswith(mine) for name in sizes)):
            if exist == "error":
                raise taken(candidate)
            if there is None:
                raise not_ours(candidate, "a trace")
            if exist == "keep":
                continue
            # Other ranks of this run may be there already.
            candidate.remove(n for n in sizes if n.startswith(mine) or not shares)
        folder = Path(tempfile.mkdtemp(prefix="clew-")) / (candidate.name or "trace")
        (folder / mine).mkdir(parents=True)
        create_manifest(folder, manifest)
        if not shares:
            candidate.put(folder / MANIFEST, MANIFEST)
            there = found_manifest(candidate)
            if there is None or not _is_ours(there, manifest):
                # Another process claimed it later, and has it.
                continue
        said = None if candidate is place else f"{place} is taken; this run goes to {candidate}"
        return Claim(
            candidate, folder / mine, RunCheck(candidate, (there or manifest)["run"]), said
        )
    raise AssertionError("numbers do not end")
