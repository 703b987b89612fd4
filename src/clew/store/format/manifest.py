"""The manifest of a trace: its format version, its run, and how many ranks the run had."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from clew.errors import BadTrace
from clew.events.columns import OLDEST_VERSION, SCHEMA_VERSION
from clew.events.digest import CHECKSUM
from clew.program_errors import pass_on
from clew.store.format.checksums import CHECKSUMS
from clew.store.format.json_rows import from_json, load_facts
from clew.store.format.processes import parent_process, runs_here, this_host
from clew.store.storage import Storage

MANIFEST = "manifest.json"
_FORMAT = "clew-trace"
_LARGEST_MANIFEST = 16 << 20
# Environment variables that launchers set for all processes of one job, and for no other.
_JOB = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def new_manifest(environment: dict[str, object], world_size: int, turn: int = 1) -> dict[str, Any]:
    """Make the manifest of a new run; it is its process's `turn`-th at this place."""
    return {
        "format": _FORMAT,
        "version": SCHEMA_VERSION,
        "checksum": CHECKSUM,
        "run": uuid.uuid4().hex,
        "job": _job(),
        "launcher": parent_process(),
        "turn": turn,
        "world_size": world_size,
        "environment": environment,
    }


def _job() -> str:
    """Return a hash of the variables a launcher sets for all processes of one job, or the host."""
    said = " ".join(f"{name}={os.environ[name]}" for name in _JOB if name in os.environ)
    digest = blake2b(said.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"launched={digest}" if said else this_host()


def same_job(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether the manifest `one`, read from a folder, belongs to the same run as another.

    Launchers give successive jobs the same names, so on one host the ranks must also have the same
    parent process, or the other's parent must still run.
    """
    if any(one.get(name) != other[name] for name in ("job", "world_size", "turn")):
        return False
    launcher = one.get("launcher")
    if not isinstance(launcher, dict):
        return False
    if launcher.get("host") != other["launcher"]["host"]:
        return True
    return launcher == other["launcher"] or (_is_launched(other) and runs_here(launcher))


def _is_launched(manifest: dict[str, Any]) -> bool:
    return "=" in manifest["job"]


@dataclass(frozen=True, slots=True)
class Format:
    """How a trace was written: which version, with which checksums."""

    version: int = SCHEMA_VERSION
    checksum: str = CHECKSUM


def format_of(manifest: dict[str, Any]) -> Format:
    """Return version and checksum of a trace from its manifest, which was checked."""
    return Format(manifest["version"], manifest["checksum"])


def read_manifest(storage: Storage) -> dict[str, Any]:
    """Read the manifest of a trace and check it; BadTrace if it is none, or of another version."""
    try:
        manifest = _load(storage)
    except (FileNotFoundError, NotADirectoryError):
        why = _nothing_there(storage)
        raise BadTrace(
            f"{storage} is not a trace: {why}; give the folder that "
            "clew.trace(out=...) or Trace.save() wrote"
        ) from None
    except ValueError as broken:
        raise BadTrace(f"{storage}/{MANIFEST} cannot be read: {broken}") from broken
    except OSError as failed:
        raise BadTrace(f"{storage} cannot be read: {failed}") from failed
    if manifest.get("format") != _FORMAT:
        raise BadTrace(f"{storage}/{MANIFEST} is not the manifest of a trace")
    _check_version(storage, manifest)
    return manifest


def found_manifest(storage: Storage) -> dict[str, Any] | None:
    """Read the manifest of a trace of any version; None if there is none."""
    try:
        manifest = _load(storage)
    except (FileNotFoundError, NotADirectoryError, ValueError) as odd:
        pass_on(odd)
        return None
    return manifest if manifest.get("format") == _FORMAT else None


def _load(storage: Storage) -> dict[str, object]:
    size = storage.size(MANIFEST)
    if size > _LARGEST_MANIFEST:
        raise ValueError(f"it has {size} bytes, far more than a manifest needs")
    return load_facts(from_json(storage.read(MANIFEST).decode("utf-8")))


def _nothing_there(storage: Storage) -> str:
    place = storage.place
    if isinstance(place, Path) and not place.is_dir():
        return "it is a file" if place.exists() else "there is nothing of this name"
    return f"it has no {MANIFEST}"


class RunCheck:
    """Checks that a folder still holds the run that was opened."""

    def __init__(self, storage: Storage, run: object) -> None:
        self._storage = storage
        self._run = run

    def renew(self) -> None:
        """Accept the run that is there now as the one that was opened."""
        self._run = (found_manifest(self._storage) or {}).get("run")

    def __call__(self) -> None:
        """Raise BadTrace if the folder holds another run by now; ignore read errors."""
        try:
            found = found_manifest(self._storage)
        except OSError as odd:
            pass_on(odd)
            return
        if found is not None and found.get("run") != self._run:
            raise BadTrace(
                f"{self._storage} holds another run than the one that was opened there, which was "
                "replaced or moved to a name with a number; load it again"
            )


def _check_version(storage: Storage, manifest: dict[str, object]) -> None:
    version, algorithm = manifest.get("version"), manifest.get("checksum")
    readable = f"this Clew reads {OLDEST_VERSION} to {SCHEMA_VERSION}"
    if type(version) is not int or version > SCHEMA_VERSION:
        shown = str(version)[:40]
        raise BadTrace(f"{storage} has format version {shown!r}, {readable}; upgrade Clew")
    if version < OLDEST_VERSION:
        raise BadTrace(
            f"{storage} has format version {version}, {readable}; open it with the Clew that "
            "wrote it, or record it again"
        )
    if not isinstance(algorithm, str) or algorithm not in CHECKSUMS:
        raise BadTrace(
            f"{storage} has checksums of the kind {str(algorithm)[:40]!r}, this Clew knows "
            f"{', '.join(map(repr, CHECKSUMS))}; upgrade Clew"
        )


def create_manifest(folder: Path, manifest: dict[str, object]) -> bool:
    """Create the manifest atomically, unless there is one; return whether it was created."""
    target = folder / MANIFEST
    aside = folder / f".manifest-{uuid.uuid4().hex}.json"
    try:
        aside.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        try:
            os.link(aside, target)
        except FileExistsError:
            return False
        except OSError as odd:
            pass_on(odd)
            # The file system has no links.
            if target.exists():
                return False
            os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return True
