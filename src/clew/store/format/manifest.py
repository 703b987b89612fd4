"""The manifest of a trace: which format it has, which run it is of, how many ranks that had."""

from __future__ import annotations

import json
import os
import platform
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import BadTrace
from clew.events.columns import OLDEST_VERSION, SCHEMA_VERSION
from clew.events.digest import CHECKSUM
from clew.store.format.checksums import CHECKSUMS
from clew.store.format.json_rows import from_json, load_facts
from clew.store.safe_files import read_text

_FORMAT = "clew-trace"
_LARGEST_MANIFEST = 16 << 20
# What launchers set for all processes of one job, and for no other.
_JOB = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def new_manifest(environment: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Make the manifest of a new run."""
    return {
        "format": _FORMAT,
        "version": SCHEMA_VERSION,
        "checksum": CHECKSUM,
        "run": uuid.uuid4().hex,
        "job": _job(),
        "world_size": world_size,
        "environment": environment,
    }


def _job() -> str:
    """Name what the processes of one run share: their launcher's word, else their parent."""
    said = [f"{name}={os.environ[name]}" for name in _JOB if name in os.environ]
    return " ".join(said) or f"{platform.node()} {os.getppid()}"


def same_job(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two manifests are of ranks of one run."""
    return all(one.get(name) == other.get(name) for name in ("job", "world_size"))


@dataclass(frozen=True, slots=True)
class Format:
    """How a trace was written: which version, with which checksums."""

    version: int = SCHEMA_VERSION
    checksum: str = CHECKSUM


def format_of(manifest: dict[str, Any]) -> Format:
    """Tell how a trace was written, by its manifest, which was checked."""
    return Format(manifest["version"], manifest["checksum"])


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a trace and check it; BadTrace if it is none, or of another version."""
    path = folder / "manifest.json"
    try:
        manifest = load_facts(from_json(read_text(path, _LARGEST_MANIFEST)))
    except (FileNotFoundError, NotADirectoryError):
        why = "it has no manifest.json" if folder.is_dir() else "it is a file"
        if not folder.exists():
            why = "there is nothing of this name"
        raise BadTrace(
            f"{folder} is not a trace: {why}; give the folder that "
            "clew.trace(out=...) or Trace.save() wrote"
        ) from None
    except (OSError, ValueError) as broken:
        raise BadTrace(f"{path} cannot be read: {broken}") from broken
    if manifest.get("format") != _FORMAT:
        raise BadTrace(f"{path} is not the manifest of a trace")
    _check_version(folder, manifest)
    return manifest


def _check_version(folder: Path, manifest: dict[str, Any]) -> None:
    version, algorithm = manifest.get("version"), manifest.get("checksum")
    readable = f"this Clew reads {OLDEST_VERSION} to {SCHEMA_VERSION}"
    if type(version) is not int or version > SCHEMA_VERSION:
        shown = str(version)[:40]
        raise BadTrace(f"{folder} has format version {shown!r}, {readable}; upgrade Clew")
    if version < OLDEST_VERSION:
        raise BadTrace(
            f"{folder} has format version {version}, {readable}; open it with the Clew that "
            "wrote it, or record it again"
        )
    if not isinstance(algorithm, str) or algorithm not in CHECKSUMS:
        raise BadTrace(
            f"{folder} has checksums of the kind {str(algorithm)[:40]!r}, this Clew knows "
            f"{', '.join(map(repr, CHECKSUMS))}; upgrade Clew"
        )


def write_manifest(folder: Path, manifest: dict[str, Any], replace: bool = False) -> None:
    """Write the manifest in one move, if there is none or it is to be replaced."""
    target = folder / "manifest.json"
    aside = folder / f".manifest-{uuid.uuid4().hex}.json"
    try:
        aside.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if replace:
            os.replace(aside, target)
        else:
            _link(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _link(aside: Path, target: Path) -> None:
    try:
        os.link(aside, target)
    except FileExistsError:
        pass
    except OSError:
        # A file system without links.
        if not target.exists():
            os.replace(aside, target)
